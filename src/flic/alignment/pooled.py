"""Class statistics of linked features, pooled over their holders, and what a client makes of them.

The closed form of FLIC's idea: with φ(x) = A^{-½} h(x), the anchors A^{-½} m_c of all classes are
references N(v_c, I), and a row belongs to the nearest one. Nothing is trained; only sums travel.
A client pools what others sent with its own rows, by as much as its own rows leave open.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor


@dataclass(frozen=True)
class Moments:
    """Sums over labelled rows in the features of a space; zero for features that rows lack."""

    count: Float[Tensor, "classes p"]  # rows of a class that have the feature
    total: Float[Tensor, "classes p"]  # Σ h
    scatter: Float[Tensor, "p p"]  # Σ (h − h̄_c)(h − h̄_c)ᵀ, around the client's own means
    dof: Float[Tensor, "p p"]  # rows less classes behind each entry

    @classmethod
    def of(
        cls,
        h: Float[Tensor, "rows own"],
        y: Int[Tensor, " rows"],
        *,
        num_classes: int,
        places: Int[Tensor, " own"],
        width: int,
    ) -> "Moments":
        """Sums of one client's rows, whose features have the given places among `width`."""
        h = h.double()
        counts = torch.bincount(y, minlength=num_classes).double()
        total = torch.zeros(num_classes, h.shape[1], dtype=torch.float64).index_add_(0, y, h)
        residuals = h - (total / counts.clamp_min(1)[:, None])[y]
        dof = max(0.0, float(len(h) - (counts > 0).sum()))
        own = torch.ones(len(places), len(places), dtype=torch.float64)
        return cls(
            _spread_rows(counts[:, None].expand(-1, len(places)), places, width),
            _spread_rows(total, places, width),
            _spread_pairs(residuals.mT @ residuals, places, width),
            _spread_pairs(dof * own, places, width),
        )

    def __add__(self, other: "Moments") -> "Moments":
        return Moments(*(a + b for a, b in zip(self.parts, other.parts, strict=True)))

    def __sub__(self, other: "Moments") -> "Moments":
        return Moments(*(a - b for a, b in zip(self.parts, other.parts, strict=True)))

    @property
    def parts(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """All sums."""
        return self.count, self.total, self.scatter, self.dof

    def at(self, places: Int[Tensor, " own"]) -> "Moments":
        """The sums of some features."""
        return Moments(
            self.count[:, places],
            self.total[:, places],
            self.scatter[places][:, places],
            self.dof[places][:, places],
        )

    def scaled(self, shift: Float[Tensor, " p"], scale: Float[Tensor, " p"]) -> "Moments":
        """Sums of (h − shift) / scale."""
        total = (self.total - self.count * shift) / scale
        return Moments(self.count, total, self.scatter / scale[:, None] / scale, self.dof)

    @property
    def mean(self) -> Float[Tensor, " p"]:
        """Mean of each feature over all rows that have it."""
        return self.total.sum(0) / self.count.sum(0).clamp_min(1)

    @property
    def deviation(self) -> Float[Tensor, " p"]:
        """Deviation of each feature within classes; 1 where it has none."""
        variance = self.scatter.diagonal() / self.dof.diagonal().clamp_min(1)
        deviation = variance.clamp_min(0).sqrt()
        # A feature that hardly varies must not be blown up: its scale is a twentieth of the usual.
        typical = deviation[deviation > 0].median() if bool((deviation > 0).any()) else 1.0
        floored = deviation.clamp_min(0.05 * float(typical))
        return torch.where(floored > 0, floored, torch.ones_like(floored))

    @cached_property
    def covariance(self) -> Float[Tensor, "p p"]:
        """Pooled covariance within classes; 0 where no one has both features.

        Entries rest on different clients, so it need not be positive semi-definite.
        """
        found = self.scatter / self.dof.clamp_min(1)
        return torch.where(self.dof > 0, found, torch.zeros_like(found))


def _spread_rows(values: Tensor, places: Tensor, width: int) -> Tensor:
    return torch.zeros(len(values), width, dtype=torch.float64).index_copy_(1, places, values)


def _spread_pairs(values: Tensor, places: Tensor, width: int) -> Tensor:
    spread = torch.zeros(width, width, dtype=torch.float64)
    spread[places[:, None], places] = values
    return spread


@dataclass(frozen=True)
class Shrinkage:
    """How much a client leans on others (τ, ν) and on the identity (γ)."""

    mean_weight: float  # τ: rows that the others' mean of a class counts for at most
    scatter_weight: float  # ν: rows that the others' covariance counts for
    ridge: float  # γ


@dataclass(frozen=True)
class Base:
    """The others' covariance in its eigenbasis, negative eigenvalues cut off."""

    basis: Float[Tensor, "p p"]  # columns
    variances: Float[Tensor, " p"]

    @classmethod
    def of(cls, covariance: Float[Tensor, "p p"]) -> "Base":
        """Eigenbasis of a pooled covariance."""
        variances, basis = torch.linalg.eigh(covariance)
        return cls(basis, variances.clamp_min(0))


@dataclass(frozen=True)
class Own:
    """A client's training rows as its discriminant needs them."""

    means: Float[Tensor, "held p"]
    counts: Float[Tensor, " held"]
    residuals: Float[Tensor, "rows p"]
    dof: float

    @classmethod
    def of(cls, h: Float[Tensor, "rows p"], slot: Int[Tensor, " rows"], num_held: int) -> "Own":
        """From rows and the slot of each row's class among the client's own classes."""
        counts = torch.bincount(slot, minlength=num_held).double()
        total = torch.zeros(num_held, h.shape[1], dtype=torch.float64).index_add_(0, slot, h)
        means = total / counts.clamp_min(1)[:, None]
        return cls(means, counts, h - means[slot], max(0.0, float(len(h) - (counts > 0).sum())))

    def pooled_means(
        self, others: Moments, held: Int[Tensor, " held"], weight: float
    ) -> Float[Tensor, "held p"]:
        """m_c: own and others' means of each class, feature by feature over its holders."""
        count, total = others.count[held], others.total[held]
        t = 1 / (1 / max(weight, 1e-12) + 1 / count.clamp_min(1e-12)) * (count > 0)
        pooled = self.counts[:, None] * self.means + t * total / count.clamp_min(1)
        return pooled / (self.counts[:, None] + t).clamp_min(1e-12)


def discriminants(
    own: Own,
    base: Base,
    others: Moments,
    held: Int[Tensor, " held"],
    rows: Float[Tensor, "rows p"],
    settings: Sequence[Shrinkage],
) -> list[Float[Tensor, "rows held"]]:
    """Scores of rows under each setting: hᵀA⁻¹m_c − ½ m_cᵀA⁻¹m_c + log π_c.

    A = (dof Ŝ + ν B) / (dof + ν) with the client's own covariance Ŝ and the others' B, then
    shrunk to the identity. In B's eigenbasis Ŝ is a sum of few rows, so A⁻¹ costs little.
    """
    prior = ((own.counts + 1) / (own.counts.sum() + len(own.counts))).log()
    inside = own.residuals @ base.basis, rows @ base.basis
    means = {t: own.pooled_means(others, held, t) for t in {s.mean_weight for s in settings}}
    turned = {t: m @ base.basis for t, m in means.items()}
    found = []
    for s in settings:
        inverse = _inverse(own.dof, inside[0], base.variances, s)
        solved = inverse(turned[s.mean_weight])  # A⁻¹ m_c, a row each
        own_part = (turned[s.mean_weight] * solved).sum(1) / 2
        found.append(inside[1] @ solved.mT - own_part + prior)
    return found


def _inverse(
    dof: float, residuals: Tensor, variances: Tensor, s: Shrinkage
) -> Callable[[Tensor], Tensor]:
    """The map v ↦ A⁻¹ v for rows v in the eigenbasis, by Woodbury's identity."""
    p = len(variances)
    weight = s.scatter_weight
    alone = weight == float("inf")
    of_base = 1.0 if alone else weight / max(dof + weight, 1e-12)
    of_rows = 0.0 if alone else 1 / max(dof + weight, 1e-12)
    trace = of_base * float(variances.sum()) + of_rows * float(residuals.square().sum())
    shift = max(s.ridge * trace / p, 1e-8 * trace / p, 1e-12)
    diagonal = (1 - s.ridge) * of_base * variances + shift
    if of_rows == 0 or not len(residuals):
        return lambda v: v / diagonal
    scaled = residuals * ((1 - s.ridge) * of_rows) ** 0.5
    over = scaled / diagonal
    capacity = torch.eye(len(scaled), dtype=torch.float64) + over @ scaled.mT
    factor = torch.linalg.cholesky(capacity)

    def apply(v: Tensor) -> Tensor:
        first = v / diagonal
        inner = torch.cholesky_solve(scaled @ first.mT, factor)
        return first - (over.mT @ inner).mT

    return apply
