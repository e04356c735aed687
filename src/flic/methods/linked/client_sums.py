"""Sums of linked features at one client: those that it sends, and those of its peers.

Features that no other client has are private and in no sum. In a regression the response is one
more column, the last one, which all clients share.
"""

from collections.abc import Callable, Mapping
from functools import cached_property

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from flic.data.client_data import ClientData
from flic.data.schema import FeatureSchema
from flic.methods.linked.agreement import Agreement, SumsKind, class_of, columns_of
from flic.methods.linked.disclosure import (
    DisclosedRows,
    ValuesOfMap,
    sums_as_sent,
    told_detail,
    told_of_map,
)
from flic.methods.linked.hiding import Usual, chunks, told_pairs
from flic.methods.linked.sums import CHUNK_ROWS, ColumnIndex, Detail, Moments, Parts, Totals
from flic.methods.linked.told_along import RowsInSums, along_as_sent
from flic.shapes import Named

Sent = Mapping[SumsKind, Named]
"""One client's own part of the pooled sums, by kind."""

_CLIP = 5.0


class ClientSums:
    """A client's rows in common units, and the sums of its peers.

    `sent` is given for a client whose sums are not those of its rows; it is empty for a newcomer.
    """

    def __init__(
        self, agreed: Agreement, state: Named, client: ClientData, sent: Sent | None = None
    ) -> None:
        self.agreed, self.state, self.client, self._sent = agreed, state, client, sent
        self.space, self.dim = client.schema.space, client.schema.dim
        self.width = self.dim + agreed.responses
        self.own, self.there = _positions(agreed, client.schema)
        self.shift, self.scale = self._units()
        self.others = self._totals()

    def _units(self) -> tuple[Tensor, Tensor]:
        """Pooled mean and deviation of each column; the client's own where none was sent."""
        shift, scale = torch.zeros(self.width).double(), torch.zeros(self.width).double()
        if len(self.own):
            everyone = self.agreed.everyone(self.state, self.space, "linear")
            shift[self.own] = everyone.shift[self.there]
            told = everyone.sums.dof.diagonal()[self.there] > 0
            still = self._is_constant[self.own] & ~everyone.sums.varies[self.there]
            scale[self.own] = (everyone.scale[self.there] * told).masked_fill(still, torch.inf)
        rest = (scale == 0).nonzero().flatten()
        if not len(rest):
            return shift, scale
        index = ColumnIndex(self.agreed.num_classes, torch.arange(len(rest)), len(rest))
        train = self.client.train
        columns, y = columns_of(self.agreed, train)[:, rest], class_of(self.agreed, train)
        own = Moments.of_parts(chunks(columns, y), index)
        scale[rest] = own.deviation.masked_fill(self._is_constant[rest], torch.inf)
        private = torch.ones(self.width, dtype=torch.bool)
        private[self.own] = False
        shift[rest] = torch.where(private[rest], own.mean, shift[rest])
        return shift, scale

    @cached_property
    def _is_constant(self) -> Bool[Tensor, " own"]:
        """Features with a single value, which carry no information for the client.

        If they do not vary within the classes of peers either, they may be years or sites. No unit
        suits these; in an infinite one they are all 0.
        """
        x = self.client.train.x
        rest = torch.zeros(self.agreed.responses, dtype=torch.bool)
        return torch.cat([x.amin(0) == x.amax(0), rest])

    @property
    def least_spread(self) -> Float[Tensor, " own"]:
        """Deviation of each feature, in common units, that may be rounding error alone."""
        x, dim = self.client.train.x, self.dim
        size = torch.maximum(x.amin(0).abs(), x.amax(0).abs()).double()
        return (1e-6 * size).maximum(1e-13 * self.shift[:dim].abs()) / self.scale[:dim]

    def _totals(self) -> Totals:
        """Totals of the peers, in the client's columns and units."""
        index = ColumnIndex(self.agreed.num_classes, self.own, self.width)
        if not len(self.own):
            nothing = torch.zeros(self.agreed.num_classes, self.width).double()
            return Totals(nothing, nothing)
        everyone = self.agreed.everyone(self.state, self.space, "linear").sums
        sent = self.agreed.layout(self.space, "linear").unpack_totals(self.sent_totals("linear"))
        count = index.rows((everyone.count - sent.count)[:, self.there])
        total = index.rows((everyone.total - sent.total)[:, self.there])
        return Totals(count, (total - count * self.shift) / self.scale)

    @cached_property
    def is_linked(self) -> Bool[Tensor, " own"]:
        """True for those of the client's features of which peers sent sums."""
        return self.others.count.sum(0)[: self.dim] > 0

    @cached_property
    def has_links(self) -> bool:
        """True if anything is shared."""
        return bool(self.is_linked.any())

    # ---- sums ------------------------------------------------------------------------------

    def sent(self, kind: SumsKind) -> Named:
        """The client's own part of the pooled sums."""
        if self._sent is not None:
            return self._sent.get(kind, {})
        return self.sent_at_first(kind) | self.sent_along(kind)

    def sent_at_first(self, kind: SumsKind) -> dict[str, Tensor]:
        """Sums that the client sends before the directions between classes are known."""
        return self._first_linear if kind == "linear" else self._first_mapped

    @cached_property
    def _first_linear(self) -> dict[str, Tensor]:
        return sent_sums(self.agreed, self._told, told_detail(self.agreed, self.client))

    @cached_property
    def _first_mapped(self) -> dict[str, Tensor]:
        detail = self.detail("mapped")
        return self._mapped_sums(detail) if detail else {}

    def sent_along(self, kind: SumsKind) -> dict[str, Tensor]:
        """Sums that the client sends along the directions between classes, if any."""
        if self.detail(kind) != "directions" or not self.has_links:
            return {}
        return self._along_linear if kind == "linear" else self._along_mapped

    @cached_property
    def _along_linear(self) -> dict[str, Tensor]:
        told = self._told.at(self.own)
        rows = RowsInSums(told.parts, told.sources, Usual.of(told.columns))
        return self._along("linear", rows, self.there)

    @cached_property
    def _along_mapped(self) -> dict[str, Tensor]:
        width = self.agreed.settings.random_features
        rows = RowsInSums(self._told_mapped, range(width), usual_of_map(width))
        return self._along("mapped", rows, torch.arange(width))

    def _along(
        self, kind: SumsKind, rows: RowsInSums, there: Int[Tensor, " own"]
    ) -> dict[str, Tensor]:
        everyone = self.agreed.everyone(self.state, self.space, kind)
        own = along_as_sent(
            rows,
            everyone.directions[there],
            everyone.sums.dof.diagonal()[there],
            num_classes=self.agreed.num_classes,
            least=self._least,
        )
        if own is None:
            return {}
        layout = self.agreed.layout(self.space, kind)
        return layout.pack_along(own.spread(there, len(layout.block)))

    def sent_totals(self, kind: SumsKind) -> Named:
        """Counts and sums that were sent, without products of features, which are rarely needed."""
        if self._sent is not None:
            return {n: v for n, v in self.sent(kind).items() if n in ("count", "total")}
        if kind == "linear":
            return sent_sums(self.agreed, self._told, "off")
        return self._mapped_sums("off") if self.detail("mapped") else {}

    def detail(self, kind: SumsKind) -> Detail | None:
        """Detail that the client sends of a kind of sums; None: nothing, not even means."""
        if kind == "linear":
            return told_detail(self.agreed, self.client)
        return told_of_map(self.agreed, self.client, self._values_of_map)

    @cached_property
    def _values_of_map(self) -> ValuesOfMap:
        linked = self.is_linked.nonzero().flatten().tolist()
        rows = self.scaled(columns_of(self.agreed, self.client.train))
        rows[:, : self.dim].clamp_(-_CLIP, _CLIP)
        return ValuesOfMap.of(self.agreed, self.client, linked, rows)

    def _mapped_sums(self, detail: Detail) -> dict[str, Tensor]:
        """Sums that the client sends of its rows under the random map."""
        if not self.has_links:
            return {}
        mapped, num_classes = self._told_mapped, self.agreed.num_classes
        width = self.agreed.settings.random_features + self.agreed.responses
        index = ColumnIndex(num_classes, torch.arange(width), width)
        usual = usual_of_map(width)
        sums = sums_as_sent(
            mapped,
            index,
            detail,
            least=self._least,
            pairs=lambda: told_pairs(
                mapped, usual, range(width), num_classes=num_classes, least=self._least
            ),
        )
        return self.agreed.layout(self.space, "mapped").pack(sums, detail)

    @cached_property
    def _told(self) -> DisclosedRows:
        return DisclosedRows.of(self.agreed, self.client)

    @property
    def _least(self) -> int:
        return self.agreed.settings.min_rows

    @cached_property
    def _told_mapped(self) -> Callable[[], Parts]:
        """Random features of the disclosed rows, of classes with enough of them.

        A feature is 0 where it splits few rows from the rest of a class: those with more than 0, or
        those without, whose part follows from the sums of the features that it is made of.
        """
        told, responses = self._told, self.agreed.responses
        kept = torch.tensor(self._values_of_map.classes(self.agreed), dtype=torch.int64)
        told = told.take(torch.isin(told.y, kept))
        features = self.agreed.settings.random_features
        few = torch.zeros(self.agreed.num_classes, features, dtype=torch.bool)
        if self._least > 1:
            active = torch.zeros_like(few, dtype=torch.int64)
            for rows, y in told.parts():
                active.index_add_(0, y, (self.mapped(rows)[:, :features] > 0).long())
            rest = torch.bincount(told.y, minlength=len(few))[:, None] - active
            few = (active < self._least) | ((rest > 0) & (rest < self._least))
        few = torch.nn.functional.pad(few, (0, responses))

        def parts() -> Parts:
            return ((self.mapped(rows).masked_fill(few[y], 0.0), y) for rows, y in told.parts())

        if len(told.y) > CHUNK_ROWS:
            return parts
        once = tuple(parts())  # sums go through the rows several times
        return lambda: once

    def rows_in_sums(self, kind: SumsKind) -> Int[Tensor, " rows"] | None:
        """The client's rows in the pooled scatter; None if its sums are not those of its rows."""
        if self._sent or self._least > 1:
            return None
        is_told = self._sent is None and self.detail(kind) not in (None, "off")
        return torch.arange(len(self.client.train) if is_told else 0)

    @cached_property
    def mapped_units(self) -> tuple[Tensor, Tensor]:
        """Shift and scale of random features; a response has its usual ones."""
        everyone = self.agreed.everyone(self.state, self.space, "mapped")
        width = self.agreed.settings.random_features
        units = (everyone.shift, self.shift), (everyone.scale, self.scale)
        shift, scale = (torch.cat([their[:width], own[self.dim :]]) for their, own in units)
        return shift, scale

    def others_squares(self, features: Int[Tensor, " some"]) -> tuple[Tensor, Tensor]:
        """Squares of peers' linked features around their class means, and rows behind them."""
        position = torch.full((self.width,), -1)
        position[self.own] = self.there
        there = position[features]
        everyone = self.agreed.everyone(self.state, self.space, "linear").sums
        squares, dof = everyone.scatter.diagonal()[there], everyone.dof.diagonal()[there]
        own_squares, own_dof = self._own_squares(features, there)
        # In a unit that is far too large, only rounding is left of the peers' squares.
        others = (squares / self.scale[features] ** 2 - own_squares).maximum(1e-13 * own_squares)
        return others, dof - own_dof

    def told_squares(self, features: Int[Tensor, " some"]) -> Moments:
        """Sums and squares of some of the client's columns, as they are sent of its rows."""
        found = self._told.at(features).squares(self.agreed.num_classes)
        if self.detail("linear") == "off":
            nothing = torch.zeros_like(found.scatter)
            return Moments(found.count, found.total, nothing, nothing)
        return found

    def _own_squares(
        self, features: Int[Tensor, " some"], there: Int[Tensor, " some"]
    ) -> tuple[Tensor, Tensor]:
        """The client's own part of the pooled squares, in common units."""
        nothing = torch.zeros(len(features)).double()
        if self._sent is not None:
            sent, layout = self.sent("linear"), self.agreed.layout(self.space, "linear")
            if "variance" not in sent:
                return nothing, nothing
            own = sent["variance"][there] / self.scale[features] ** 2
            return own, sent["dof"][layout.block[there]]
        if self.detail("linear") == "off":
            return nothing, nothing
        found = self.told_squares(features)
        squares = found.scatter.diagonal() / self.scale[features] ** 2
        return squares, found.dof.diagonal()

    # ---- rows ------------------------------------------------------------------------------

    def scaled(self, columns: Float[Tensor, "rows own"]) -> Float[Tensor, "rows own"]:
        """Rows in the units of the whole space; a response may be included."""
        width = columns.shape[1]
        return (columns.double() - self.shift[:width]) / self.scale[:width]

    def mapped(self, columns: Float[Tensor, "rows own"]) -> Float[Tensor, "rows m"]:
        """Rows under the random map of their linked features; a response is kept as it is."""
        directions, offsets = self.random_map
        z = self.scaled(columns[:, : self.dim]).clamp(-_CLIP, _CLIP)
        return torch.cat([apply_map(z, directions, offsets), columns[:, self.dim :].double()], 1)

    @cached_property
    def random_map(self) -> tuple[Float[Tensor, "own m"], Float[Tensor, " m"]]:
        """Directions of the client's features, 0 for private ones, and offsets."""
        known, offsets = self.agreed.random_map(self.space)
        linked = self.is_linked.nonzero().flatten()
        position = torch.full((self.width,), -1)
        position[self.own] = self.there
        own = torch.zeros(self.dim, known.shape[1]).double()
        own[linked] = known[position[linked]] * max(1, len(linked)) ** -0.5
        return own, offsets


def usual_of_map(width: int) -> Usual:
    """The commonest values of random features, which are 0 where they split few rows off."""
    return Usual(torch.zeros(width).double(), torch.zeros(width, dtype=torch.bool))


def apply_map(z: Tensor, directions: Tensor, offsets: Tensor) -> Float[Tensor, "rows m"]:
    """Random features of rows in common units."""
    return 2 * (z.clamp(-_CLIP, _CLIP) @ directions + offsets).relu()


def sent_sums(agreed: Agreement, told: DisclosedRows, detail: Detail) -> dict[str, Tensor]:
    """Sums that a client sends of its features as they are."""
    own, there = _positions(agreed, told.schema)
    if not len(own):
        return {}
    layout = agreed.layout(told.schema.space, "linear")
    index = ColumnIndex(agreed.num_classes, there, len(layout.block))
    return layout.pack(told.at(own).sums(index, detail), detail)


def _positions(agreed: Agreement, schema: FeatureSchema) -> tuple[Tensor, Tensor]:
    """Positions of a client's shared columns, among its own and among the pooled ones."""
    names = agreed.shared[schema.space].names
    position = {name: i for i, name in enumerate(names)}
    pairs = [(i, position[n]) for i, n in enumerate(schema.features) if n in position]
    if agreed.responses and pairs:
        pairs.append((schema.dim, len(names)))
    own, there = zip(*pairs, strict=True) if pairs else ((), ())
    return torch.tensor(own, dtype=torch.int64), torch.tensor(there, dtype=torch.int64)
