"""Gaussian distributions, stored as a mean and a factor.

The covariance is derived, Σ = LLᵀ + εI, and never stored, so it is always positive semi-definite.
Anchors μ_c and class moments ν̂_φi are both of this type.  Paper: sec:methodo.
"""

import math
from dataclasses import dataclass
from types import EllipsisType

import torch
from jaxtyping import Float
from torch import Tensor

from flic.errors import NumericalError
from flic.gaussians.decomposition import cholesky, orthonormal_basis, solve_lower

BatchIndex = int | slice | EllipsisType | Tensor | tuple[int | slice | EllipsisType | Tensor, ...]


@dataclass(frozen=True, eq=False)
class Gaussian:
    """N(mean, LLᵀ + εI), batched over leading axes.

    Paper: sec:methodo.    Σ_c = L_c L_cᵀ, made invertible by εI
    """

    mean: Float[Tensor, "*batch k"]
    factor: Float[Tensor, "*batch k k"] | Float[Tensor, "*batch k"]  # L, or the diagonal of L
    eps: float = 0.0

    def __post_init__(self) -> None:
        allowed = (self.mean.shape, (*self.mean.shape, *self.mean.shape[-1:]))
        if self.mean.ndim == 0 or self.factor.shape not in allowed:
            raise NumericalError(
                f"A Gaussian got a mean of shape {tuple(self.mean.shape)} and a factor of shape "
                f"{tuple(self.factor.shape)}; expected [*batch, k] with [*batch, k, k], or with "
                "[*batch, k] for a diagonal factor. Expand both to the same batch axes."
            )
        if self.eps < 0:
            raise NumericalError(
                f"A Gaussian got eps = {self.eps}; expected eps ≥ 0, as it is added to variances."
            )

    @classmethod
    def isotropic(cls, mean: Float[Tensor, "*batch k"], variance: float = 1.0) -> "Gaussian":
        """N(mean, variance · I), as a diagonal factor."""
        if variance < 0:
            raise NumericalError(f"A Gaussian got variance {variance}; expected a number ≥ 0.")
        return cls(mean, torch.full_like(mean, math.sqrt(variance)))

    @classmethod
    def from_samples(
        cls, x: Float[Tensor, "*batch n k"], weights: Float[Tensor, "*batch n"] | None = None
    ) -> "Gaussian":
        """Empirical mean and covariance (divisor n) of the rows of `x`.

        Gradients through the covariance are exact, for any rank. One sample has covariance 0; a
        group without samples (a padded slot) is the point mass at 0.

        Args:
            x: Samples as rows.
            weights: 1 for rows that count, 0 for padding.
        """
        mask = torch.ones_like(x[..., 0]) if weights is None else weights
        total = mask.sum(-1)[..., None].clamp(min=1)
        mean = (mask[..., None] * x).sum(-2) / total
        centred = mask[..., None] * (x - mean[..., None, :]) / total[..., None].sqrt()
        return cls(mean, _square_factor(centred))

    @property
    def is_diagonal(self) -> bool:
        """True if the factor holds only a diagonal."""
        return self.factor.ndim == self.mean.ndim

    @property
    def dim(self) -> int:
        """Number k of dimensions."""
        return self.mean.shape[-1]

    @property
    def covariance(self) -> Float[Tensor, "*batch k k"]:
        """Σ = LLᵀ + εI."""
        if self.is_diagonal:
            return torch.diag_embed(self.factor.square() + self.eps)
        return self.factor @ self.factor.mT + self.eps * _eye_like(self.factor)

    def trace(self) -> Float[Tensor, " *batch"]:
        """Tr Σ, without forming Σ."""
        axes = -1 if self.is_diagonal else (-2, -1)
        return self.factor.square().sum(axes) + self.dim * self.eps

    def root(self) -> Float[Tensor, "*batch k k"] | Float[Tensor, "*batch k"]:
        """F with FFᵀ = Σ, eps included; full or diagonal as the factor."""
        if self.eps == 0:
            return self.factor
        if self.is_diagonal:
            return (self.factor.square() + self.eps).sqrt()
        # In float64: with eps = 1e-6, rounding LLᵀ to float32 can already make it indefinite.
        wide = self.factor.double()
        return cholesky(wide @ wide.mT + self.eps * _eye_like(wide)).to(self.factor.dtype)

    def dense_root(self) -> Float[Tensor, "*batch k k"]:
        """`root()` as a full matrix."""
        return torch.diag_embed(self.root()) if self.is_diagonal else self.root()

    def reparameterise(self, noise: Float[Tensor, "*batch n k"]) -> Float[Tensor, "*batch n k"]:
        """Mean + F·noise, row by row; differentiable in the mean and the factor.

        Paper: sec:methodo.    Z_c = v_c + L_c ξ_c
        """
        mean, root = self.mean[..., None, :], self.root()
        if self.is_diagonal:
            return torch.addcmul(mean, noise, root[..., None, :])
        return mean + noise @ root.mT

    def sample(self, num: int, *, generator: torch.Generator) -> Float[Tensor, "*batch {num} k"]:
        """`num` samples of every Gaussian of the batch."""
        shape = (*self.mean.shape[:-1], num, self.dim)
        noise = torch.randn(
            shape, generator=generator, dtype=self.mean.dtype, device=self.mean.device
        )
        return self.reparameterise(noise)

    def log_density(self, x: Float[Tensor, "*batch n k"]) -> Float[Tensor, "*batch n"]:
        """Log density of each row, up to the constant −½ k log 2π."""
        gap = x - self.mean[..., None, :]
        if self.is_diagonal:
            scale = self.root().abs()
            whitened = gap / scale[..., None, :]
        else:
            root = cholesky(self.covariance)
            scale = root.diagonal(dim1=-2, dim2=-1)
            whitened = solve_lower(root, gap)
        return -0.5 * whitened.square().sum(-1) - scale.log().sum(-1)[..., None]

    def __getitem__(self, index: BatchIndex) -> "Gaussian":
        """The Gaussians at `index` of the batch axes; an ellipsis does not reach k."""
        batch = self.mean.shape[:-1]
        if not batch:
            raise IndexError("This Gaussian has no batch axes to index; it is a single one.")
        # Indexing a table of positions instead of both tensors keeps `...` away from their k axes.
        positions = torch.arange(batch.numel(), device=self.mean.device).reshape(batch)[index]
        mean = self.mean.flatten(0, len(batch) - 1)[positions]
        return Gaussian(mean, self.factor.flatten(0, len(batch) - 1)[positions], self.eps)


def _square_factor(centred: Float[Tensor, "*batch n k"]) -> Float[Tensor, "*batch k k"]:
    """L [k, k] with LLᵀ = XᵀX for the rows X."""
    n, k = centred.shape[-2:]
    if n <= k:
        return torch.nn.functional.pad(centred.mT, (0, k - n))
    # X = QR gives L = XᵀQ. Q is frozen: with QQᵀX = X the differential of LLᵀ is still that of
    # XᵀX, while differentiating QR itself needs X of full rank.
    return centred.mT @ orthonormal_basis(centred)


def _eye_like(a: Float[Tensor, "*batch k k"]) -> Float[Tensor, "k k"]:
    return torch.eye(a.shape[-1], dtype=a.dtype, device=a.device)
