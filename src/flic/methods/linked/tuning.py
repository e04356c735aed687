"""Tuning of the predictors of linked features: the settings to try, and how answers are scored.

The three predictors are described in `client.py`.
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

_EVER = float("inf")
_LEANING = list(product((2.0, 8.0, 32.0, _EVER), (30.0, _EVER)))  # τ, ν


class Tuning(ABC):
    """What predictors are asked: which settings there are, and how good an answer is."""

    own: ClassVar[Sequence[Shrinkage]]
    pooled: ClassVar[Sequence[Shrinkage]]
    temperatures: ClassVar[Sequence[float]]  # factors on the scores
    word: ClassVar[str]  # for what score is

    def grid(self, name: Predictor) -> int:
        """Number of settings of a predictor; the linked one has private features or not."""
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
        """Mean over rows of how good the answers to scores are; more is better."""


class Classes(Tuning):
    """Which class a row is of; score is the log-likelihood."""

    own = tuple(Shrinkage(0.0, 0.0, g) for g in (0.05, 0.1, 0.3, 0.5, 0.7, 0.9))
    pooled = tuple(Shrinkage(t, n, g) for t, n in _LEANING for g in (0.05, 0.2, 0.5, 0.8))
    temperatures = tuple(2.0**e for e in range(-5, 2))
    word = "log-likelihood"

    def answers(self, scores: Tensor) -> Tensor:
        return scores.log_softmax(-1)

    def score(self, scores: Tensor, truth: Tensor) -> Tensor:
        # Of the answers only that of the truth, which is a third of the work.
        of_truth = scores[..., torch.arange(len(truth)), truth] - scores.logsumexp(-1)
        # A single hopeless row must not outvote all others.
        return of_truth.clamp_min(-10.0).mean(-1)


class Responses(Tuning):
    """Which response a row has; score is the squared error in units of all, its sign turned."""

    own = tuple(Shrinkage(0.0, 0.0, g) for g in (0.001, 0.01, 0.03, 0.1, 0.3, 0.5, 0.7, 0.9))
    pooled = tuple(Shrinkage(t, n, g) for t, n in _LEANING for g in (0.003, 0.03, 0.1, 0.3, 0.7))
    temperatures = (1.0,)
    word = "negative squared error"

    def answers(self, scores: Tensor) -> Tensor:
        return scores

    def score(self, scores: Tensor, truth: Tensor) -> Tensor:
        return -(scores[..., 0] - truth).square().clamp_max(10.0).mean(-1)


def tuning_of(task: Task) -> Tuning:
    """What predictors are asked about a task."""
    return Classes() if isinstance(task, Classification) else Responses()
