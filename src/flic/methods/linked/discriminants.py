"""Discriminants and regressions from class statistics that are pooled over their holders.

The closed form of FLIC's idea: with φ(x) = A^{-½} h(x), the anchors A^{-½} m_c of all classes are
references N(v_c, I), and a row belongs to the nearest one. Nothing is trained; only sums are sent.
A client pools its peers' sums with its own rows; the fewer its rows, the more its peers count.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor

from flic.methods.linked.sums import CHUNK_ROWS, Moments, Totals


@dataclass(frozen=True)
class Shrinkage:
    """Weights of a client's peers (τ, ν) and of the identity (γ)."""

    mean_weight: float  # τ: rows that the peers' mean of a class counts for at most
    scatter_weight: float  # ν: rows that the peers' covariance counts for
    ridge: float  # γ


@dataclass(frozen=True)
class Base:
    """The peers' covariance B = V diag(variances) Vᵀ + FᵀF − LᵀL, V orthogonal."""

    variances: Float[Tensor, " p"]
    basis: Float[Tensor, "p p"] | None = None  # V; None: the features themselves
    more: Float[Tensor, "some p"] | None = None  # F V, a part of low rank
    less: Float[Tensor, "some p"] | None = None  # L V, a client's own rows where V is pooled

    @classmethod
    def of(cls, covariance: Float[Tensor, "p p"]) -> "Base":
        """A pooled covariance in its eigenbasis, negative eigenvalues cut off."""
        variances = covariance.diagonal()
        if bool((covariance == torch.diag(variances)).all()):
            return cls(variances.clamp_min(0))
        variances, basis = torch.linalg.eigh(covariance)
        return cls(variances.clamp_min(0), basis)

    def at(self, positions: Int[Tensor, " some"]) -> "Base":
        """The covariance of some features; without a basis of its own."""
        more = None if self.more is None else self.more[:, positions]
        return Base(self.variances[positions], more=more)

    def turned(self, rows: Float[Tensor, "rows p"]) -> Float[Tensor, "rows p"]:
        """Rows in the basis."""
        return rows if self.basis is None else rows @ self.basis

    def back(self, rows: Float[Tensor, "rows p"]) -> Float[Tensor, "rows p"]:
        """Rows out of the basis."""
        return rows if self.basis is None else rows @ self.basis.mT

    @cached_property
    def trace(self) -> float:
        """Sum of all variances."""
        parts = (self.more, self.less)
        more, less = (0.0 if own is None else float(own.square().sum()) for own in parts)
        return max(0.0, float(self.variances.sum()) + more - less)


@dataclass(frozen=True)
class Spread:
    """A client's scatter FᵀF around the means of its classes; stored as F if its rows are few."""

    rows: Float[Tensor, "some p"] | None = None
    matrix: Float[Tensor, "p p"] | None = None

    @classmethod
    def of(
        cls, h: Float[Tensor, "rows p"], means: Float[Tensor, "held p"], slot: Int[Tensor, " rows"]
    ) -> "Spread":
        """Scatter of rows in slots with these means."""
        p = h.shape[1]
        if len(h) <= p:
            return cls(rows=h - means[slot])
        scatter = torch.zeros(p, p, dtype=torch.float64)
        for part, own in zip(h.split(CHUNK_ROWS), slot.split(CHUNK_ROWS), strict=True):
            residuals = part - means[own]
            scatter.addmm_(residuals.mT, residuals)
        return cls(matrix=scatter)

    @cached_property
    def diagonal(self) -> Float[Tensor, " p"]:
        """Squares of each feature."""
        if self.matrix is not None:
            return self.matrix.diagonal()
        assert self.rows is not None
        return self.rows.square().sum(0)

    @cached_property
    def trace(self) -> float:
        """All squares."""
        return float(self.diagonal.sum())

    def turned(self, base: Base) -> "Spread":
        """The scatter in a basis."""
        if self.matrix is not None:
            return Spread(matrix=base.turned(base.turned(self.matrix).mT))
        assert self.rows is not None
        return Spread(rows=base.turned(self.rows))

    def without_last(self) -> tuple["Spread", Float[Tensor, " p"]]:
        """The scatter of all features but the last, and their products with the last."""
        if self.matrix is not None:
            return Spread(matrix=self.matrix[:-1, :-1]), self.matrix[:-1, -1]
        assert self.rows is not None
        return Spread(rows=self.rows[:, :-1]), self.rows[:, -1] @ self.rows[:, :-1]


@dataclass(frozen=True)
class Own:
    """Statistics of a client's training rows for its discriminant."""

    means: Float[Tensor, "held p"]
    counts: Float[Tensor, " held"]
    spread: Spread
    dof: float

    @classmethod
    def of(cls, h: Float[Tensor, "rows p"], slot: Int[Tensor, " rows"], num_held: int) -> "Own":
        """From rows and the slot of each row's class among the client's own classes."""
        counts = torch.bincount(slot, minlength=num_held).double()
        total = torch.zeros(num_held, h.shape[1], dtype=torch.float64).index_add_(0, slot, h)
        means = total / counts.clamp_min(1)[:, None]
        dof = max(0.0, float(len(h) - (counts > 0).sum()))
        return cls(means, counts, Spread.of(h, means, slot), dof)

    def pooled_means(
        self, others: Totals, held: Int[Tensor, " held"], weight: float
    ) -> Float[Tensor, "held p"]:
        """m_c: means of each class over the client and its peers, feature by feature."""
        count, total = others.count[held], others.total[held]
        t = 1 / (1 / max(weight, 1e-12) + 1 / count.clamp_min(1e-12)) * (count > 0)
        pooled = self.counts[:, None] * self.means + t * total / count.clamp_min(1)
        return pooled / (self.counts[:, None] + t).clamp_min(1e-12)


@dataclass(frozen=True)
class Linear:
    """Scores W h + b of a row h in the basis of a `Base`."""

    weight: Float[Tensor, "outputs p"]
    bias: Float[Tensor, " outputs"]


def scores(
    found: Sequence[Linear], rows: Float[Tensor, "rows p"]
) -> Float[Tensor, "settings rows outputs"]:
    """Scores of rows in the basis under each of several settings, in one product."""
    weights = torch.cat([own.weight for own in found])
    parts = (rows @ weights.mT).unflatten(1, (len(found), -1)).movedim(1, 0)
    return parts + torch.stack([own.bias for own in found])[:, None]


def discriminants(
    own: Own,
    base: Base,
    others: Totals,
    held: Int[Tensor, " held"],
    settings: Sequence[Shrinkage],
) -> list[Linear]:
    """Discriminants hᵀA⁻¹m_c − ½ m_cᵀA⁻¹m_c + log π_c, one for each setting.

    A = (dof Ŝ + ν B) / (dof + ν) with the client's own covariance Ŝ and the peers' B, then
    shrunk to the identity. In B's eigenbasis, where Ŝ is a sum of few rows, A⁻¹ costs little.
    """
    prior = ((own.counts + 1) / (own.counts.sum() + len(own.counts))).log()
    spread = own.spread.turned(base)
    means = {
        t: base.turned(own.pooled_means(others, held, t))
        for t in dict.fromkeys(s.mean_weight for s in settings)
    }
    found: dict[Shrinkage, Linear] = {}
    for alike in _by_matrix(settings):
        turned = torch.cat([means[s.mean_weight] for s in alike])
        solved = _solve(own.dof, spread, base, alike[0], turned)  # A⁻¹ m_c, a row each
        halves = (turned * solved).sum(1) / 2
        parts = (both.split(len(own.counts)) for both in (solved, halves))
        for s, weight, half in zip(alike, *parts, strict=True):
            found[s] = Linear(weight, prior - half)
    return [found[s] for s in settings]


def regressions(
    own: Own,
    base: Base,
    others: Moments,
    settings: Sequence[Shrinkage],
) -> list[Linear]:
    """Ridge regressions m_y + (h − m)ᵀ A⁻¹ a, one for each setting.

    The response is the last feature of `own` and of `others`; A and a are its parts of the
    covariance that `discriminants` has, and `base` is of the features alone.
    """
    features, response = own.spread.without_last()
    features, response = features.turned(base), base.turned(response[None])[0]
    theirs = base.turned(others.covariance[:-1, -1][None])[0]
    found: dict[Shrinkage, Linear] = {}
    for alike in _by_matrix(settings):
        first = alike[0]
        of_rows, of_base = _shares(own.dof, first)
        together = of_rows * response + of_base * theirs  # a
        slope = _solve(own.dof, features, base, first, together[None])
        slope = slope * (1 - first.ridge)  # A alone is shrunk, not a
        for s in alike:
            mean = own.pooled_means(others, torch.zeros(1, dtype=torch.int64), s.mean_weight)
            found[s] = Linear(slope, mean[0, -1] - base.turned(mean[:, :-1])[0] @ slope.mT)
    return [found[s] for s in settings]


def _by_matrix(settings: Sequence[Shrinkage]) -> list[list[Shrinkage]]:
    """Settings in groups with the same A."""
    alike: dict[tuple[float, float], dict[Shrinkage, None]] = {}
    for s in settings:
        alike.setdefault((s.scatter_weight, s.ridge), {})[s] = None
    return [list(own) for own in alike.values()]


def _shares(dof: float, s: Shrinkage) -> tuple[float, float]:
    """Weights of the client's own scatter and of the peers' covariance in A."""
    if s.scatter_weight == float("inf"):
        return 0.0, 1.0
    rows = max(dof + s.scatter_weight, 1e-12)
    return 1 / rows, s.scatter_weight / rows


def _solve(
    dof: float,
    spread: Spread,
    base: Base,
    s: Shrinkage,
    rows: Float[Tensor, "rows p"],
) -> Float[Tensor, "rows p"]:
    """A⁻¹ v of rows v in the basis; by Woodbury's identity where A is diagonal but for few rows."""
    p = len(base.variances)
    of_rows, of_base = _shares(dof, s)
    trace = of_base * base.trace + of_rows * spread.trace
    shift = max(s.ridge * trace / p, 1e-8 * trace / p, 1e-12)
    diagonal = (1 - s.ridge) * of_base * base.variances + shift
    parts: list[tuple[float, Tensor]] = []
    if spread.rows is not None and of_rows:
        parts.append(((1 - s.ridge) * of_rows, spread.rows))
    if base.more is not None and of_base:
        parts.append(((1 - s.ridge) * of_base, base.more))
    if base.less is not None and of_base:
        parts.append(((s.ridge - 1) * of_base, base.less))
    if spread.matrix is not None and of_rows:
        whole = (1 - s.ridge) * of_rows * spread.matrix + torch.diag(diagonal)
        for weight, own in parts:
            whole.addmm_(own.mT, own, alpha=weight)
        return torch.linalg.solve(whole, rows.mT).mT
    return _by_woodbury(diagonal, [part for part in parts if len(part[1])], rows)


def _by_woodbury(
    diagonal: Float[Tensor, " p"],
    parts: Sequence[tuple[float, Tensor]],
    rows: Float[Tensor, "rows p"],
) -> Float[Tensor, "rows p"]:
    """(diag + Σ w FᵀF)⁻¹ v of rows v, of weights w of some rows F."""
    first = rows / diagonal
    if not parts:
        return first
    # Each row counts as ±1 once it is scaled by the root of its weight.
    scaled = torch.cat([own * abs(weight) ** 0.5 for weight, own in parts])
    signs = torch.cat([torch.full((len(own),), weight).sign() for weight, own in parts])
    over = scaled / diagonal
    capacity = torch.diag(signs.double()) + over @ scaled.mT
    return first - torch.linalg.solve(capacity, scaled @ first.mT).mT @ over
