"""Score of a client on its own held-out rows, as sums that can be added over clients.

An evaluation returns it, ready for JSON; the report computes shares and R² from it.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields

import torch
from torch import Tensor

from flic.data.task import Regression, Task


@dataclass(frozen=True)
class Hits:
    """Number of right predictions of classes."""

    right: int
    rows: int

    @classmethod
    def of(cls, scores: Tensor, y: Tensor) -> "Hits":
        """Hits of the best-scored classes."""
        return cls(int((scores.argmax(1) == y).sum()), len(y))


@dataclass(frozen=True)
class Errors:
    """Sums over the rows of a regression, in the units of the responses."""

    squared_error: float
    absolute_error: float
    spread: float  # Σ (y − ȳ)² around the mean of these rows
    rows: int

    @classmethod
    def of(cls, responses: Tensor, y: Tensor) -> "Errors":
        """Errors of predicted responses."""
        sums = {name: float(own.sum()) for name, own in cls.parts(responses, y).items()}
        return cls(**sums, rows=len(y))

    @staticmethod
    def parts(responses: Tensor, y: Tensor) -> dict[str, Tensor]:
        """Parts of each row in the sums, by their names."""
        y = y.to(torch.float64)
        error = responses[:, 0].to(torch.float64) - y
        # Equal responses have no spread, but rounding may shift their mean.
        spread = torch.zeros_like(y) if (y == y[:1]).all() else (y - y.mean()).square()
        return {"squared_error": error.square(), "absolute_error": error.abs(), "spread": spread}


KINDS, PARTS = (Hits, Errors), ("validation", "test")


@dataclass(frozen=True)
class Score:
    """Figures of one client on its validation and on its test rows."""

    validation: Hits | Errors
    test: Hits | Errors

    @classmethod
    def of(cls, task: Task, predicted: Tensor, y: Tensor, *, border: int) -> "Score":
        """Score of predictions for validation rows, up to `border`, and test rows after it."""
        kind = Errors if isinstance(task, Regression) else Hits
        parts = (slice(None, border), slice(border, None))
        return cls(*(kind.of(predicted[part], y[part]) for part in parts))

    def figures(self) -> dict[str, float]:
        """All sums by name."""
        both = {"validation": asdict(self.validation), "test": asdict(self.test)}
        return {f"{which}_{name}": v for which, own in both.items() for name, v in own.items()}


def is_score(figures: Mapping[str, float]) -> bool:
    """Return whether figures are those that `Score` gives, of rows that can be."""
    known = ({f"{which}_{f.name}" for which in PARTS for f in fields(kind)} for kind in KINDS)
    return {*figures} in known and all(figures[f"{which}_rows"] >= 0 for which in PARTS)
