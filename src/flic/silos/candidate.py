"""Candidate: one way to get a model for a client."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from flic.data.task import TaskName
from flic.engine.engine import Engine
from flic.engine.journal import MemoryJournal, Record
from flic.engine.rounds import Schedule
from flic.engine.runners import local_rounds
from flic.engine.traffic import SentTensor, TrafficCounter
from flic.method_settings import MethodSettings
from flic.silos.encoding import EncodedFederation
from flic.silos.fit_settings import FitSettings
from flic.silos.linked_state import LinkedState
from flic.silos.model import Model

STACK_WIDTH = 100


@dataclass(frozen=True)
class Learned:
    """Models of the clients that a candidate serves, and the shared state after training."""

    models: Mapping[str, Model]
    records: Sequence[Record] = ()
    shared: Mapping[str, torch.Tensor] = field(default_factory=dict)
    linked: LinkedState | None = None  # of linked columns, for newcomers
    sent: Mapping[str, Sequence[SentTensor]] = field(default_factory=dict)  # client → tensors


class Candidate(ABC):
    """One way to get a model."""

    name: str
    title: str
    federated: bool
    tasks: tuple[TaskName, ...] = ("classification", "regression")

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


OnRunStep = Callable[[Record, Run], None]
"""Called after every step with its record and the run so far."""


def run_in_memory(
    engine: Engine, settings: MethodSettings, *, on_step: OnRunStep = lambda record, run: None
) -> Run:
    """All rounds of an engine; clients are measured at the end only."""
    run = Run(engine, MemoryJournal(), settings, TrafficCounter(engine))
    schedule = Schedule.of(settings.training, evaluate_every=0)
    rounds = local_rounds(run.jobs, schedule, run.journal, stack_width=STACK_WIDTH)
    for record in rounds.steps():
        on_step(record, run)
    return run
