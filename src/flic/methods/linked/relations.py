"""Relations of columns that all but a few rows of a class keep: other units, totals of parts.

Who knows such a relation reads what the few rows differ by from sums of the columns. Which rows
these are is not known. So rows are put into groups, and relations are looked for in every choice of
groups that leaves out `few` of them: one of these choices has none of the few rows, and there the
relation is exact.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from math import comb

import torch
from jaxtyping import Float, Int
from torch import Tensor

_SAME = 1e-6
"""Share of the largest values below which a difference is rounding error."""

_FREE = 1e-9
"""Share of a column's variance, left by other columns, below which it may follow from them."""

_CLOSE = 1e-4
"""Distance of keys below which two columns are compared row by row."""

_CHOICES = 500
"""Most choices of groups."""

_NUMBERS = 1_000_000
"""Most numbers in memory at a time, about."""

_WIDE = 128
"""Most columns among which relations of more than two are looked for."""


def broken_relations(own: Float[Tensor, "rows p"], *, least: int) -> dict[int, Tensor]:
    """Columns that follow from earlier ones in all but fewer than `least` rows, but not in all.

    By position, the values that they would have if all rows kept the relation. Relations of two
    columns are given before those of more.
    """
    varied = (own != own[0]).any(0).nonzero().flatten()
    is_roomy = _is_roomy(len(own), len(varied), least)
    for search, part, most_columns in _SEARCHES:
        few = min(least - 1, (len(own) - 1) // part)
        if few < 1 or not 1 < len(varied) <= most_columns or (is_roomy and search in _OF_FEW):
            continue
        columns = _Columns.of(own[:, varied])
        # A column that follows from earlier ones in all rows adds no relation to theirs.
        whole = _follow(search(columns, _Choices.everything(len(own)), few), range(1))
        free = [i for i in range(len(varied)) if i not in whole]
        columns, varied = _Columns.of(own[:, varied[free]]), varied[free]
        width = len(varied) if most_columns == _WIDE else 1
        choices = _Choices.without(few, len(own), width)
        found = _follow(search(columns, choices, few), range(1, few + 1))
        if found:
            return {
                int(varied[i]): _rounded(columns.in_own_units(values, i), own[:, varied[i]])
                for i, values in found.items()
            }
    return {}


def _rounded(values: Float[Tensor, " rows"], old: Float[Tensor, " rows"]) -> Float[Tensor, " rows"]:
    """Values of a column; what it was, or has in another row, to the last digit."""
    error = _SAME * old.abs().max()
    at = ((values - old).abs() > error).nonzero().flatten()
    nearest = old[(values[at, None] - old).abs().argmin(1)]
    known = (values[at] - nearest).abs() <= error
    return old.index_copy(0, at, torch.where(known, nearest, values[at]))


# ---- choices of rows -------------------------------------------------------------------------


@dataclass(frozen=True)
class _Choices:
    """Groups of rows, and choices of them."""

    group: Int[Tensor, " rows"]
    chosen: Float[Tensor, "choices groups"]

    @classmethod
    def everything(cls, rows: int) -> "_Choices":
        """All rows."""
        return cls(torch.zeros(rows, dtype=torch.int64), torch.ones(1, 1).double())

    @classmethod
    def without(cls, few: int, rows: int, width: int) -> "_Choices":
        """Choices that leave out `few` groups: as many as so many columns leave room for."""
        groups, most = few + 1, min(_CHOICES, _NUMBERS // width**2)
        while groups < rows and comb(groups + 1, few) <= most:
            groups += 1
        order = torch.randperm(rows, generator=torch.Generator().manual_seed(0))
        return cls(order % groups, _all_without(few, groups))

    @property
    def rows(self) -> Float[Tensor, "choices rows"]:
        """1 for the rows of each choice."""
        return self.chosen[:, self.group]

    @property
    def count(self) -> Float[Tensor, " choices"]:
        """Rows of each choice."""
        return self.chosen @ self.group.bincount(minlength=self.chosen.shape[1]).double()

    def sums(self, values: Float[Tensor, "rows q"]) -> Float[Tensor, "choices q"]:
        """Sums over the rows of each choice."""
        groups = torch.zeros(self.chosen.shape[1], values.shape[1]).double()
        return self.chosen @ groups.index_add_(0, self.group, values)

    def products(
        self, a: Float[Tensor, "rows q"], b: Float[Tensor, "rows #q"]
    ) -> Float[Tensor, "choices q"]:
        """Σ (a − ā)(b − b̄), column by column."""
        return self.sums(a * b) - self.sums(a) * self.sums(b) / self.count[:, None]

    def all_products(self, a: Float[Tensor, "rows q"]) -> Float[Tensor, "choices q q"]:
        """Σ (a − ā)(a − ā)ᵀ."""
        parts = [a[self.group == g] for g in range(self.chosen.shape[1])]
        whole = torch.einsum("cg,gij->cij", self.chosen, torch.stack([x.mT @ x for x in parts]))
        total = self.sums(a)
        return whole - total[:, :, None] * total[:, None] / self.count[:, None, None]


@cache
def _all_without(few: int, groups: int) -> Float[Tensor, "choices groups"]:
    """All ways to leave out a few of some groups."""
    left_out = torch.tensor(list(combinations(range(groups), few)))
    return torch.ones(len(left_out), groups).double().scatter(1, left_out, 0.0)


# ---- columns as they follow from others ------------------------------------------------------


@dataclass(frozen=True)
class _Fit:
    """Columns as they follow from others, and the number of rows in which they do not."""

    later: Int[Tensor, " some"]
    values: Float[Tensor, "rows some"]
    off: Int[Tensor, " some"]


def _follow(fits: Iterable[_Fit], off: range) -> dict[int, Tensor]:
    """The columns that do not follow in so many rows, as they would."""
    found: dict[int, Tensor] = {}
    for fit in fits:
        for i in ((fit.off >= off.start) & (fit.off < off.stop)).nonzero().flatten().tolist():
            found.setdefault(int(fit.later[i]), fit.values[:, i])
    return found


@dataclass(frozen=True)
class _Columns:
    """Columns in units of their deviations."""

    values: Float[Tensor, "rows p"]
    mean: Float[Tensor, " p"]
    scale: Float[Tensor, " p"]
    rounding: Float[Tensor, " p"]  # error that a value may have

    @classmethod
    def of(cls, own: Float[Tensor, "rows p"]) -> "_Columns":
        """Columns, none of them constant."""
        mean, scale = own.mean(0), own.std(0, correction=0)
        return cls((own - mean) / scale, mean, scale, _SAME * own.abs().amax(0) / scale)

    def in_own_units(self, values: Float[Tensor, " rows"], column: int) -> Float[Tensor, " rows"]:
        """Values of a column in the units that it came in."""
        return values * self.scale[column] + self.mean[column]

    def fit(
        self,
        rows: Float[Tensor, "some rows"],
        given: Int[Tensor, "some given"],
        later: Int[Tensor, "some later"],
    ) -> _Fit:
        """Columns as they follow from given ones in some of the rows."""
        ones = torch.ones(len(rows), rows.shape[1], 1).double()
        known = torch.cat([ones, self.values[:, given].movedim(1, 0)], 2)
        wanted = self.values[:, later].movedim(1, 0)
        weight = rows[:, :, None]
        factors = torch.linalg.lstsq(known * weight, wanted * weight).solution
        values = known @ factors
        error = factors[:, 1:].abs().mT @ self.rounding[given][:, :, None]
        error = error[:, :, 0] + self.rounding[later]
        off = ((values - wanted).abs() > error[:, None]).sum(1)
        return _Fit(later.flatten(), values.movedim(0, 1).flatten(1), off.flatten())

    def fits(self, choices: _Choices, found: Int[Tensor, "found columns"]) -> Iterator[_Fit]:
        """The last of some columns as it follows from the others in a choice of rows."""
        found = torch.cat([found[:, :1], found[:, 1:].sort(1).values], 1).unique(dim=0)
        rows = choices.rows
        for part in found.split(max(1, _NUMBERS // rows.shape[1])):
            yield self.fit(rows[part[:, 0]], part[:, 1:-1], part[:, -1:])


# ---- the search ------------------------------------------------------------------------------


def _indicators(columns: _Columns, choices: _Choices, few: int) -> Iterator[_Fit]:
    """Columns of two values that follow from one other; all rows of all pairs are compared.

    A choice of rows could leave out all that have a rare level.
    """
    del choices
    x, low, high = columns.values, columns.values.amin(0), columns.values.amax(0)
    two = ((x == low) | (x == high)).all(0).nonzero().flatten()
    ones = (x == high)[:, two].double()
    apart = ones.mT @ (1 - ones)
    apart = apart + apart.mT
    for opposite, off in ((False, apart), (True, len(x) - apart)):
        pairs = (off <= few).triu(1).nonzero()
        for first, later in (part.mT for part in pairs.split(max(1, _NUMBERS // len(x)))):
            is_high = (ones[:, first] == 1) != opposite
            values = torch.where(is_high, high[two[later]], low[two[later]])
            yield _Fit(two[later], values, off[first, later].long())


def _differences(columns: _Columns, choices: _Choices, few: int) -> Iterator[_Fit]:
    """Columns that differ from one other by a constant."""
    del few
    keys, spread = _pair_keys(columns, choices)
    size = (spread.clamp_min(_FREE) * columns.scale.square()).log()
    yield from columns.fits(choices, _matches(torch.cat([keys, size[..., None]], -1)))


def _pairs(columns: _Columns, choices: _Choices, few: int) -> Iterator[_Fit]:
    """Columns that follow from one other."""
    del few
    yield from columns.fits(choices, _matches(_unsigned(_pair_keys(columns, choices)[0])))


def _pair_keys(columns: _Columns, choices: _Choices) -> tuple[Tensor, Tensor]:
    """Keys of columns, and their variance, in each choice of rows."""
    x = columns.values
    along = [choices.products(x, w[:, None]) for w in _directions(len(x))]
    spread = choices.products(x, x)
    return _keys(spread, torch.stack(along, -1)), spread


def _triples(columns: _Columns, choices: _Choices, few: int) -> Iterator[_Fit]:
    """Columns that follow from two others: given one of these, from one."""
    del few
    if int(choices.count.min()) < 5:
        return
    x, width = columns.values, columns.values.shape[1]
    products = choices.all_products(torch.cat([x, _directions(len(x)).mT], 1))
    between, along = products[:, :width, :width], products[:, :width, width:]
    size = between.diagonal(dim1=1, dim2=2)
    slope = between / size[:, :, None]
    spread = size[:, None] - slope * between
    along = along[:, None] - slope[..., None] * along[:, :, None]
    yield from columns.fits(choices, _matches(_unsigned(_keys(spread, along))))


def _sums(columns: _Columns, choices: _Choices, few: int) -> Iterator[_Fit]:
    """Columns that follow from any number of earlier ones.

    A choice has at least `few` more rows than a relation has factors.
    """
    left, rows = choices.all_products(columns.values), int(choices.count.min())
    # What is constant in a choice, and not a rare value's column, varies in too many other rows.
    varies = left.diagonal(dim1=1, dim2=2) >= _FREE * rows
    taken = torch.zeros(left.shape[:2], dtype=torch.bool)
    follows = taken.clone()
    for j in range(left.shape[1]):
        is_free = left[:, j, j] >= _FREE * rows
        follows[:, j] = ~is_free & varies[:, j]
        take = is_free & (taken.sum(1) + 1 <= rows - few - 1)
        if bool(take.any()):
            taken[:, j] = take
            row = left[:, j] * (take / left[:, j, j])[:, None]
            left -= left[:, :, j, None] * row[:, None]
    chosen = choices.rows
    for choice in follows.any(1).nonzero().flatten().tolist():
        given, later = (which[choice].nonzero().flatten()[None] for which in (taken, follows))
        yield columns.fit(chosen[choice, None], given, later)


_Search = Callable[[_Columns, _Choices, int], Iterator[_Fit]]

_SEARCHES: tuple[tuple[_Search, int, float], ...] = (
    (_indicators, 2, float("inf")),
    (_differences, 2, float("inf")),
    (_pairs, 4, float("inf")),
    (_triples, 4, _WIDE),
    (_sums, 4, _WIDE),
)
"""Ways to look for relations, the part of the rows that may be off, and the most columns.

In small classes chance makes relations, the more so the more of their factors are free."""

_OF_FEW = (_differences, _pairs, _triples)
"""Searches that find nothing else than `_sums`, where a class has rows enough for all columns."""


def _is_roomy(rows: int, width: int, least: int) -> bool:
    """True if every choice has the rows that `_sums` needs for all columns."""
    few = least - 1
    if not (width <= _WIDE and few <= (rows - 1) // 4):
        return False
    return width <= int(_Choices.without(few, rows, max(width, 1)).count.min()) - few - 1


def _directions(rows: int) -> Float[Tensor, "2 rows"]:
    """Two random columns."""
    return torch.randn(2, rows, generator=torch.Generator().manual_seed(1)).double()


def _keys(
    spread: Float[Tensor, "*some p"], along: Float[Tensor, "*some p 2"]
) -> Float[Tensor, "*some p 2"]:
    """Two numbers that columns have in common if one is a positive multiple of the other."""
    known = torch.where(spread > _FREE, spread, torch.nan)
    return along / known.sqrt()[..., None]


def _unsigned(keys: Float[Tensor, "*some p 2"]) -> Float[Tensor, "*some p 2"]:
    """Keys that a column and its opposite have in common."""
    return keys * keys[..., :1].sign()


def _matches(keys: Float[Tensor, "*some p keys"]) -> Int[Tensor, "found columns"]:
    """Indices before the last dimension, and two columns that have their keys in common."""
    order = keys[..., 0].argsort(stable=True, dim=-1)
    keys = keys.gather(-2, order[..., None].expand_as(keys))
    found = [torch.zeros(0, keys.dim(), dtype=torch.int64)]
    for step in range(1, keys.shape[-2]):
        apart = (keys[..., step:, :] - keys[..., :-step, :]).abs()
        if not bool((apart[..., 0] < _CLOSE).any()):
            break
        *before, at = (apart < _CLOSE).all(-1).nonzero(as_tuple=True)
        found.append(torch.stack([*before, order[(*before, at)], order[(*before, at + step)]], 1))
    return torch.cat(found)
