"""Tuning of the predictors of linked features: the settings to try, and the score of answers.

The three predictors are described in `linked_client.py`.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import product
from typing import ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from flic.data.task import Classification, Task
from flic.methods.linked.discriminants import Shrinkage

Predictor = Literal["own", "linked", "mapped"]
PREDICTORS: tuple[Predictor, ...] = ("own", "linked", "mapped")

WEIGHTS = [(a / 4, b / 4, (4 - a - b) / 4) for a in range(5) for b in range(5 - a)]  # of PREDICTORS

WORST = -10.0
"""Least score of a row: a hopeless one must not outvote all others."""

_WORST_TOLD = -4.0
"""The same of a likelihood that is sent in steps of what a row can add: less makes finer steps."""

_EVER = float("inf")
_LEANING = list(product((2.0, 8.0, 32.0, _EVER), (30.0, _EVER)))  # τ, ν


class Tuning(ABC):
    """Settings to try for the predictors of a task, and the score of their answers."""

    own: ClassVar[Sequence[Shrinkage]]
    pooled: ClassVar[Sequence[Shrinkage]]
    temperatures: ClassVar[Sequence[float]]  # factors on the scores
    word: ClassVar[str]  # name of the score

    def __init__(self, *, worst: float = WORST) -> None:
        self.worst = worst  # score of a row, at least

    def grid(self, name: Predictor) -> int:
        """Number of settings; the linked predictor has each with and without private features."""
        if name == "own":
            return len(self.own)
        return len(self.pooled) * (2 if name == "linked" else 1)

    def tempered(self, scores: Float[Tensor, "settings rows held"]) -> Tensor:
        """Scores at every temperature, [settings, temperatures, rows, held]."""
        temperatures = torch.tensor(self.temperatures, dtype=torch.float64)
        return scores[:, None] * temperatures[:, None, None]

    def mixed(self, parts: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
        """Scores of a mix of predictors."""
        mixed = sum(w * part for w, part in zip(weights, parts, strict=True) if w)
        assert isinstance(mixed, Tensor)
        return mixed

    @abstractmethod
    def answers(self, scores: Float[Tensor, "*grid rows held"]) -> Float[Tensor, "*grid rows held"]:
        """Log-probabilities, or responses."""

    @abstractmethod
    def score(self, scores: Float[Tensor, "*grid rows held"], truth: Tensor) -> Tensor:
        """Mean score of the answers over rows; more is better."""


class Classes(Tuning):
    """Classification; the score is the log-likelihood."""

    own = tuple(Shrinkage(0.0, 0.0, g) for g in (0.05, 0.1, 0.3, 0.5, 0.7, 0.9))
    pooled = tuple(Shrinkage(t, n, g) for t, n in _LEANING for g in (0.05, 0.2, 0.5, 0.8))
    temperatures = tuple(2.0**e for e in range(-5, 2))
    word = "log-likelihood"

    def answers(self, scores: Tensor) -> Tensor:
        return scores.log_softmax(-1)

    def score(self, scores: Tensor, truth: Tensor) -> Tensor:
        # Only the answer for the true class, which is a third of the work.
        of_truth = scores[..., torch.arange(len(truth)), truth] - scores.logsumexp(-1)
        return of_truth.clamp_min(self.worst).mean(-1)


class Responses(Tuning):
    """Regression; the score is the negative squared error in common units."""

    own = tuple(Shrinkage(0.0, 0.0, g) for g in (0.001, 0.01, 0.03, 0.1, 0.3, 0.5, 0.7, 0.9))
    pooled = tuple(Shrinkage(t, n, g) for t, n in _LEANING for g in (0.003, 0.03, 0.1, 0.3, 0.7))
    temperatures = (1.0,)
    word = "negative squared error"

    def answers(self, scores: Tensor) -> Tensor:
        return scores

    def score(self, scores: Tensor, truth: Tensor) -> Tensor:
        return (-(scores[..., 0] - truth).square()).clamp_min(self.worst).mean(-1)


def tuning_of(task: Task, *, hides_rows: bool = False) -> Tuning:
    """The tuning for a task; `hides_rows` if scores leave in steps of what a row can add."""
    if isinstance(task, Classification):
        return Classes(worst=_WORST_TOLD if hides_rows else WORST)
    return Responses()
