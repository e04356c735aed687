"""What a silo works with: a clients of one, the core's method, and its own rows."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from flic.data.client_data import ClientData, FederatedData
from flic.data.task import Regression
from flic.engine.clients import Clients
from flic.engine.engine import Engine, Job, JobResult, Stage
from flic.errors import FederationError
from flic.flower.pooling import FIRST, PLACES, SPACE, SUMS, algorithm_for
from flic.flower.settings import FederationSettings
from flic.method_settings import LinkedConfig
from flic.methods import build_method
from flic.methods.flic.anchors import factor_name, mean_name
from flic.methods.flic.meta import MAP
from flic.methods.linked.client import LinkedClient
from flic.methods.linked.disclosure import told_detail, told_of_map
from flic.methods.linked.method import Linked
from flic.methods.linked.sums import SENT
from flic.methods.protocol import Method, Population, ServerState, Update
from flic.shapes import Named


@dataclass(frozen=True)
class Trained:
    """What one visit gives: the update that leaves, and the loss terms."""

    update: Update
    losses: Mapping[str, float]
    keys: tuple[str, ...] = ()  # of features, where columns are linked


def as_coordinated(settings: FederationSettings) -> Method:
    """The method as the coordinator knows it: other facts about silos are theirs."""
    population = Population(0, settings.question, settings.max_features, 0, spaces={})
    return build_method(settings.method, settings.method_settings, population, seed=settings.seed)


class SiloEngine:
    """A clients of one, and what is needed to work for it."""

    def __init__(self, client: ClientData, settings: FederationSettings) -> None:
        self.client, self._settings = client, settings
        own = settings.method_settings
        data = FederatedData("silo", settings.question, (client,))
        clients = Clients(data, own.embedding, dtype=torch.float32)
        seed = settings.seed
        method = build_method(settings.method, own, clients.population, seed=seed)
        self.engine = Engine(method, clients, seed)

    def prepared(self, server: ServerState) -> Named:
        """Private parameters before a first visit: φ_i fitted to the anchors as they are now."""
        self._refuse_other_shared(server)
        clients, method = self.engine.clients, self.engine.method
        name = self.client.name
        if not method.preparations:
            return method.init_client(self.client, clients.architecture(name))
        task = Job("prepare", ServerState(0, server.shared), (name,), [None])
        return self.engine.do(task).states[name]

    def train(
        self, stage: Stage, server: ServerState, state: Named, least_rows: int
    ) -> tuple[Trained, Named]:
        """What leaves, and the private parameters that stay."""
        self._refuse_other_shared(server)
        name = self.client.name
        answer = self.engine.do(Job(stage, server, (name,), [state]))
        update = answer.updates[0] if answer.updates else Update(name, {})
        if len(self.client.train) < least_rows:  # α and the losses rest on all of them
            return Trained(Update(name, {}), {}), answer.states[name]
        few = _anchors_of_few(self.client, server, self.engine, least_rows)
        entries = {name: e for name, e in update.entries.items() if name not in few}
        return Trained(Update(name, entries), answer.losses[name]), answer.states[name]

    def figures(self, server: ServerState, state: Named) -> dict[str, float]:
        """Sums over the silo's held-out rows."""
        self._refuse_other_shared(server)
        name = self.client.name
        return _of_held_out(self.engine.do(Job("evaluate", server, (name,), [state])), name)

    def _refuse_other_shared(self, server: ServerState) -> None:
        """Refuse a shared part of other tensors than the settings make."""
        known = as_coordinated(self._settings).init_server().shared
        both = {**known, **server.shared}
        wrong = [name for name in both if _form(known.get(name)) != _form(server.shared.get(name))]
        if wrong:
            raise FederationError(
                f"silo {self.client.name!r} is sent {len(server.shared)} shared tensors, of which "
                f"{wrong[0][:40]!r} is missing, unknown or of another shape; expected "
                f"{', '.join(known)}. Give coordinator and silos the same version of flic."
            )


def _form(tensor: Tensor | None) -> tuple[torch.Size, torch.dtype] | None:
    return None if tensor is None else (tensor.shape, tensor.dtype)


def _anchors_of_few(
    client: ClientData, server: ServerState, engine: Engine, least: int
) -> set[str]:
    """Names of the anchors for which the silo has rows, but too few to hide one among them."""
    rows: Counter[int] = Counter()
    meta_of = server.shared.get(MAP)
    for c, count in client.class_counts.items():
        rows[c if meta_of is None else int(meta_of[c])] += count
    if isinstance(engine.clients.data.task, Regression):
        rows = Counter(dict.fromkeys((0, 1), len(client.train)))  # all rows pull at both ends
    few = [anchor for anchor, count in rows.items() if count < least]
    return {name(anchor) for anchor in few for name in (mean_name, factor_name)}


class LinkedSiloEngine:
    """A silo among others that have some of its columns: it sends sums, and trains nothing."""

    def __init__(
        self,
        client: ClientData,
        settings: FederationSettings,
        linked: LinkedConfig,  # as the silo wants it, which may tell less than was agreed
    ) -> None:
        self.client, self._settings = client, settings
        self._method = settings.method_settings.model_copy(update={"linked": linked})

    def method(self, server: ServerState | None = None) -> Linked:
        """The method among the linked features; among all as long as nobody knows which are."""
        if server is None:
            return algorithm_for(self.client.schema.features, self._settings, self._method)
        apart = server.round > SUMS  # sums of one silo have the same rows behind all features
        return algorithm_for(self._linked(server), self._settings, self._method, apart=apart)

    def _linked(self, server: ServerState) -> tuple[str, ...]:
        """Keys of the linked features."""
        keys = self.client.schema.features
        return tuple(keys[i] for i in server.shared[PLACES].tolist())

    def leaving(self) -> list[tuple[str, Tensor, int]]:
        """All that may leave: its name, what it looks like, and columns that must be linked."""
        method, needed = self.method(), self._linked_needed()
        shared = method.init_server().shared
        found = []
        for name, value in shared.items():
            if not name.startswith("moments."):
                found.append((name, value, 0))
            elif name in needed:
                found.append((name, value, needed[name]))
        return found

    def _linked_needed(self) -> dict[str, int]:
        """How many columns must be linked for each of the sums to leave; never those left out."""
        agreed, client = self.method().agreed, self.client
        sums = f"moments.{SPACE}."
        needed: dict[str, int] = {}
        for linked in range(client.schema.dim, 0, -1):
            detail = told_of_map(agreed, client, linked=linked, shared=linked)
            needed |= {f"{sums}mapped.{part}": linked for part in (SENT[detail] if detail else ())}
            told = SENT[told_detail(agreed, client, linked)]
            needed |= {f"{sums}linear.{part}": linked for part in told}
        return needed

    def _engine(self, server: ServerState) -> Engine:
        data = FederatedData("silo", self._settings.question, (self.client,))
        clients = Clients(data, self._method.embedding, dtype=torch.float32)
        return Engine(self.method(server), clients, self._settings.seed)

    def prepare(self, server: ServerState) -> Trained:
        """The keys of all features, then sums of the linked ones, then likelihoods."""
        name = self.client.name
        if server.round == FIRST:
            return Trained(Update(name, {}), {}, self.client.schema.features)
        [update] = self._engine(server).do(Job("prepare", server, (name,), [{}])).updates
        return Trained(update, {}, self._linked(server) if server.round == SUMS else ())

    def known(self, server: ServerState) -> LinkedClient:
        """What the silo knows after the last round, its model included."""
        return LinkedClient(self.method(server).agreed, server.shared, self.client)

    def figures(self, server: ServerState) -> dict[str, float]:
        """Sums over the silo's held-out rows."""
        name = self.client.name
        task = Job("evaluate", server, (name,), [{}])
        return _of_held_out(self._engine(server).do(task), name)


def _of_held_out(answer: JobResult, client: str) -> dict[str, float]:
    figures = answer.scores[client].figures()
    return {name: float(v) for name, v in figures.items() if name.startswith("test_")}
