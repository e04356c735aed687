"""Figures of a silo's held-out rows, as they leave it.

The shared part makes the model of linked columns, so whoever chooses it chooses the predictions:
one row can be given an error that dwarfs all others, and exact sums of errors would tell its
response, in one run or as the difference of two. Sums in steps of the largest error would tell it
too: bit by bit, by where the step doubles. Or all rows get one class, and right predictions
are the number of its rows; or the one row that is older than the others gets it, and one more right
prediction is its class.
"""

from dataclasses import asdict, fields
from hashlib import blake2b
from math import ceil, log2

from torch import Tensor

from flic.data.task import Regression, Task
from flic.engine.score import Errors, Hits
from flic.methods.linked.rounding import rounded_sum

CUT = 0.25
"""Largest error that counts, as a share of the declared range; more if responses differ by more."""

WIDE = 2.0**20
"""Range of responses up to which sums of squared errors fit into a masked number as they are."""


def figure_names(task: Task) -> list[str]:
    """Names of all figures that a silo tells."""
    kind = Errors if isinstance(task, Regression) else Hits
    return [f"test_{own.name}" for own in fields(kind)]


def figure_scales(task: Task) -> dict[str, float]:
    """Unit in which each figure is added, so that any range of responses fits into a sum."""
    unit = max(1.0, task.width / WIDE) if isinstance(task, Regression) else 1.0
    powers = {"test_squared_error": 2, "test_spread": 2, "test_absolute_error": 1}
    return {name: unit ** powers.get(name, 0) for name in figure_names(task)}


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
        sums = asdict(_rounded_errors(predicted, y, largest=largest_error(task, y), key=key))
    else:
        sums = asdict(Hits(_rounded_hits(predicted.argmax(1) == y, step=least, key=key), len(y)))
    return {f"test_{name}": float(value) for name, value in sums.items()}


def largest_error(task: Regression, y: Tensor) -> float:
    """The largest error that counts: of the task and the responses alone, whatever is predicted.

    Were it of the range alone, a range of next to nothing would show who has a response.
    """
    apart = float((y.double() - y.double().mean()).abs().max())
    return max(CUT * task.width, 2.0 ** ceil(log2(apart)) if apart else 0.0)


def _rounded_errors(predicted: Tensor, y: Tensor, *, largest: float, key: bytes) -> Errors:
    """Sums of errors in steps of the largest that counts, so that no row has more than one in them.

    The spread is of no prediction: it is the same in every run, and has a step of its own.
    """
    missed = (predicted[:, 0].double() - y.double()).abs()
    missed = missed.nan_to_num(nan=largest).clamp(max=largest)
    return Errors(
        squared_error=_in_steps(missed.square(), largest**2, key),
        absolute_error=_in_steps(missed, largest, key),
        spread=rounded_sum(Errors.parts(predicted, y)["spread"]),
        rows=len(y),
    )


def _in_steps(parts: Tensor, step: float, key: bytes) -> float:
    """A multiple of a step near the sum of the parts; right in the mean, as with right rows."""
    below, rest = divmod(float(parts.sum()) / step, 1)
    return step * (below + (_drawn(parts, key) / 2**64 < rest))


def _drawn(parts: Tensor, key: bytes) -> int:
    """A number of 64 bits that follows from rows' parts in a sum, for who has the key."""
    return int.from_bytes(blake2b(parts.numpy().tobytes(), key=key, digest_size=8).digest())


def _rounded_hits(right: Tensor, *, step: int, key: bytes) -> int:
    """A multiple of a step near the number of right rows, or all rows; right in the mean.

    Up or down is drawn by odds that make the mean exact. The same rows right draw the same, since
    a mean of many draws would be exact too; others draw anew, since where the number turns from one
    multiple to the next, a row less would show for certain, and few questions find that place.
    """
    rows, hits = len(right), int(right.sum())
    below = min(hits // step, rows // step - 1) * step
    above = below + step if rows - below >= 2 * step else rows  # the last step is the longest
    is_above = _drawn(right, key) % (above - below) < hits - below
    return above if is_above else below
