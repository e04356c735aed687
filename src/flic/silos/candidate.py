"""Candidate: one way to get a model for a client."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from flic.data.client_data import FederatedData
from flic.data.task import TaskName
from flic.engine.engine import Engine
from flic.engine.journal import MemoryJournal, Record
from flic.engine.rounds import Schedule, num_active
from flic.engine.runners import local_rounds
from flic.engine.traffic import SentTensor, TrafficCounter
from flic.method_settings import MethodSettings
from flic.methods import METHODS
from flic.methods.protocol import ServerState
from flic.silos.column_views import View, own_columns
from flic.silos.encoding import EncodedFederation
from flic.silos.fit_settings import FitSettings
from flic.silos.linked_state import LinkedState
from flic.silos.model import Model, Origin
from flic.silos.models import EXPORTED

STACK_WIDTH = 100


@dataclass(frozen=True)
class Learned:
    """Models of the clients that were served, and the shared state after training."""

    models: Mapping[str, Model]
    records: Sequence[Record] = ()
    shared: Mapping[str, torch.Tensor] = field(default_factory=dict)
    linked: LinkedState | None = None  # of linked columns, for newcomers
    sent: Mapping[str, Sequence[SentTensor]] = field(default_factory=dict)  # client → tensors


class Learner(ABC):
    """Learns a model for each client that it serves: a candidate, or what stands for one.

    What newcomers can join stands for a candidate, and so does a mix of several.
    """

    name: str
    title: str
    federated: bool

    @property
    def tasks(self) -> Sequence[TaskName]:
        """Kinds of labels that it can learn."""
        return ("classification", "regression")

    def served(self, encoded: EncodedFederation) -> list[str]:
        """Names of the clients that it can serve."""
        return [silo.name for silo in encoded.silos]

    def refuse(self, encoded: EncodedFederation, settings: FitSettings) -> None:
        """Refuse settings that it cannot learn with on these clients; most learn with any."""
        del encoded, settings

    @abstractmethod
    def learn(self, encoded: EncodedFederation, settings: FitSettings, *, seed: int) -> Learned:
        """Models of the served clients, learnt from their training rows."""


@dataclass(frozen=True)
class Run:
    """A run in memory, up to its latest step."""

    engine: Engine
    journal: MemoryJournal
    settings: MethodSettings
    jobs: TrafficCounter

    @property
    def server(self) -> ServerState:
        """The shared part."""
        return self.journal.server or self.engine.method.init_server()


OnRunStep = Callable[[Record, Run], None]
"""Called after every step with its record and the run so far."""


@dataclass(frozen=True)
class Candidate(Learner):
    """A view of the clients' columns, a method, and changes of its settings."""

    name: str
    title: str
    method: str
    view: View = own_columns
    changes: Mapping[str, Any] = field(default_factory=dict[str, Any])
    federated: bool = True

    @property
    def tasks(self) -> Sequence[TaskName]:
        return METHODS[self.method].tasks

    def served(self, encoded: EncodedFederation) -> list[str]:
        return list(self.view(encoded))

    def refuse(self, encoded: EncodedFederation, settings: FitSettings) -> None:
        own = settings.method_with(self.changes)
        engine = self._engine(encoded, settings, own, settings.seed)
        engine.method.init_server()
        if engine.method.stages:
            num_active(len(engine.clients.names), own.training.participation)

    def simulate(
        self,
        encoded: EncodedFederation,
        settings: FitSettings,
        *,
        seed: int,
        on_step: OnRunStep = lambda record, run: None,
    ) -> Run:
        """The whole run, of which clients are measured at the end only."""
        own = settings.method_with(self.changes)
        engine = self._engine(encoded, settings, own, seed)
        run = Run(engine, MemoryJournal(), own, TrafficCounter(engine))
        if engine.method.stages:  # else each client learns its model when it is exported
            schedule = Schedule.of(own.training, evaluate_every=0)
            rounds = local_rounds(run.jobs, schedule, run.journal, stack_width=STACK_WIDTH)
            for record in rounds.steps():
                on_step(record, run)
        return run

    def _engine(
        self, encoded: EncodedFederation, settings: FitSettings, own: MethodSettings, seed: int
    ) -> Engine:
        seen = self.view(encoded)
        silos = [silo for silo in encoded.silos if silo.name in seen]
        clients = tuple(seen[silo.name].client(silo, own) for silo in silos)
        data = FederatedData("tables", encoded.task, clients)
        return Engine.of(settings.variant(self.method), own, data, seed=seed)

    def learn(self, encoded: EncodedFederation, settings: FitSettings, *, seed: int) -> Learned:
        run, seen = self.simulate(encoded, settings, seed=seed), self.view(encoded)
        method, server, clients = run.engine.method, run.server, run.engine.clients
        silos = {silo.name: silo for silo in encoded.silos}
        models: dict[str, Model] = {}
        for name, state in zip(clients.names, run.journal.states(clients.names), strict=True):
            columns, client = seen[name], clients[name]
            exported = columns.in_own_units(method.export(server, client, state), silos[name])
            origin = Origin(method.name, run.settings, encoded.task, client, columns.inputs)
            models[name] = EXPORTED[exported.kind].of(exported, origin)
        state = LinkedState(clients.population.shared, seed, server.shared)
        linked = state if method.sends_sums else None
        return Learned(models, run.journal.records, server.shared, linked, run.jobs.sent())
