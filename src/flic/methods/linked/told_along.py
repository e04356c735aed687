"""A client's sums along directions as it sends them: rounded, and of no row that stands out.

Directions are weightings of the columns, so that the rules for products of two columns hold for
products of a column with a direction (`hiding.py`). A row that is too large a part of what rows
differ by along the directions is left out; a column that is rarely unusual together with a
direction has no products.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from flic.methods.linked.along import Along
from flic.methods.linked.hiding import Usual, rare_across
from flic.methods.linked.rounding import rounded_products
from flic.methods.linked.sums import ColumnIndex, Parts, Totals

_RANK = 1e-9
"""Share of the largest eigenvalue below which a direction is rounding error."""

_DIGITS = 9
"""Digits of a row's place along a direction, of which equal rows have the same."""


@dataclass(frozen=True)
class RowsInSums:
    """Rows behind a client's sums, and what their columns are."""

    parts: Callable[[], Parts]
    sources: Sequence[int]  # column of the table that each comes from
    usual: Usual


def along_as_sent(
    rows: RowsInSums,
    directions: Float[Tensor, "own d"],
    pooled: Float[Tensor, " own"],
    *,
    num_classes: int,
    least: int,
) -> Along | None:
    """Sums of rows along directions; None if no row may be in them.

    Args:
        rows: the rows.
        directions: M, of the client's columns.
        pooled: rows less classes that have each column, of all clients.
        num_classes: number of classes.
        least: rows that a person can hide among; with 1 nothing is hidden.
    """
    width = len(directions)
    classes = torch.cat([y for _, y in rows.parts()])
    counts = torch.bincount(classes, minlength=num_classes)
    kept, told = torch.ones(len(classes), dtype=torch.bool), torch.ones(width, dtype=torch.bool)
    if least > 1:
        told = ~_rare_columns(rows, directions, least)
        directions = directions * told[:, None]
        kept = _common_rows(_places(rows, directions), classes, least)
    if not bool(kept.any()):
        return None
    along = _products(rows, kept, directions, num_classes, least) * told[:, None]
    core = directions.mT @ along
    behind = float(kept.sum()) - len(classes[kept].unique())
    return Along(
        along,
        torch.full((width,), max(0.0, behind), dtype=torch.float64),
        (core + core.mT) / 2,
        _overlap(float(counts.sum() - (counts > 0).sum()), pooled),
    )


def _places(rows: RowsInSums, directions: Float[Tensor, "own d"]) -> Float[Tensor, "rows d"]:
    """Mᵀh of every row."""
    return torch.cat([h.double() @ directions for h, _ in rows.parts()])


def _products(
    rows: RowsInSums,
    kept: Bool[Tensor, " rows"],
    directions: Float[Tensor, "own d"],
    num_classes: int,
    least: int,
) -> Float[Tensor, "own d"]:
    """Σ r (Mᵀr)ᵀ of what some rows differ by from the means of their classes."""

    def parts() -> Parts:
        first = 0
        for h, y in rows.parts():
            own = kept[first : first + len(h)]
            yield h[own].double(), y[own]
            first += len(h)

    width = len(directions)
    totals = Totals.of_parts(parts(), ColumnIndex(num_classes, torch.arange(width), width))
    means = totals.total / totals.count.clamp_min(1)

    def pairs() -> Iterator[tuple[Tensor, Tensor]]:
        residuals = (h - means[y] for h, y in parts() if len(h))
        return ((own, own @ directions) for own in residuals)

    if least > 1:
        return rounded_products(pairs)
    found = torch.zeros(width, directions.shape[1], dtype=torch.float64)
    for residuals, along in pairs():
        found.addmm_(residuals.mT, along)
    return found


def _overlap(own: float, pooled: Float[Tensor, " p"]) -> Float[Tensor, " 2"]:
    """A client's part of how many of the rows of two columns have both; see `Along.together`."""
    inverse = 1 / pooled[pooled > 0]
    return own * torch.stack([inverse.sqrt().sum().square(), inverse.sum()])


def _rare_columns(
    rows: RowsInSums, directions: Float[Tensor, "own d"], least: int
) -> Bool[Tensor, " own"]:
    """Columns of which few rows are unusual together with a direction, with those of one source."""
    places = _places(rows, directions)
    unit = places.abs().amax(0)
    places = (places / torch.where(unit > 0, unit, 1.0)).round(decimals=_DIGITS)
    along = Usual.of(places)
    twice = (places == along.value).sum(0) > 1  # a value that one row has is not common
    along = Usual(torch.where(twice, along.value, torch.nan), along.two_valued)
    first, pairs = 0, []
    for h, _ in rows.parts():
        pairs.append((h, places[first : first + len(h)]))
        first += len(h)
    rare = rare_across(pairs, rows.usual, along, least).any(1)
    sources = torch.tensor(rows.sources)
    return torch.isin(sources, sources[rare])


def _common_rows(
    places: Float[Tensor, "rows d"], y: Int[Tensor, " rows"], least: int
) -> Bool[Tensor, " rows"]:
    """Rows that are not 1/(least − 1) of the rest in any weighting of directions and classes."""
    kept = torch.ones(len(places), dtype=torch.bool)
    while bool(kept.any()):
        onto = torch.nn.functional.one_hot(y[kept]).double()
        held = onto.sum(0)
        own = places[kept] - onto @ ((onto.mT @ places[kept]) / held.clamp_min(1)[:, None])
        scale = own.square().sum(0).sqrt()
        own = own / torch.where(scale > 0, scale, 1.0)
        values, vectors = torch.linalg.eigh(own.mT @ own)
        sound = values > _RANK * values[-1].clamp_min(1e-300)
        shares = (own @ (vectors[:, sound] / values[sound].sqrt())).square().sum(1)
        stand_out = shares + 1 / held[y[kept]] >= 1 / (least - 1)
        if not bool(stand_out.any()):
            break
        kept[kept.nonzero().flatten()[stand_out]] = False
    return kept
