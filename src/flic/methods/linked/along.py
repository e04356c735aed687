"""Sums along directions: of the pooled scatter S, what discriminants need of it.

A discriminant needs A⁻¹m_c alone. So clients send S M, d numbers for each feature, M being d
differences of pooled class means, and the squares of the features. Everyone makes of these

  A ≈ S M (MᵀS M)⁻¹ (S M)ᵀ + diag,

which has the right variances, and is exact along M. (More directions of the Krylov space M, S M,
S² M, … gain a fifth of what these do, and cost an upload each.)
"""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

_RANK = 1e-3
"""Share of the largest eigenvalue below which a direction is the others' or rounding error."""

_LEAST_TOGETHER = 0.01


@dataclass(frozen=True)
class Along:
    """The scatter S of clients' rows along d directions M."""

    along: Float[Tensor, "p d"]  # S M
    behind: Float[Tensor, " p"]  # rows less classes behind it
    core: Float[Tensor, "d d"]  # MᵀS M
    overlap: Float[Tensor, " 2"]  # see `together`

    @property
    def parts(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """All sums."""
        return self.along, self.behind, self.core, self.overlap

    def __sub__(self, other: "Along") -> "Along":
        return Along(*(a - b for a, b in zip(self.parts, other.parts, strict=True)))

    def at(self, positions: Int[Tensor, " own"]) -> "Along":
        """The sums of some features."""
        return replace(self, along=self.along[positions], behind=self.behind[positions])

    def spread(self, positions: Int[Tensor, " p"], width: int) -> "Along":
        """The sums with other features, of which nothing is known, between these."""
        along = torch.zeros(width, self.along.shape[1], dtype=torch.float64)
        behind = torch.zeros(width, dtype=torch.float64)
        along[positions], behind[positions] = self.along, self.behind
        return replace(self, along=along, behind=behind)

    @property
    def together(self) -> float:
        """ρ: the mean of D_jl / √(D_jj D_ll) over pairs of features, D the rows that have both."""
        squared, features = self.overlap.tolist()
        if features < 1.5:
            return 1.0
        found = (squared - features) / (features * (features - 1))
        return min(1.0, max(_LEAST_TOGETHER, found))

    def factor(
        self, variance: Float[Tensor, " p"], scale: Float[Tensor, " p"]
    ) -> Float[Tensor, "rank p"]:
        """F: the low-rank part FᵀF of the covariance, of features in units of `scale`.

        Where clients lack features, S is of other rows in every entry. Zeros for those that lack
        one leave S positive semi-definite, but its entries too small by the mean of what is lacking
        (ρ). Sums are rounded, so that F can have more than a feature's variance; it is cut to it.
        """
        size = self.core.diagonal().clamp_min(0).sqrt()
        told = (size > 0).nonzero().flatten()
        if not len(told):
            return torch.zeros(0, len(variance), dtype=torch.float64)
        core, size = self.core[told][:, told], size[told]
        values, vectors = torch.linalg.eigh((core + core.mT) / 2 / size / size[:, None])
        sound = values > _RANK * values[-1]
        root = vectors[:, sound] / values[sound].sqrt() / size[:, None]
        rows = self.behind.clamp_min(1) * self.together
        found = (self.along[:, told] @ root).mT / scale / rows.sqrt()
        found = found * (self.behind > 0)
        share = found.square().sum(0).clamp_min(1e-300)
        return found * (variance.clamp_min(0) / share).sqrt().clamp_max(1.0)


def directions_between(
    means: Float[Tensor, "classes p"], scale: Float[Tensor, " p"], rows: Float[Tensor, " p"]
) -> Float[Tensor, "p d"]:
    """M: differences of successive classes' means, in units of `scale`.

    They are divided by it once more, as S is of features in their own units, and by the root of
    the number of rows that have a feature.
    """
    apart = means.diff(dim=0).mT / scale.square()[:, None]
    return torch.where(rows > 0, rows, torch.inf).rsqrt()[:, None] * apart
