"""What a model of a client is: it reads encoded rows, and is saved as plain values."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from flic.data.task import Task

#: Probability below which nothing is believed; the logarithm of 0 would rule every mean.
FLOOR = 1e-6


@dataclass(frozen=True, eq=False)
class Features:
    """Encoded rows in both forms that models read; each is made when one asks for it."""

    make_standard: Callable[[], np.ndarray]
    make_plain: Callable[[], np.ndarray]

    @cached_property
    def standard(self) -> np.ndarray:
        """Standardised by the client's own rows."""
        return self.make_standard()

    @cached_property
    def plain(self) -> np.ndarray:
        """In units that mean the same at every client."""
        return self.make_plain()


@dataclass(frozen=True)
class Saved:
    """A model as it lies in a file."""

    kind: str
    facts: dict[str, Any]
    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    trees: bytes = b""  # boosting only, in skops' format


class Model(ABC):
    """A fitted model of one client."""

    kind: ClassVar[str]

    @abstractmethod
    def predict(self, rows: Features) -> np.ndarray:
        """Log-probabilities of the classes, or responses in one column, of encoded rows."""

    @abstractmethod
    def reads(self, features: Sequence[str]) -> bool:
        """Whether rows of features that all know by these names are what it was learnt from."""

    @abstractmethod
    def save(self) -> Saved:
        """The model as plain values."""

    @classmethod
    @abstractmethod
    def load(cls, saved: Saved, task: Task) -> "Model":
        """The model from plain values."""


def log_probabilities(scores: np.ndarray) -> np.ndarray:
    """Normalised class scores; −∞ stays for classes that a client does not hold."""
    return torch.log_softmax(torch.from_numpy(scores).double(), 1).numpy()


def tempered(predicted: np.ndarray, temperature: float | None) -> np.ndarray:
    """Log-probabilities at a temperature; responses as they are."""
    return predicted if temperature is None else log_probabilities(predicted * temperature)
