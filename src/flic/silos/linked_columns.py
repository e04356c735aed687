"""Linked columns: a candidate for members, and for those who come later or learn again.

What the federation shares of them, everyone's sums, is enough for a model of new rows: nothing is
trained, and nothing leaves.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from flic.algorithms.experts import Known
from flic.algorithms.linked import Linked
from flic.algorithms.pooling import Agreed, Sent
from flic.data.client_data import ClientData, FederatedData, Split
from flic.data.schema import FeatureSchema, SharedFeatures
from flic.data.task import Task
from flic.federation.journal import MemoryJournal
from flic.federation.loop import Simulation
from flic.federation.roster import Roster
from flic.federation.work import Workshop
from flic.shapes import Named
from flic.silos.candidate import Candidate, Learned, schedule
from flic.silos.encoding import EncodedFederation, EncodedSilo, linked_features, linked_spaces
from flic.silos.models import LinkedModel
from flic.silos.settings import FitSettings
from flic.silos.traffic import Overheard


@dataclass(frozen=True, eq=False)
class LinkedState:
    """What a federation shares of its linked columns."""

    spaces: Mapping[str, SharedFeatures] = field(default_factory=dict[str, SharedFeatures])
    seed: int = 0
    tensors: Named = field(default_factory=dict[str, Tensor])  # everyone's sums and merits

    def agreed(self, settings: FitSettings, task: Task) -> Agreed:
        """What clients agree on."""
        return Agreed(settings.method.linked, self.spaces, task, self.seed)

    def space_of(self, names: Sequence[str]) -> str | None:
        """Space that has most of some features; None if none has any."""
        common = {s: len({*names} & {*shared.names}) for s, shared in self.spaces.items()}
        best = max(common, key=lambda space: common[space], default=None)
        return best if best is not None and common[best] else None


class LinkedColumns(Candidate):
    """Pooled statistics of columns of the same name, in closed form."""

    name = "linked"
    title = "linked columns: pooled statistics"
    federated = True

    def served(self, encoded: EncodedFederation) -> list[str]:
        return list(linked_spaces({s.name: linked_features(s)[0] for s in encoded.silos}))

    def learn(self, encoded: EncodedFederation, settings: FitSettings, *, seed: int) -> Learned:
        names = {silo.name: linked_features(silo)[0] for silo in encoded.silos}
        spaces = linked_spaces(names)
        silos = [silo for silo in encoded.silos if silo.name in spaces]
        clients = tuple(in_shared_units(silo, spaces[silo.name]) for silo in silos)
        data = FederatedData("tables", encoded.task, clients)
        roster = Roster(data, settings.method.embedding, dtype=torch.float32)
        algorithm = Linked(settings.method, roster.population, seed=seed, dtype=torch.float64)
        journal, workshop = MemoryJournal(), Workshop(algorithm, roster, seed)
        runner = Overheard(workshop)
        for _ in Simulation(workshop, schedule(settings.method), journal, runner).steps():
            pass
        assert journal.server is not None
        state = LinkedState(algorithm.agreed.shared, seed, journal.server.shared)
        known = {c.name: Known(algorithm.agreed, state.tensors, c) for c in clients}
        models = {silo.name: _model(known[silo.name], silo) for silo in silos}
        return Learned(models, journal.records, state.tensors, state, runner.sent())


class JoinedLinked(Candidate):
    """Linked columns for new rows: everyone's sums are as they are, less those that were sent."""

    name = LinkedColumns.name
    title = LinkedColumns.title
    federated = True

    def __init__(self, state: LinkedState, sent: Sent | None = None) -> None:
        self._state, self._sent = state, sent or {}

    def served(self, encoded: EncodedFederation) -> list[str]:
        return [silo.name for silo, _ in self._linked(encoded)]

    def _linked(self, encoded: EncodedFederation) -> Iterator[tuple[EncodedSilo, str]]:
        for silo in encoded.silos:
            space = self._state.space_of(linked_features(silo)[0])
            if space is not None:
                yield silo, space

    def learn(self, encoded: EncodedFederation, settings: FitSettings, *, seed: int) -> Learned:
        del seed  # nothing is drawn
        agreed = self._state.agreed(settings, encoded.task)
        models = {}
        for silo, space in self._linked(encoded):
            client = in_shared_units(silo, space)
            known = Known(agreed, self._state.tensors, client, self._sent)
            models[silo.name] = _model(known, silo)
        return Learned(models)


def _model(known: Known, silo: EncodedSilo) -> LinkedModel:
    """The client's model for rows in its own units, and what of everyone's sums is its own."""
    _, factor, offset = linked_features(silo)
    model = known.model()
    # (f x + o − m) / s = (x − (m − o)/f) / (s/f)
    model["shift"], model["scale"] = (model["shift"] - offset) / factor, model["scale"] / factor
    sent: Sent = {"linear": known.pool.sent("linear"), "mapped": known.pool.sent("mapped")}
    return LinkedModel(model, silo.data.classes, known.agreed.task.num_outputs, sent)


def in_shared_units(silo: EncodedSilo, space: str) -> ClientData:
    """The client as others know its columns: by their shared names, in the shared units."""
    names, factor, offset = linked_features(silo)
    client = silo.plain
    train = Split((client.train.x * factor + offset).float(), client.train.y)
    test = Split((client.test.x * factor + offset).float(), client.test.y)
    return replace(client, schema=FeatureSchema(space, tuple(names)), train=train, test=test)
