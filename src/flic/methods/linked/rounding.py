"""Rounding of sums before they leave a client, so that no digit of them is one row's.

Exact sums tell more than their size does: if all weights are whole kilograms but one, the digits
behind the point are that person's, and so is the difference of two runs' sums. A sum over n rows is
only known to about √(Σ r²) in any case, where r is a row's difference from the mean of its class.
It is rounded to a quarter of that, or to the largest |r|, whichever is more, and then to the next
power of two. The first adds one or two per cent to the variance of a mean, which is next to
nothing; with the second, no row alone moves a sum by more than one step.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from flic.methods.linked.sums import ColumnIndex, Moments, Parts, Totals

SHARE = 0.25
"""Step of a rounded sum, as a share of its sampling error."""

S = TypeVar("S", bound=Totals)


def rounded(sums: S, parts: Callable[[], Parts], index: ColumnIndex) -> S:
    """The sums of these rows, each rounded to a step of its own; counts stay as they are.

    Args:
        sums: sums of the rows, in the features of a space.
        parts: function that gives the rows part by part; called twice.
        index: positions of the client's features in that space.
    """
    count, total = (side[:, index.positions] for side in (sums.count, sums.total))
    means = total / count.clamp_min(1)
    squares, largest = torch.zeros_like(means), torch.zeros_like(means)
    for rows, y in parts():
        residuals = rows.double() - means[y]
        squares.index_add_(0, y, residuals.square())
        for c in y.unique():
            largest[c] = torch.maximum(largest[c], residuals[y == c].abs().amax(0))
    steps = _step(squares.sqrt(), largest)
    found = replace(sums, total=_to_multiples(sums.total, index.rows(steps)))
    if not isinstance(found, Moments):
        return found
    steps = index.pairs(_steps_of_products(parts(), means, largest.amax(0)))
    return replace(found, scatter=_to_multiples(found.scatter, steps))


def rounded_sum(parts: Float[Tensor, " n"]) -> float:
    """Sum of the parts of rows, none of which moves it by more than one step."""
    error = (parts - parts.mean()).norm()
    return float(_to_multiples(parts.sum(), _step(error, parts.abs().amax())))


def _steps_of_products(
    parts: Parts, means: Float[Tensor, "classes p"], largest: Float[Tensor, " p"]
) -> Float[Tensor, "p p"]:
    """Steps of Σ r_j r_l, in units of the largest r finite for every column."""
    unit = torch.where(largest > 0, largest, 1.0)
    residuals = ((rows.double() - means[y]) / unit for rows, y in parts)
    return _steps_of_pairs(((own, own) for own in residuals), unit, unit)


def _steps_of_pairs(
    pairs: Iterable[tuple[Tensor, Tensor]], unit: Float[Tensor, " p"], other: Float[Tensor, " q"]
) -> Float[Tensor, "p q"]:
    """Steps of Σ a_j b_l, of parts in these units. The largest part is at most (Σ a_j⁴ b_l⁴)^¼,
    which is a product of matrices.
    """
    second, fourth = torch.zeros(2, len(unit), len(other), dtype=torch.float64)
    for a, b in pairs:
        second.addmm_(a.square().mT, b.square())
        fourth.addmm_(a.square().square().mT, b.square().square())
    scale = unit[:, None] * other
    return _step(scale * second.sqrt(), scale * fourth.sqrt().sqrt())


def rounded_products(
    pairs: Callable[[], Iterable[tuple[Tensor, Tensor]]],
) -> Float[Tensor, "p q"]:
    """Σ a bᵀ over rows in two forms a and b, each number rounded to a step of its own.

    `pairs` gives the rows part by part, and is called several times.
    """
    parts = [(a.abs().amax(0), b.abs().amax(0)) for a, b in pairs()]
    largest = [torch.stack(side).amax(0) for side in zip(*parts, strict=True)]
    unit, other = (torch.where(size > 0, size, 1.0) for size in largest)
    found = torch.zeros(len(unit), len(other), dtype=torch.float64)
    for a, b in pairs():
        found.addmm_(a.mT, b)
    scaled = ((a / unit, b / other) for a, b in pairs())
    return _to_multiples(found, _steps_of_pairs(scaled, unit, other))


def _step(error: Tensor, largest: Tensor) -> Tensor:
    """A power of two, since an exact step would tell the largest part of a row; 0 if it is 0."""
    return torch.maximum(SHARE * error, largest).log2().ceil().exp2()


def _to_multiples(sums: Tensor, steps: Tensor) -> Tensor:
    return torch.where(steps > 0, (sums / steps).round() * steps, sums)
