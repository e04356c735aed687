"""Sums of a client's peers in the form that predictors need: class sums, and covariance.

The pooled scatter less the client's own is a different matrix at each client. If all hold the same
features, one eigenbasis serves them all, and a client's few rows are subtracted in it.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from flic.methods.linked.agreement import PooledSums, SumsKind, class_of, columns_of
from flic.methods.linked.client_sums import ClientSums
from flic.methods.linked.discriminants import Base, Linear, Own
from flic.methods.linked.sums import ALONG, Moments, Totals

MOST_ROWS_PER_FEATURE = 0.25
"""Most rows of a client per feature for which subtracting them in the pooled basis pays."""


@dataclass(frozen=True)
class PeerSums:
    """A client's columns in common units, and its peers' sums of them."""

    columns: Float[Tensor, "rows p"]  # a response is the last one
    sums: Totals
    base: Base  # of the features alone
    basis: Float[Tensor, "features features"] | None = None  # the basis of the columns
    centre: Float[Tensor, " features"] | None = None  # subtracted from them before

    def back(self, found: Linear) -> tuple[Float[Tensor, "p outputs"], Float[Tensor, " outputs"]]:
        """Weights and biases of the columns themselves."""
        weight = self.base.back(found.weight).mT
        weight = weight if self.basis is None else self.basis @ weight
        return weight, found.bias if self.centre is None else found.bias - self.centre @ weight


@dataclass(frozen=True)
class PeerSide:
    """The client's columns of a kind, and their positions among the pooled ones."""

    kind: SumsKind
    columns: Float[Tensor, "rows p"]
    own: Int[Tensor, " shared"]
    there: Int[Tensor, " shared"]
    shift: Float[Tensor, " p"]
    scale: Float[Tensor, " p"]
    sums: Totals

    @classmethod
    def linear(cls, pool: ClientSums) -> "PeerSide":
        """The columns themselves."""
        columns = pool.scaled(columns_of(pool.agreed, pool.client.train))
        return cls("linear", columns, pool.own, pool.there, pool.shift, pool.scale, pool.others)

    @classmethod
    def mapped(cls, pool: ClientSums) -> "PeerSide":
        """The random features of the linked ones, in units of their own."""
        shift, scale = pool.mapped_units
        columns = pool.mapped(columns_of(pool.agreed, pool.client.train))
        everyone = pool.agreed.everyone(pool.state, pool.space, "mapped").sums
        sent = pool.agreed.layout(pool.space, "mapped").unpack_totals(pool.sent_totals("mapped"))
        count, total = everyone.count - sent.count, everyone.total - sent.total
        sums = Totals(count, (total - count * shift) / scale)
        every = torch.arange(len(shift))
        return cls("mapped", (columns - shift) / scale, every, every, shift, scale, sums)


def others_at(pool: ClientSums, side: PeerSide, positions: Int[Tensor, " p"]) -> PeerSums:
    """Some of the columns, and the peers' sums of them."""
    columns = side.columns[:, positions]
    sums = Totals(side.sums.count[:, positions], side.sums.total[:, positions])
    dim = len(positions) - pool.agreed.responses
    if not len(side.own):
        return PeerSums(columns, sums, Base(torch.ones(dim).double()))
    if f"moments.{pool.space}.{side.kind}.along" in pool.state:
        return PeerSums(columns, sums, _of_low_rank(pool, side).at(positions))
    everyone = pool.agreed.everyone(pool.state, pool.space, side.kind)
    rows = pool.rows_in_sums(side.kind)
    if rows is not None and _few(pool, everyone, side, rows) and not pool.agreed.responses:
        return _in_basis_of_all(pool, everyone, side, rows, positions)
    moments = _scatter(pool, everyone, side).at(positions)
    covariance = moments.covariance[:dim, :dim].clone()
    unknown = moments.dof.diagonal()[:dim] == 0
    covariance[unknown, unknown] = 1.0  # columns are scaled by their deviation, so this is usual
    return PeerSums(columns, moments, Base.of(covariance))


def _few(pool: ClientSums, everyone: PooledSums, side: PeerSide, rows: Tensor) -> bool:
    """Return whether the pooled eigenbasis is of use: all hold all, and the client has few rows.

    Peers may send nothing of their scatter; then the pooled one is the client's own.
    """
    width = len(everyone.scale)
    if (
        not everyone.is_of_one_block
        or len(side.own) < width
        or len(rows) > MOST_ROWS_PER_FEATURE * width
    ):
        return False
    own = len(rows) - len(class_of(pool.agreed, pool.client.train)[rows].unique())
    return float(everyone.sums.dof[0, 0]) - own >= 1


def _in_basis_of_all(
    pool: ClientSums, everyone: PooledSums, side: PeerSide, rows: Tensor, positions: Tensor
) -> PeerSums:
    """Columns and sums in the pooled eigenbasis, with the client's rows to subtract.

    All linked features have the same holders, so that class sums may be turned as well.
    """
    variances, basis = everyone.spectrum
    width = side.columns.shape[1]
    whole = torch.ones(width).double()
    if len(side.own) == width and bool((side.there == torch.arange(width)).all()):
        wide = basis  # all columns, in the pooled order
    else:
        wide = torch.eye(width).double()
        wide[side.own[:, None], side.own] = basis[side.there]
        wide = wide[positions][:, positions]
    columns, total = side.columns[:, positions] @ wide, side.sums.total[:, positions] @ wide
    y = class_of(pool.agreed, pool.client.train)
    own = Own.of(columns[rows], y[rows], pool.agreed.num_classes)
    left = float(everyone.sums.dof[0, 0]) - own.dof
    whole[side.own] = variances.clamp_min(0) / left
    linked = torch.zeros(width).double().index_fill_(0, side.own, 1.0)[positions]
    assert own.spread.rows is not None  # they are few
    base = Base(whole[positions], less=own.spread.rows * linked / left**0.5)
    return PeerSums(columns, Totals(side.sums.count[:, positions], total), base, wide)


def _of_low_rank(pool: ClientSums, side: PeerSide) -> Base:
    """The peers' covariance from their squares, and from their sums along directions."""
    layout, sent = pool.agreed.layout(pool.space, side.kind), pool.sent(side.kind)
    prefix, width = f"moments.{pool.space}.{side.kind}.", side.columns.shape[1]
    state = {name: pool.state[prefix + name] for name in (*ALONG, "variance", "dof")}
    pooled, own = layout.unpack_squares(state), layout.unpack_squares(sent)
    squares, dof = ((a - b)[side.there] for a, b in zip(pooled, own, strict=True))
    # In a unit that is far too large, only rounding is left of the peers' squares.
    squares = squares.maximum(1e-13 * own[0][side.there])
    variances = torch.ones(width).double()  # as usual, of columns that are scaled by deviation
    known = squares / side.scale[side.own].square() / dof.clamp_min(1)
    variances[side.own] = torch.where(dof > 0, known, 1.0)
    along = (layout.unpack_along(state) - layout.unpack_along(sent)).at(side.there)
    factor = along.spread(side.own, width).factor(variances, side.scale)
    return Base((variances - factor.square().sum(0)).clamp_min(0), more=factor)


def _scatter(pool: ClientSums, everyone: PooledSums, side: PeerSide) -> Moments:
    """All sums of the peers, in the client's columns and units."""
    sent = pool.agreed.layout(pool.space, side.kind).unpack(pool.sent(side.kind))
    others = (everyone.sums - sent).at(side.there).spread(side.own, side.columns.shape[1])
    return others.scaled(side.shift, side.scale)
