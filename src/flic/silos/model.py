"""Model: the interface of a client's model, which reads encoded rows and saves plain values."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from flic.data.client_data import ClientData
from flic.data.task import Task
from flic.method_settings import MethodSettings
from flic.methods.protocol import Exported

#: Lower bound on probabilities; the logarithm of 0 would dominate every mean.
FLOOR = 1e-6


@dataclass(frozen=True, eq=False)
class Features:
    """Encoded rows in both forms that models read; each is made when first used."""

    make_standard: Callable[[], np.ndarray]
    make_plain: Callable[[], np.ndarray]

    @cached_property
    def standard(self) -> np.ndarray:
        """Features standardised by the client's own rows."""
        return self.make_standard()

    @cached_property
    def plain(self) -> np.ndarray:
        """Features in units that mean the same at every client."""
        return self.make_plain()


@dataclass(frozen=True)
class Saved:
    """A model in the form that files hold."""

    kind: str
    facts: dict[str, Any]
    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    trees: bytes = b""  # boosting only, in skops' format


@dataclass(frozen=True)
class Origin:
    """The run that a model comes from, and the client as its method saw it."""

    method: str
    settings: MethodSettings
    task: Task
    client: ClientData
    inputs: tuple[int, ...]  # positions of the client's features among its encoded ones


class Model(ABC):
    """A fitted model of one client."""

    kind: ClassVar[str]

    @abstractmethod
    def predict(self, rows: Features) -> np.ndarray:
        """Log-probabilities of the classes, or responses in one column, of encoded rows."""

    @abstractmethod
    def reads(self, features: Sequence[str]) -> bool:
        """Return whether it was learnt from features with these common names."""

    @abstractmethod
    def save(self) -> Saved:
        """The model as plain values."""

    @classmethod
    @abstractmethod
    def load(cls, saved: Saved, task: Task) -> "Model":
        """The model from plain values."""


class MethodModel(Model):
    """A model that a method has exported."""

    @classmethod
    @abstractmethod
    def of(cls, exported: Exported, origin: Origin) -> "MethodModel":
        """The model for a client's encoded rows."""


def log_probabilities(scores: np.ndarray) -> np.ndarray:
    """Normalised class scores; −∞ stays for classes that a client does not hold."""
    return torch.log_softmax(torch.from_numpy(scores).double(), 1).numpy()


def tempered(predicted: np.ndarray, temperature: float | None) -> np.ndarray:
    """Log-probabilities at a temperature; responses as they are."""
    return predicted if temperature is None else log_probabilities(predicted * temperature)
