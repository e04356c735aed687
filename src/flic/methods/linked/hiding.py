"""Protection of single rows: sums are made of a copy in which no row stands out.

A sum over rows shows a row if the rest of them are 0, or known, or small beside it. So sums are
made of a copy of the rows in which no value of a class is rarer than `least` rows, and no relation
of columns is broken by fewer: sums of the columns would tell by how much. Products of two columns
are sent only if no weighting of the columns rests on fewer rows than that. A column's rare values
become its commonest one, so the sums are slightly wrong, and show no single row.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from flic.methods.linked.relations import broken_relations
from flic.methods.linked.sums import CHUNK_ROWS, ColumnIndex, Moments, Parts

_RANK = 1e-9
"""Share of the largest eigenvalue below which a direction is rounding error."""

_ROOM = 4
"""Times `least` rows, below which a class is small."""

_FAR = 9.0
"""Distance from the median, in medians of it, that hardly any value of a class has: six deviations
of a normal one."""

_STEPS = 10
"""Most values of a column that sums could count one by one."""

_ATTEMPTS = 4
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
        # What stands out of its class may be ordinary in the whole table.
        own = _with_common_values(_clipped(columns[rows], least), least)
        for together in levels:
            own[:, together] = _with_common_patterns(own[:, together], least)
        columns[rows] = _with_whole_relations(own, least)
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
    found: dict[int, list[int]] = {}
    for i, source in enumerate(sources):
        if two_valued[i]:
            found.setdefault(source, []).append(i)
    return [together for together in found.values() if len(together) > 1]


def _clipped(columns: Float[Tensor, "rows p"], least: int) -> Float[Tensor, "rows p"]:
    """Values at most twice as far from the median as the `least`-th largest and smallest are.

    Of few rows these would be near the median themselves; there, values are at most `_FAR` times as
    far from it as half of them are.
    """
    middle = columns.median(0).values
    if len(columns) < _ROOM * least:
        away = (columns - middle).abs()
        reach = _FAR * away.median(0).values
        # Where half of the values are equal, the distances of the others count.
        others = 2 * away.kthvalue(len(away) - least + 1, 0).values
        reach = torch.where(reach > 0, reach, others)
        return columns.maximum(middle - reach).minimum(middle + reach)
    low = columns.kthvalue(least, 0).values
    high = columns.kthvalue(len(columns) - least + 1, 0).values
    return columns.maximum(2 * low - middle).minimum(2 * high - middle)


def _with_common_values(own: Float[Tensor, "rows p"], least: int) -> Float[Tensor, "rows p"]:
    """Rows of a class; where a column's other values are rare, it gets its commonest alone."""
    usual = own.mode(0).values
    common = (own == usual).sum(0)
    # Where no value occurs twice, there is no common one that identifies the rest.
    rare = (len(own) - common < least) & (common > 1)
    return _with_common_steps(torch.where(rare, usual, own), least)


def _with_common_steps(own: Float[Tensor, "rows p"], least: int) -> Float[Tensor, "rows p"]:
    """Rows of a class; in a column of few values, the rare ones become the nearest common one.

    Sums of such a column and of its squares count the rows of each value.
    """
    values, order = own.sort(0)
    new = torch.zeros_like(values, dtype=torch.int64)
    new[1:] = values[1:] != values[:-1]
    run = new.cumsum(0)
    counts = torch.zeros_like(run).scatter_add_(0, run, torch.ones_like(run)).gather(0, run)
    is_common = counts >= least
    below, above = _last_common(is_common), _last_common(is_common.flip(0)).flip(0)
    above = torch.where(above >= 0, len(own) - 1 - above, above)
    gap = [
        torch.where(at >= 0, (values - values.gather(0, at.clamp_min(0))).abs(), torch.inf)
        for at in (below, above)
    ]
    nearest = torch.where(gap[0] <= gap[1], below, above).clamp_min(0)
    stepped = (run[-1] < _STEPS) & is_common.any(0)
    told = torch.where(stepped, values.gather(0, nearest), values)
    return torch.empty_like(own).scatter_(0, order, told)


def _last_common(is_common: Bool[Tensor, "rows p"]) -> Int[Tensor, "rows p"]:
    """Position of the last common value up to each row; −1 if there is none."""
    row = torch.arange(len(is_common))[:, None].expand_as(is_common)
    return torch.where(is_common, row, -1).cummax(0).values


def _with_common_patterns(own: Float[Tensor, "rows p"], least: int) -> Float[Tensor, "rows p"]:
    """Indicators that exclude each other, rare combinations replaced by the commonest.

    Otherwise all other levels being 0 would disclose a hidden level.
    """
    patterns, which, counts = own.unique(dim=0, return_inverse=True, return_counts=True)
    usual = patterns[counts.argmax()]
    return torch.where((counts[which] < least)[:, None], usual, own)


def _with_whole_relations(own: Float[Tensor, "rows p"], least: int) -> Float[Tensor, "rows p"]:
    """Rows of a class; a column that follows from others in all but few rows does so in all.

    If that makes a value stand out, or has been tried often, it becomes constant instead, which
    breaks no relation of the others.
    """
    attempt = 0
    while found := broken_relations(own, least=least):
        for later, follows in found.items():
            old, middle = own[:, later], own[:, later].median()
            is_safe = attempt < _ATTEMPTS and _is_alike(follows - middle, old - middle)
            own[:, later] = follows if is_safe else middle
        attempt += 1
    return own


def _is_alike(new: Float[Tensor, " rows"], old: Float[Tensor, " rows"]) -> bool:
    """True if no new value stands out: twice as far off, or a third one of an indicator."""
    third = bool(_two_valued(old[:, None])) and not bool(_two_valued(new[:, None]))
    return not third and float(new.abs().max()) <= 2 * float(old.abs().max())


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
    """Pairs of columns of two sources in which few rows have an unusual value of both."""
    width = len(sources)
    cells = torch.zeros(3, width, width, dtype=torch.float64)
    for rows, _ in parts:
        off = (rows != usual.value).double()
        cells += torch.stack([off.mT @ off, off.mT @ (1 - off), (1 - off).mT @ (1 - off)])
    rare = _few(cells[0], cells[1], cells[1].mT, cells[2], usual, usual, least)
    # A level left out follows from the other levels of its column: all are sent, or none.
    onto = torch.nn.functional.one_hot(torch.tensor(sources)).double()
    between = onto.mT @ rare.double() @ onto > 0
    apart = onto @ between.double() @ onto.mT > 0
    return apart & (torch.tensor(sources)[:, None] != torch.tensor(sources))


def rare_across(
    pairs: Iterable[tuple[Tensor, Tensor]], first: Usual, second: Usual, least: int
) -> Bool[Tensor, "p q"]:
    """Pairs of a column of some rows and of another of theirs in which few have an unusual value
    of both.
    """
    cells = torch.zeros(4, len(first.value), len(second.value), dtype=torch.float64)
    for a, b in pairs:
        off, other = (a != first.value).double(), (b != second.value).double()
        cells += torch.stack([one.mT @ two for one in (off, 1 - off) for two in (other, 1 - other)])
    return _few(cells[0], cells[1], cells[2], cells[3], first, second, least)


def _few(
    both: Tensor, first: Tensor, second: Tensor, none: Tensor, a: Usual, b: Usual, least: int
) -> Bool[Tensor, "p q"]:
    """Pairs with some, but few rows that are unusual in both columns, or counted like these.

    In a column with two values, rows with the usual one are counted as well.
    """
    few = [(cells > 0) & (cells < least) for cells in (both, first, second, none)]
    two, other = a.two_valued[:, None], b.two_valued
    return few[0] | (few[1] & other) | (few[2] & two) | (few[3] & two & other)


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
