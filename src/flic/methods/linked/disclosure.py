"""Limits on the detail of the sums that a client sends, so that its rows stay hidden.

A table can be solved for from sums with more numbers than it has values: 60 rows of ten columns
from the products of 512 random features, to the last digit. From half as many numbers as values
nothing better than chance came back (SECURITY.md). Single rows can be read from far fewer numbers;
`methods/linked/hiding.py` prevents that.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from flic.data.client_data import ClientData
from flic.data.schema import FeatureSchema
from flic.methods.linked.agreement import Agreement, class_of, columns_of
from flic.methods.linked.hiding import Usual, blurred, chunks, told_pairs
from flic.methods.linked.rounding import rounded
from flic.methods.linked.sums import ColumnIndex, Detail, Moments, Parts, Totals

_BITS = 8
"""Bits of a value that counts as one: a number of two digits and more."""


@dataclass(frozen=True, eq=False)
class DisclosedRows:
    """The copy of a client's rows that its sums are made of."""

    schema: FeatureSchema
    columns: Float[Tensor, "rows own"]  # a response is the last one
    y: Int[Tensor, " rows"]  # classes
    sources: tuple[int, ...]  # of the columns
    least: int  # rows that a person can hide among

    @classmethod
    def of(cls, agreed: Agreement, client: ClientData) -> "DisclosedRows":
        """The client's rows in classes of enough rows, all columns."""
        rows, least = enough(agreed, client), agreed.settings.min_rows
        taken = client.train if len(rows) == len(client.train) else client.train.take(rows)
        columns, y = columns_of(agreed, taken), class_of(agreed, taken)
        sources = sources_of(agreed, client)
        if least > 1 and len(rows):
            columns = blurred(columns, y, sources, least=least)
        return cls(client.schema, columns, y, sources, least)

    def at(self, positions: Int[Tensor, " some"]) -> "DisclosedRows":
        """Some of the columns."""
        sources = tuple(self.sources[i] for i in positions.tolist())
        return DisclosedRows(self.schema, self.columns[:, positions], self.y, sources, self.least)

    def take(self, rows: Bool[Tensor, " rows"]) -> "DisclosedRows":
        """Some of the rows."""
        return DisclosedRows(
            self.schema, self.columns[rows], self.y[rows], self.sources, self.least
        )

    def parts(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Rows and classes, part by part."""
        return chunks(self.columns, self.y)

    def sums(self, index: ColumnIndex, detail: Detail) -> Totals:
        """Sums of the rows, as they are sent."""
        return sums_as_sent(
            self.parts,
            index,
            detail,
            least=self.least,
            pairs=lambda: self._pairs(index.num_classes),
        )

    def squares(self, num_classes: int) -> Moments:
        """Sums of the columns and of their squares, as they are sent."""
        width = self.columns.shape[1]
        found = self.sums(ColumnIndex(num_classes, torch.arange(width), width), "diagonal")
        assert isinstance(found, Moments)
        return found

    def _pairs(self, num_classes: int) -> Bool[Tensor, "own own"]:
        """Pairs of columns whose products are sent."""
        return told_pairs(
            self.parts,
            Usual.of(self.columns),
            self.sources,
            num_classes=num_classes,
            least=self.least,
            wanted=self._worth(num_classes),
        )

    def _worth(self, num_classes: int) -> Float[Tensor, " own"]:
        """Share of each column's variance explained by the classes, or by the response."""
        around = self.columns - self.columns.mean(0)
        whole = around.square().sum(0)
        if num_classes == 1:
            return (around * around[:, -1:]).sum(0).square() / whole.clamp_min(1e-300)
        onto = torch.nn.functional.one_hot(self.y, num_classes).double()
        means = (onto.mT @ around) / onto.sum(0).clamp_min(1)[:, None]
        return (onto.sum(0)[:, None] * means.square()).sum(0) / whole.clamp_min(1e-300)


def sums_as_sent(
    parts: Callable[[], Parts],
    index: ColumnIndex,
    detail: Detail,
    *,
    least: int,
    pairs: Callable[[], Bool[Tensor, "own own"]],
) -> Totals:
    """Sums of rows as they are sent: rounded, and without products that could single out a row.

    Args:
        parts: function that gives the rows part by part; called several times.
        index: positions of the columns among those of a space.
        detail: detail of the scatter.
        least: rows that a person can hide among; with 1 nothing is hidden.
        pairs: function that gives the pairs of columns whose products are sent.
    """
    kind = Totals if detail == "off" else Moments
    sums = kind.of_parts(parts(), index)
    if least == 1:
        return sums
    sums = rounded(sums, parts, index)
    if isinstance(sums, Moments) and detail == "full":
        sums = _without(sums, index, pairs())
    return sums


def _without(sums: Moments, index: ColumnIndex, told: Bool[Tensor, "own own"]) -> Moments:
    """The sums with 0 for products that are not sent, as if the two columns did not correlate."""
    own = sums.scatter[index.positions][:, index.positions] * told
    return Moments(sums.count, sums.total, index.pairs(own), sums.dof)


def numbers_told(detail: Detail, *, width: int, classes: int, directions: int) -> int:
    """Count of the numbers sent for so many columns and of so many classes.

    Counts of rows are not among them, nor what follows from the others.
    """
    beside = {
        "off": 0,
        "diagonal": width,
        "directions": width * (1 + directions),
        "full": width * (width + 1) // 2,
    }
    return classes * width + beside[detail]


def within(
    budget: float, wanted: Detail, *, width: int, classes: int, directions: int
) -> Detail | None:
    """The most of `wanted` and of what is less that the budget allows; None if not even sums."""
    most: Detail | None = None
    for detail in dict.fromkeys(("off", "diagonal" if wanted != "off" else wanted, wanted)):
        told = numbers_told(detail, width=width, classes=classes, directions=directions)
        if told <= budget:
            most = detail
    return most


def told_detail(agreed: Agreement, client: ClientData, shared: int | None = None) -> Detail:
    """Detail that a client sends of the scatter of its features, all shared ones or so many."""
    wanted, limit = agreed.detail("linear"), agreed.settings.max_numbers_per_value
    if limit is None:
        return wanted
    (rows, classes), width = _told_rows(agreed, client), _width(agreed, client, shared)
    # Sums alone are always sent, for every class with enough rows.
    budget = limit * rows * width
    directions = agreed.num_classes - 1
    found = within(budget, wanted, width=width, classes=classes, directions=directions)
    return found or "off"


@dataclass(frozen=True)
class ValuesOfMap:
    """Values that sums of random features could be solved for, class by class.

    Equal rows are one unknown, since sums count how many of them there are. A column of few
    different values is a part of a value: eight flags have 256 combinations, whose numbers of rows
    follow from 256 sums, however many rows a class has. Features of one column of the table, such
    as the levels of a category, are counted by their combinations.
    """

    width: int  # linked columns, and a response
    by_class: dict[int, float]

    @classmethod
    def of(
        cls,
        agreed: Agreement,
        client: ClientData,
        linked: Sequence[int],
        rows: Float[Tensor, "rows own"],
    ) -> "ValuesOfMap":
        """Values of these columns of a client, in classes of enough rows.

        `rows` are the client's as the map sees them: whoever chooses units makes flags of numbers.
        """
        own = [*linked, *range(client.schema.dim, rows.shape[1])]
        rows, y, known = rows[:, own], class_of(agreed, client.train), sources_of(agreed, client)
        sources = torch.tensor([known[i] for i in own], dtype=torch.int64)
        values = {c: _values(rows[y == c], sources) for c in _large(agreed, client)}
        return cls(rows.shape[1], values)

    @classmethod
    def most(cls, agreed: Agreement, client: ClientData) -> "list[ValuesOfMap]":
        """Values of 1, 2, … columns, whichever they are, at most."""
        rows, y = columns_of(agreed, client.train), class_of(agreed, client.train)
        found = {
            c: int((y == c).sum()) * _bits(rows[y == c]).sort(descending=True).values.cumsum(0)
            for c in _large(agreed, client)
        }
        widths = range(1 + agreed.responses, rows.shape[1] + 1)
        return [cls(w, {c: float(values[w - 1]) for c, values in found.items()}) for w in widths]

    def classes(self, agreed: Agreement) -> list[int]:
        """Classes whose sums of random features are sent, in a regression class 0.

        The limit holds for each class by itself: what a large class leaves room for would be more
        numbers than the few rows of a small one have values.
        """
        limit = agreed.settings.max_numbers_per_value
        numbers = self.width + agreed.settings.random_features + agreed.responses
        return [c for c, v in self.by_class.items() if limit is None or numbers <= limit * v]


def told_of_map(
    agreed: Agreement, client: ClientData, values: ValuesOfMap, shared: int | None = None
) -> Detail | None:
    """Detail that a client sends of random features of its linked ones, beside the rest."""
    wanted, limit = agreed.detail("mapped"), agreed.settings.max_numbers_per_value
    if limit is None:
        return wanted
    (_, classes), width = _told_rows(agreed, client), _width(agreed, client, shared)
    detail, directions = told_detail(agreed, client, shared), agreed.num_classes - 1
    told = numbers_told(detail, width=width, classes=classes, directions=directions)
    kept = values.classes(agreed)
    left = limit * sum(values.by_class[c] for c in kept) - told
    mapped = agreed.settings.random_features + agreed.responses
    if not kept:
        return None
    return within(left, wanted, width=mapped, classes=len(kept), directions=directions)


def sources_of(agreed: Agreement, client: ClientData) -> tuple[int, ...]:
    """Numbers of the table's columns that a client's columns come from; a response is the last."""
    sources = client.schema.sources or tuple(range(client.schema.dim))
    return sources + (max(sources, default=-1) + 1,) * agreed.responses


def _values(rows: Float[Tensor, "rows p"], sources: Int[Tensor, " p"]) -> float:
    """Number of values in rows, of which some are equal, or of few different ones."""
    _, source, columns = sources.unique(return_inverse=True, return_counts=True)
    bits, alone = _bits(rows), columns[source] == 1
    together = (rows[:, source == several] for several in (columns > 1).nonzero().flatten())
    return _combinations(rows) * (float(bits[alone].sum()) + sum(map(_bits_together, together)))


def _bits_together(rows: Float[Tensor, "rows p"]) -> float:
    """Values in a row of columns that come from one: no more than their combinations tell."""
    return min(float(_bits(rows).sum()), math.log2(max(_combinations(rows), 1)) / _BITS)


def _combinations(rows: Float[Tensor, "rows p"]) -> int:
    """Number of different rows."""
    if not rows.shape[1] or bool((_distinct(rows) == len(rows)).any()):
        return len(rows)
    return len(rows.unique(dim=0))


def _bits(rows: Float[Tensor, "rows p"]) -> Float[Tensor, " p"]:
    """Share of a value in each column: 1 where it has 256 different ones or more."""
    return (_distinct(rows).double().log2() / _BITS).clamp_max(1.0)


def _distinct(rows: Float[Tensor, "rows p"]) -> Int[Tensor, " p"]:
    values = rows.sort(0).values
    return 1 + (values[1:] != values[:-1]).sum(0)


def _large(agreed: Agreement, client: ClientData) -> list[int]:
    """Classes with enough rows to be sent in a sum; in a regression class 0."""
    least = agreed.settings.min_rows
    return [c for c, count in client.class_counts.items() if count >= least]


def _width(agreed: Agreement, client: ClientData, shared: int | None) -> int:
    """Number of columns in a client's sums."""
    if shared is None:
        names = {*agreed.shared[client.schema.space].names}
        shared = len(names.intersection(client.schema.features))
    return shared + agreed.responses


def _told_rows(agreed: Agreement, client: ClientData) -> tuple[int, int]:
    """Rows and classes behind a client's sums."""
    rows = enough(agreed, client)
    return len(rows), len(class_of(agreed, client.train)[rows].unique())


def enough(agreed: Agreement, client: ClientData) -> Int[Tensor, " rows"]:
    """Rows of the classes that have enough of them to be sent in a sum."""
    classes = torch.tensor(_large(agreed, client), dtype=torch.int64)
    return torch.isin(class_of(agreed, client.train), classes).nonzero().flatten()
