"""Figures of a silo's held-out rows, as they leave it.

The shared part makes the model of linked columns, so whoever chooses it chooses the predictions:
one row can be given an error that dwarfs all others, and exact sums of errors would tell its
response, in one run or as the difference of two.
"""

from dataclasses import asdict

from torch import Tensor

from flic.data.task import Regression, Task
from flic.engine.score import Errors, Hits
from flic.methods.linked.rounding import rounded_sum


def figures_told(task: Task, predicted: Tensor, y: Tensor) -> dict[str, float]:
    """Sums over held-out rows: of classes counts, and of errors sums that are rounded.

    A row moves no sum by more than one step; the number of rows is exact.
    """
    if not isinstance(task, Regression) or not len(y):
        kind = Errors if isinstance(task, Regression) else Hits
        sums = asdict(kind.of(predicted, y))
    else:
        parts = Errors.parts(predicted, y)
        sums = {name: rounded_sum(own) for name, own in parts.items()} | {"rows": len(y)}
    return {f"test_{name}": float(value) for name, value in sums.items()}
