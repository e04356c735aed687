"""Candidate: one way to get a model for a client."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from flic.data.task import TaskName
from flic.engine.journal import Record
from flic.engine.rounds import Schedule
from flic.engine.traffic import SentTensor
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

    @abstractmethod
    def learn(self, encoded: EncodedFederation, settings: FitSettings, *, seed: int) -> Learned:
        """Models of the served clients, learnt from their training rows."""


def schedule(settings: MethodSettings) -> Schedule:
    """The rounds of a fit; clients are measured at the end only."""
    return Schedule.of(settings.training, evaluate_every=0)
