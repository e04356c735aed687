"""Figures of a silo's held-out rows, as they leave it.

The shared part makes the model of linked columns, so whoever chooses it chooses the predictions:
one row can be given an error that dwarfs all others, and exact sums of errors would tell its
response, in one run or as the difference of two. Or all rows get one class, and right predictions
are the number of its rows; or the one row that is older than the others gets it, and one more right
prediction is its class.
"""

from dataclasses import asdict, fields
from hashlib import blake2b

from torch import Tensor

from flic.data.task import Regression, Task
from flic.engine.score import Errors, Hits
from flic.methods.linked.rounding import rounded_sum


def figure_names(task: Task) -> list[str]:
    """Names of all figures that a silo tells."""
    kind = Errors if isinstance(task, Regression) else Hits
    return [f"test_{own.name}" for own in fields(kind)]


def figures_told(
    task: Task, predicted: Tensor, y: Tensor, *, least: int, key: bytes
) -> dict[str, float]:
    """Rounded sums over held-out rows, less classes of fewer than `least`; none if none are left.

    A row moves no sum by more than one step; the number of rows is exact.

    Args:
        task: the task.
        predicted: scores or responses of the held-out rows.
        y: their classes or responses.
        least: fewest rows of a class, and the step of right predictions.
        key: the silo's own, without which nobody knows how these were rounded.
    """
    if not isinstance(task, Regression):
        is_told = y.bincount()[y] >= least
        predicted, y = predicted[is_told], y[is_told]
    if not len(y):
        return {}
    if isinstance(task, Regression):
        parts = Errors.parts(predicted, y)
        sums = {name: rounded_sum(own) for name, own in parts.items()} | {"rows": len(y)}
    else:
        sums = asdict(Hits(_rounded_hits(predicted.argmax(1) == y, step=least, key=key), len(y)))
    return {f"test_{name}": float(value) for name, value in sums.items()}


def _rounded_hits(right: Tensor, *, step: int, key: bytes) -> int:
    """A multiple of a step near the number of right rows, or all rows; right in the mean.

    Up or down is drawn by odds that make the mean exact. The same rows right draw the same, since
    a mean of many draws would be exact too; others draw anew, since where the number turns from one
    multiple to the next, a row less would show for certain, and few questions find that place.
    """
    rows, hits = len(right), int(right.sum())
    below = min(hits // step, rows // step - 1) * step
    above = below + step if rows - below >= 2 * step else rows  # the last step is the longest
    drawn = blake2b(right.numpy().tobytes(), key=key, digest_size=8).digest()
    is_above = int.from_bytes(drawn) % (above - below) < hits - below
    return above if is_above else below
