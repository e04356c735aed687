"""Protection of single rows: sums are made of a copy in which no row stands out.

A sum over rows shows a row if the rest of them are 0, or known, or small beside it. So sums are
made of a copy of the rows in which no value of a class is rarer than `least` rows, and no
difference of two columns: their sums have it too. Products of two columns are sent only if no
weighting of the columns rests on fewer rows than that. A column's rare values become its commonest
one, so the sums are slightly wrong, and show no single row.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from flic.methods.linked.sums import CHUNK_ROWS, ColumnIndex, Moments, Parts

_RANK = 1e-9
"""Share of the largest eigenvalue below which a direction is rounding error."""

_SAME = 1e-6
"""Share of the largest value below which a difference is rounding error."""

_TRIED = 32
"""Rows by which pairs of columns are chosen for a closer look."""

_ATTEMPTS = 8
"""Times that columns are made to follow others, before one is given up."""


def chunks(
    columns: Float[Tensor, "rows p"], y: Int[Tensor, " rows"]
) -> Iterator[tuple[Tensor, Tensor]]:
    """Rows and their classes, part by part."""
    return zip(columns.split(CHUNK_ROWS), y.split(CHUNK_ROWS), strict=True)


# ---- the copy of the rows --------------------------------------------------------------------


def blurred(
    columns: Float[Tensor, "rows p"],
    y: Int[Tensor, " rows"],
    sources: Sequence[int],
    *,
    least: int,
) -> Float[Tensor, "rows p"]:
    """Rows in which every value that stands out of its class has `least` rows behind it.

    Args:
        columns: the rows.
        y: their classes, each with `least` rows or more.
        sources: column of the client's table that each column comes from; levels of a category
            have one in common, and exclude each other.
        least: rows that a person can hide among.
    """
    levels = _of_one_source(sources, _two_valued(columns))
    columns = _clipped(columns, least)
    for c in y.unique():
        rows = (y == c).nonzero().flatten()
        own = _with_common_values(columns[rows], least)
        for together in levels:
            own[:, together] = _with_common_patterns(own[:, together], least)
        columns[rows] = _with_common_differences(own, least)
    return columns


def rare_indicators(columns: Float[Tensor, "rows p"], *, least: int) -> Bool[Tensor, " p"]:
    """Columns of two values, one of them rare: the name of such a level discloses its rows."""
    ones = (columns == columns.amax(0)).sum(0)
    rare = torch.minimum(ones, len(columns) - ones) < least
    return rare & _two_valued(columns) & (columns.amin(0) < columns.amax(0))


def _two_valued(columns: Float[Tensor, "rows p"]) -> Bool[Tensor, " p"]:
    return ((columns == columns.amin(0)) | (columns == columns.amax(0))).all(0)


def _of_one_source(sources: Sequence[int], two_valued: Tensor) -> list[list[int]]:
    """Positions of indicators that come from one column, where there are several."""
    places: dict[int, list[int]] = {}
    for place, source in enumerate(sources):
        if two_valued[place]:
            places.setdefault(source, []).append(place)
    return [together for together in places.values() if len(together) > 1]


def _clipped(columns: Float[Tensor, "rows p"], least: int) -> Float[Tensor, "rows p"]:
    """Values at most twice as far from the median as the `least`-th largest and smallest are."""
    middle = columns.median(0).values
    low = columns.kthvalue(least, 0).values
    high = columns.kthvalue(len(columns) - least + 1, 0).values
    return columns.maximum(2 * low - middle).minimum(2 * high - middle)


def _with_common_values(own: Float[Tensor, "rows p"], least: int) -> Float[Tensor, "rows p"]:
    """Rows of a class; where a column's other values are rare, it gets its commonest alone."""
    usual = own.mode(0).values
    common = (own == usual).sum(0)
    # Where no value occurs twice, there is no common one that identifies the rest.
    rare = (len(own) - common < least) & (common > 1)
    return torch.where(rare, usual, own)


def _with_common_patterns(own: Float[Tensor, "rows p"], least: int) -> Float[Tensor, "rows p"]:
    """Indicators that exclude each other, rare combinations replaced by the commonest.

    Otherwise all other levels being 0 would disclose a hidden level.
    """
    patterns, which, counts = own.unique(dim=0, return_inverse=True, return_counts=True)
    usual = patterns[counts.argmax()]
    return torch.where((counts[which] < least)[:, None], usual, own)


def _with_common_differences(own: Float[Tensor, "rows p"], least: int) -> Float[Tensor, "rows p"]:
    """Rows of a class; where two columns differ by a constant in all but few rows, in all.

    Of two that keep a difference to others all the same, the later becomes constant.
    """
    for attempt in range(_ATTEMPTS):
        changed = False
        for sign in (1, -1):
            for first, later in _nearly_parallel(own, sign, least):
                follows = sign * own[:, first]
                gap = (own[:, later] - follows).median()
                own[:, later] = follows + gap if attempt + 1 < _ATTEMPTS else own[:, later].median()
                changed = True
        if not changed:
            break
    return own


def _nearly_parallel(own: Float[Tensor, "rows p"], sign: int, least: int) -> list[tuple[int, int]]:
    """Pairs of columns a and b for which b − sign · a has another value in a few rows only.

    Every column is the later of one pair at most. Sums (sign −1) matter for indicators alone.
    """
    varying = (own != own[0]).any(0)
    if sign < 0:
        varying &= _two_valued(own)
    places = varying.nonzero().flatten()
    columns = own[:, places]
    if not len(places):
        return []
    found = _agreeing(columns, sign, least).triu(1).nonzero()
    pairs: dict[int, int] = {}
    for part in found.split(CHUNK_ROWS):
        gaps = columns[:, part[:, 1]] - sign * columns[:, part[:, 0]]
        away = (gaps - gaps.median(0).values).abs()
        off = (away > _SAME * columns[:, part[:, 1]].abs().amax(0)).sum(0)
        for first, later in part[(off > 0) & (off < least) & (2 * off < len(own))].tolist():
            pairs.setdefault(int(places[later]), int(places[first]))
    return [(first, later) for later, first in pairs.items()]


def _agreeing(columns: Float[Tensor, "rows q"], sign: int, least: int) -> Bool[Tensor, "q q"]:
    """Pairs that differ by a constant in all but few of some rows, at which the others are tried.

    Of `least` rows one at least is none of the few, so all steps from it are compared.
    """
    some = columns[torch.linspace(0, len(columns) - 1, min(len(columns), _TRIED)).long()]
    most = torch.zeros(columns.shape[1], columns.shape[1], dtype=torch.int16)
    for start in some[:least]:
        steps = (some - start).float()
        equal = torch.zeros_like(most)
        for step in steps:
            equal += step[:, None] == sign * step
        most = torch.maximum(most, equal)
    return most > len(some) - least


# ---- products of two columns -----------------------------------------------------------------


@dataclass(frozen=True)
class Usual:
    """The commonest value of each column, and whether it has only one other."""

    value: Float[Tensor, " p"]
    two_valued: Bool[Tensor, " p"]

    @classmethod
    def of(cls, columns: Float[Tensor, "rows p"]) -> "Usual":
        """The commonest values of rows."""
        return cls(columns.mode(0).values, _two_valued(columns))


def told_pairs(
    parts: Callable[[], Parts],
    usual: Usual,
    sources: Sequence[int],
    *,
    num_classes: int,
    least: int,
    wanted: Float[Tensor, " p"] | None = None,
) -> Bool[Tensor, "p p"]:
    """Pairs of columns whose products may be sent; always a column with itself.

    Args:
        parts: function that gives the rows part by part; called several times.
        usual: the commonest values.
        sources: column of the table that each column comes from.
        num_classes: number of classes.
        least: rows that a person can hide among.
        wanted: priority of each column; those with the highest are left out last. None: equal.
    """
    common = _common_columns(parts, len(sources), num_classes, least, wanted)
    told = ~_rare_pairs(parts(), usual, sources, least) & common & common[:, None]
    return told | torch.eye(len(sources), dtype=torch.bool)


def _rare_pairs(
    parts: Parts, usual: Usual, sources: Sequence[int], least: int
) -> Bool[Tensor, "p p"]:
    """Pairs of sources in which few rows have an unusual value of both.

    In a column with two values, rows with the usual one are counted as well.
    """
    width, two = len(sources), usual.two_valued
    cells = torch.zeros(3, width, width, dtype=torch.float64)
    for rows, _ in parts:
        off = (rows != usual.value).double()
        cells += torch.stack([off.mT @ off, off.mT @ (1 - off), (1 - off).mT @ (1 - off)])
    few = (cells > 0) & (cells < least)
    rare = few[0] | (few[1] & two) | (few[1] & two).mT | (few[2] & two & two[:, None])
    # A level left out follows from the other levels of its column: all are sent, or none.
    onto = torch.nn.functional.one_hot(torch.tensor(sources)).double()
    between = onto.mT @ rare.double() @ onto > 0
    apart = onto @ between.double() @ onto.mT > 0
    return apart & (torch.tensor(sources)[:, None] != torch.tensor(sources))


def _common_columns(
    parts: Callable[[], Parts],
    width: int,
    num_classes: int,
    least: int,
    wanted: Tensor | None,
) -> Bool[Tensor, " p"]:
    """Columns of which no weighting, classes included, rests by 1/(least − 1) on one row.

    The share of a row in Σ (v·x)², at the weights v that make it largest, is its leverage. A sum
    over fewer than `least` rows has a row with a larger share than that.
    """
    sums = Moments.of_parts(parts(), ColumnIndex(num_classes, torch.arange(width), width))
    told = sums.scatter.diagonal() > 0
    # Leverages sum to the number of columns; more of them than this would be left out anyway.
    most = int(sums.count[:, 0].sum()) // (2 * (least - 1))
    rank = torch.zeros(width) if wanted is None else wanted
    told &= torch.isin(torch.arange(width), rank.argsort(descending=True, stable=True)[:most])
    while bool(told.any()):
        kept = told.nonzero().flatten()
        single_out = _singling_out(parts(), sums.at(kept), kept, 1 / (least - 1))
        if not bool(single_out.any()):
            break
        told[kept[single_out]] = False
    return told


def _singling_out(
    parts: Parts, sums: Moments, kept: Int[Tensor, " kept"], most: float
) -> Bool[Tensor, " kept"]:
    """Columns that add most to the leverage of a row, for rows with `most` or more."""
    means, scale = sums.total / sums.count.clamp_min(1), sums.scatter.diagonal().sqrt()
    values, vectors = torch.linalg.eigh(sums.scatter / scale / scale[:, None])
    sound = values > _RANK * values[-1]
    inverse = (vectors[:, sound] / values[sound]) @ vectors[:, sound].mT
    found = torch.zeros(len(kept), dtype=torch.bool)
    for rows, y in parts:
        away = (rows[:, kept] - means[y]) / scale
        shares = away * (away @ inverse)
        leverage = 1 / sums.count[y, 0] + shares.sum(1)
        found[shares[leverage >= most].argmax(1)] = True
    return found
