"""Sums over labelled rows of linked features: their form when sent, and their addition.

Sums of different clients are added feature by feature over their holders. Numbers that are always
equal are sent once: features that the same clients hold (a block) have the same counts of rows, and
a scatter is symmetric.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from flic.methods.linked.along import Along

Detail = Literal["off", "diagonal", "directions", "full"]
"""Detail sent of a scatter: nothing, squares alone, products with directions between the classes,
all products of two."""

CHUNK_ROWS = 4096
"""Number of rows processed together; memory does not grow with the rows of a client."""


_NONE = 1e-6
"""Deviation, as a share of the mean, that may be rounding error of a constant."""

Parts = Iterable[tuple[Tensor, Tensor]]
"""Rows in own features and their classes, part by part."""


@dataclass(frozen=True)
class ColumnIndex:
    """Positions of a client's features among those of a space."""

    num_classes: int
    positions: Int[Tensor, " own"]
    width: int

    def counts(self, count: Float[Tensor, " classes"]) -> Float[Tensor, "classes p"]:
        """The same number of rows for all own features."""
        return self.rows(count[:, None].expand(-1, len(self.positions)))

    def rows(self, values: Float[Tensor, "some own"]) -> Float[Tensor, "some p"]:
        """Values of own features, 0 for the others."""
        spread = torch.zeros(len(values), self.width, dtype=torch.float64)
        return spread.index_copy_(1, self.positions, values)

    def pairs(self, values: Float[Tensor, "own own"]) -> Float[Tensor, "p p"]:
        """Values of pairs of own features, 0 for the others."""
        if len(self.positions) == self.width and bool((self.positions.diff() == 1).all()):
            return values
        spread = torch.zeros(self.width, self.width, dtype=torch.float64)
        spread[self.positions[:, None], self.positions] = values
        return spread


@dataclass(frozen=True)
class Totals:
    """Rows of each class and their sum, feature by feature; zero for features that rows lack."""

    count: Float[Tensor, "classes p"]  # rows of a class that have the feature
    total: Float[Tensor, "classes p"]  # Σ h

    @classmethod
    def of_parts(cls, parts: Parts, index: "ColumnIndex") -> "Totals":
        """Sums of rows that come part by part."""
        count = torch.zeros(index.num_classes, dtype=torch.float64)
        total = torch.zeros(index.num_classes, len(index.positions), dtype=torch.float64)
        for h, y in parts:
            count += torch.bincount(y, minlength=index.num_classes)
            total.index_add_(0, y, h.double())
        return Totals(index.counts(count), index.rows(total))

    @property
    def mean(self) -> Float[Tensor, " p"]:
        """Mean of each feature over all rows that have it."""
        return self.total.sum(0) / self.count.sum(0).clamp_min(1)


@dataclass(frozen=True)
class Moments(Totals):
    """Sums over labelled rows in the features of a space; zero for features that rows lack."""

    scatter: Float[Tensor, "p p"]  # Σ (h − h̄_c)(h − h̄_c)ᵀ, around the client's own means
    dof: Float[Tensor, "p p"]  # rows less classes behind each entry

    @classmethod
    def of_parts(cls, parts: Parts, index: "ColumnIndex") -> "Moments":
        """Sums of one client's rows that come part by part, one part in memory at a time.

        The scatter is around the means of all parts; that of the parts so far is moved there.
        """
        own = len(index.positions)
        count = torch.zeros(index.num_classes, 1, dtype=torch.float64)
        total = torch.zeros(index.num_classes, own, dtype=torch.float64)
        scatter = torch.zeros(own, own, dtype=torch.float64)
        for h, y in parts:
            more = torch.bincount(y, minlength=index.num_classes).double()[:, None]
            added = torch.zeros_like(total).index_add_(0, y, h.double())
            means = added / more.clamp_min(1)
            residuals = h.double() - means[y]
            scatter.addmm_(residuals.mT, residuals)
            if bool(count.any()):
                moved = (count * more / (count + more).clamp_min(1)).sqrt()
                moved = moved * (means - total / count.clamp_min(1))
                scatter.addmm_(moved.mT, moved)
            count, total = count + more, total + added
        dof = (count.sum() - (count > 0).sum()).clamp_min(0).expand(own, own)
        return cls(
            index.counts(count[:, 0]), index.rows(total), index.pairs(scatter), index.pairs(dof)
        )

    def __add__(self, other: "Moments") -> "Moments":
        return Moments(*(a + b for a, b in zip(self.parts, other.parts, strict=True)))

    def __sub__(self, other: "Moments") -> "Moments":
        return Moments(*(a - b for a, b in zip(self.parts, other.parts, strict=True)))

    @property
    def parts(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """All sums."""
        return self.count, self.total, self.scatter, self.dof

    def at(self, positions: Int[Tensor, " own"]) -> "Moments":
        """The sums of some features."""
        return Moments(
            self.count[:, positions],
            self.total[:, positions],
            self.scatter[positions][:, positions],
            self.dof[positions][:, positions],
        )

    def spread(self, positions: Int[Tensor, " p"], width: int) -> "Moments":
        """The sums with other features, of which nothing is known, between these."""
        index = ColumnIndex(len(self.count), positions, width)
        return Moments(
            index.rows(self.count),
            index.rows(self.total),
            index.pairs(self.scatter),
            index.pairs(self.dof),
        )

    def scaled(self, shift: Float[Tensor, " p"], scale: Float[Tensor, " p"]) -> "Moments":
        """Sums of (h − shift) / scale."""
        total = (self.total - self.count * shift) / scale
        return Moments(self.count, total, self.scatter / scale[:, None] / scale, self.dof)

    @property
    def deviation(self) -> Float[Tensor, " p"]:
        """Deviation of each feature within classes; 1 where it has none."""
        deviation = self._spread.clamp_min(_NONE * self.mean.abs())
        told = (self.dof.diagonal() > 0) & (deviation > 0)
        return torch.where(told, deviation, torch.ones_like(deviation))

    @property
    def varies(self) -> Bool[Tensor, " p"]:
        """True for the features that are known to vary within classes."""
        return (self.dof.diagonal() > 0) & (self._spread > _NONE * self.mean.abs())

    @property
    def _spread(self) -> Float[Tensor, " p"]:
        variance = self.scatter.diagonal() / self.dof.diagonal().clamp_min(1)
        return variance.clamp_min(0).sqrt()

    @cached_property
    def covariance(self) -> Float[Tensor, "p p"]:
        """Pooled covariance within classes; 0 where no client has both features.

        Entries rest on different clients, so it need not be positive semi-definite.
        """
        found = self.scatter / self.dof.clamp_min(1)
        return torch.where(self.dof > 0, found, torch.zeros_like(found))


# ---- what is sent --------------------------------------------------------------------------


_TOTALS, _DIAGONAL, _PAIRS = ("count", "total"), ("variance", "dof"), ("cross", "pairs")
COUNTS = ("count", "dof", "pairs", "behind")
"""Names of the tensors that are numbers of rows."""

ALONG = ("along", "behind", "core", "overlap")
"""Tensors of `along.py`, which are sent once the directions are known."""

SENT: Mapping[Detail, tuple[str, ...]] = {
    "off": _TOTALS,
    "diagonal": _TOTALS + _DIAGONAL,
    "directions": _TOTALS + _DIAGONAL + ALONG,
    "full": _TOTALS + _DIAGONAL + _PAIRS,
}
"""Names of the tensors sent, by detail."""


class Layout:
    """Form in which the sums of a space are sent: by name, each number once.

    `variance` and `dof` are the diagonal of a scatter and the rows behind it, `cross` and `pairs`
    the products of two features. A client that does not send some leaves their names out.
    """

    def __init__(self, block: Sequence[int], num_classes: int) -> None:
        self.block = torch.tensor(block)  # of each feature; those of one have the same holders
        self.num_classes = num_classes
        self.directions = num_classes - 1
        self._first = torch.tensor([block.index(b) for b in range(1 + max(block))])

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of every tensor."""
        p, blocks = len(self.block), len(self._first)
        return {
            "count": (self.num_classes, blocks),
            "total": (self.num_classes, p),
            "variance": (p,),
            "dof": (blocks,),
            "along": (p, self.directions),
            "behind": (blocks,),
            "core": (self.directions, self.directions),
            "overlap": (2,),
            "cross": (p * (p - 1) // 2,),
            "pairs": (blocks * (blocks + 1) // 2,),
        }

    def pack(self, own: Totals, detail: Detail) -> dict[str, Tensor]:
        """Tensors that one client sends at first."""
        found = {"count": own.count[:, self._first], "total": own.total}
        if isinstance(own, Moments):
            dof = own.dof[self._first][:, self._first]
            found |= {"variance": own.scatter.diagonal(), "dof": dof.diagonal()}
            if detail == "full":
                found |= {"cross": _upper(own.scatter, offset=1), "pairs": _upper(dof, offset=0)}
        return {name: found[name].contiguous() for name in SENT[detail] if name not in ALONG}

    def pack_along(self, own: Along) -> dict[str, Tensor]:
        """Tensors that one client sends once the directions are known."""
        found = dict(zip(ALONG, own.parts, strict=True)) | {"behind": own.behind[self._first]}
        return {name: value.contiguous() for name, value in found.items()}

    def unpack_along(self, sent: Mapping[str, Tensor]) -> Along:
        """Sums along the directions; 0 for a client that sent none."""
        along, behind, core, overlap = (self._given(sent, name) for name in ALONG)
        return Along(along, behind[self.block], core, overlap)

    def unpack_squares(self, sent: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Squares of every feature, and the rows less classes behind them."""
        return self._given(sent, "variance"), self._given(sent, "dof")[self.block]

    def unpack_totals(self, sent: Mapping[str, Tensor]) -> Totals:
        """Counts and sums alone; 0 for a client that sent nothing."""
        count, total = (self._given(sent, name) for name in ("count", "total"))
        return Totals(count[:, self.block], total)

    def _given(self, sent: Mapping[str, Tensor], name: str) -> Tensor:
        """The tensor sent under a name; 0 if it was left out."""
        if name in sent:
            return sent[name]
        return torch.zeros(self.shapes[name], dtype=torch.float64)

    def unpack(self, sent: Mapping[str, Tensor]) -> Moments:
        """Sums from the tensors of one client, or from the added tensors of many."""
        p, blocks = len(self.block), len(self._first)
        given = {name: self._given(sent, name) for name in SENT["full"]}
        dof = _symmetric(given["pairs"], blocks, offset=0)[self.block][:, self.block]
        totals = self.unpack_totals(sent)
        return Moments(
            totals.count,
            totals.total,
            _symmetric(given["cross"], p, offset=1).diagonal_scatter(given["variance"]),
            dof.diagonal_scatter(given["dof"][self.block]),
        )


def _upper(matrix: Tensor, *, offset: int) -> Tensor:
    rows, columns = torch.triu_indices(*matrix.shape, offset=offset)
    return matrix[rows, columns]


def _symmetric(upper: Tensor, width: int, *, offset: int) -> Tensor:
    rows, columns = torch.triu_indices(width, width, offset=offset)
    matrix = torch.zeros(width, width, dtype=upper.dtype)
    matrix[rows, columns] = upper
    matrix[columns, rows] = upper
    return matrix
