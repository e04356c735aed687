"""The engine of a silo: the same as everywhere, for a stack of one."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from flic.data.client_data import ClientData, FederatedData
from flic.engine.clients import Clients
from flic.engine.engine import EVALUATE, Engine, Job
from flic.errors import FederationError
from flic.flower.answers import digest_of_request
from flic.flower.federation_settings import LARGEST, MOST_ROWS, FederationSettings
from flic.flower.pooling import FIRST, POSITIONS, SUMS, linked_method, round_of
from flic.flower.sums_form import LINEAR, SPACE
from flic.method_settings import LinkedConfig
from flic.methods.linked.disclosure import ValuesOfMap, told_detail, told_of_map
from flic.methods.linked.linked import UPLOAD, Linked
from flic.methods.linked.linked_client import LinkedClient
from flic.methods.linked.sums import COUNTS, SENT
from flic.methods.protocol import ServerState, Stack, Update, VisitContext
from flic.shapes import Named, unlike_forms

HeldOut = tuple[Tensor, Tensor]
"""Predictions of a silo's held-out rows, and their classes or responses."""


@dataclass(frozen=True)
class VisitResult:
    """The result of one visit: the update that leaves, and the loss terms."""

    update: Update
    losses: Mapping[str, float]
    keys: tuple[str, ...] = ()  # of features, where columns are linked


class SiloEngine:
    """The engine of one silo: a stack of one."""

    def __init__(self, client: ClientData, settings: FederationSettings) -> None:
        self.client, self._settings = client, settings
        data, own = FederatedData("silo", settings.common_task, (client,)), settings.method_settings
        self.engine = Engine.of(settings.method, own, data, seed=settings.seed)

    @cached_property
    def expected_shared(self) -> Named:
        """The shared part as the settings make it."""
        return self._settings.coordinated_method().init_server().shared

    def new(self) -> Named:
        """Private parameters before any training."""
        phi = self.engine.clients.architecture(self.client.name)
        return self.engine.method.init_client(self.client, phi)

    def refuse_other_shared(self, server: ServerState) -> None:
        """Refuse a shared part of other tensors than the settings make."""
        refuse_other_shared(self.client.name, server.shared, self.expected_shared)

    def prepared(self, server: ServerState) -> Named:
        """Private parameters before a first visit: φ_i fitted to the anchors as they are now."""
        self.refuse_other_shared(server)
        name, method, state = self.client.name, self.engine.method, self.new()
        steps = method.programme(0, final_round=False)  # before any round
        for stage in (stage for step in steps if step.round <= 0 for stage in step.stages):
            job = Job(stage.name, ServerState(0, server.shared), (name,), [state])
            state = self.engine.do(job).states[name]
        return state

    def train(
        self, stage: str, server: ServerState, state: Named, least_rows: int
    ) -> tuple[VisitResult, Named]:
        """Train once; the result that leaves, and the private parameters that stay."""
        name = self.client.name
        self.refuse_other_shared(server)
        answer = self.engine.do(Job(stage, server, (name,), [state]))
        update = answer.updates[0] if answer.updates else Update(name, {})
        drawn = answer.rows_drawn[name]
        if len(self.client.train) < least_rows or 0 < sum(drawn) < least_rows:
            return VisitResult(Update(name, {}), {}), answer.states[name]
        few = {n for n, rows in self._rows_behind(server).items() if rows < least_rows}
        entries = {name: e for name, e in update.entries.items() if name not in few}
        # A term counts each class by itself, so that it shows a class of one row among hundreds.
        is_told = all(count == 0 or count >= least_rows for count in drawn)
        losses = answer.losses[name] if is_told else {}
        return VisitResult(Update(name, entries), losses), answer.states[name]

    def _rows_behind(self, server: ServerState) -> Mapping[str, int]:
        """Rows behind each tensor of the silo's update that rests on a part of its rows."""
        clients, name = self.engine.clients, self.client.name
        stack = Stack(clients.architecture(name), {})
        context = VisitContext(server, stack, clients.stacked_data((name,)), ())
        return self.engine.method.rows_behind(context, 0)

    def held_out(self, server: ServerState, state: Named) -> HeldOut:
        """Held-out rows as predicted, and as they are."""
        self.refuse_other_shared(server)
        return _held_out(self.engine, server, self.client, state)


def refuse_other_shared(silo: str, shared: Named, known: Named) -> None:
    """Refuse a shared part whose tensors differ from known ones in name, shape or type."""
    if wrong := unlike_forms(known, shared):
        raise FederationError(
            f"silo {silo!r} is sent {len(shared)} shared tensors, of which {wrong[0][:40]!r} is "
            f"missing, unknown or of another shape; expected {', '.join(known)}. Give coordinator "
            "and silos the same version of flic."
        )


def _refuse_impossible(silo: str, shared: Named) -> None:
    """Refuse pooled sums that are of no rows: with such ones, work fails or not by a single row."""
    for name, value in shared.items():
        is_count = name.rpartition(".")[2] in COUNTS
        least, most = (0.0, MOST_ROWS) if is_count else (-LARGEST, LARGEST)
        if not bool(((value >= least) & (value <= most)).all()):  # NaN is not either
            raise FederationError(
                f"silo {silo!r} is sent {name!r} with a number below {least:g}, above {most:g} or "
                "none at all; expected sums over rows. The coordinator is broken, or lies."
            )


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
            return linked_method(self.client.schema.features, self._settings, self._method)
        apart = server.round > SUMS  # sums of one silo have the same rows behind all features
        return linked_method(self._linked(server), self._settings, self._method, apart=apart)

    def _linked(self, server: ServerState) -> tuple[str, ...]:
        """Keys of the linked features, in the silo's own order."""
        keys = self.client.schema.features
        return tuple(keys[i] for i in self.positions(server))

    def positions(self, server: ServerState) -> list[int]:
        """Positions of the linked features among all; none in the round of keys.

        Raises:
            FederationError: the shared part does not say which they are.
        """
        if server.round == FIRST:
            return []
        keys, found = self.client.schema.features, server.shared.get(POSITIONS, torch.empty(0))
        known = set(range(len(keys)))
        if found.dtype != torch.int64 or found.ndim != 1 or not {*found.tolist()} <= known:
            raise FederationError(
                f"silo {self.client.name!r} is not told which of its {len(keys)} features are "
                "linked; expected their positions. Give coordinator and silos one version of flic."
            )
        return sorted({*found.tolist()})

    def request(self, server: ServerState) -> str:
        """Digest of a request, once it fits, and of what the silo itself wants to tell."""
        if server.round > FIRST:
            self._refuse_other_shared(server)
        return digest_of_request(server, self._method.linked.model_dump(mode="json"))

    def _refuse_other_shared(self, server: ServerState) -> None:
        """Refuse a shared part of other tensors than the settings and the links make."""
        linked = self._linked(server)
        if server.round > SUMS:
            known = linked_method(linked, self._settings, apart=True).init_server().shared
            known = {**known, POSITIONS: server.shared[POSITIONS]}
            refuse_other_shared(self.client.name, server.shared, known)
            _refuse_impossible(self.client.name, server.shared)

    def leaving(self) -> list[tuple[str, Tensor, int]]:
        """All that may leave: its name, what it looks like, and columns that must be linked."""
        needed, found = self._linked_needed(), []
        shared = dict(self.method().init_server().shared)
        keys = self.client.schema.features
        later = linked_method(keys, self._settings, self._method, apart=True).init_server().shared
        shared |= {name: value for name, value in later.items() if round_of(name) > SUMS}
        for name, value in shared.items():
            if not name.startswith("moments."):
                found.append((name, value, 0))
            elif name in needed:
                found.append((name, value, needed[name]))
        return found

    def _linked_needed(self) -> dict[str, int]:
        """Number of columns that must be linked for each of the sums to leave; others never do."""
        agreed, client = self.method().agreed, self.client
        sums = f"moments.{SPACE}."
        needed: dict[str, int] = {}
        most = ValuesOfMap.most(agreed, client)
        for linked in range(client.schema.dim, 0, -1):
            detail = told_of_map(agreed, client, most[linked - 1], linked)
            needed |= {f"{sums}mapped.{part}": linked for part in (SENT[detail] if detail else ())}
            told = SENT[told_detail(agreed, client, linked)]
            needed |= {f"{sums}linear.{part}": linked for part in told}
        return needed

    def _engine(self, server: ServerState) -> Engine:
        data = FederatedData("silo", self._settings.common_task, (self.client,))
        clients = Clients(data, self._method.embedding, dtype=torch.float32)
        return Engine(self.method(server), clients, self._settings.seed)

    def prepare(self, server: ServerState) -> VisitResult:
        """The keys of all features, then sums of the linked ones, then likelihoods."""
        name = self.client.name
        if server.round == FIRST:
            return VisitResult(Update(name, {}), {}, self.client.schema.features)
        [update] = self._engine(server).do(Job(UPLOAD, server, (name,), [{}])).updates
        is_of_columns = server.round == SUMS or any(n.startswith(LINEAR) for n in update.entries)
        return VisitResult(update, {}, self._linked(server) if is_of_columns else ())

    def linked_client(self, server: ServerState) -> LinkedClient:
        """The silo's view of linked columns after the last round, its model included."""
        return LinkedClient(self.method(server).agreed, server.shared, self.client)

    def held_out(self, server: ServerState) -> HeldOut:
        """Held-out rows as predicted, and as they are."""
        return _held_out(self._engine(server), server, self.client, {})


def _held_out(engine: Engine, server: ServerState, client: ClientData, state: Named) -> HeldOut:
    job, border = Job(EVALUATE, server, (client.name,), [state]), len(client.validation)
    predicted, y = engine.predicted(job)[client.name]
    return predicted[border:], y[border:]
