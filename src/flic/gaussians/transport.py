"""Closed-form maps between Gaussians, of different or equal dimension.

Paper: subsec:proj_feat. The matrices are detached: a map is computed once, never trained.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from flic.errors import ConfigError, NumericalError
from flic.gaussians.decomposition import svd
from flic.gaussians.gaussian import Gaussian
from flic.gaussians.sqrtm import inv_sqrtm, sqrtm


@dataclass(frozen=True, eq=False)
class AffineMap:
    """x ↦ target_mean + matrix (x − source_mean), on rows x; batch axes broadcast."""

    matrix: Float[Tensor, "*#batch k dim"]
    source_mean: Float[Tensor, "*#batch dim"]
    target_mean: Float[Tensor, "*#batch k"]

    def __call__(self, x: Float[Tensor, "*batch n dim"]) -> Float[Tensor, "... n k"]:
        """Images of the rows of `x`."""
        centred = x - self.source_mean[..., None, :]
        return centred @ self.matrix.mT + self.target_mean[..., None, :]


@torch.no_grad()
def affine_map(
    source: Gaussian, target: Gaussian, *, signs: Float[Tensor, " k"] | None = None
) -> AffineMap:
    """Map φ̂_i that sends the source to the target in k ≤ k_i dimensions.

    Paper: subsec:proj_feat (Delon, Desolneux and Salmona 2022, theorem 4.1).
    Target mean + P_t D_t^½ Ĩ_k D_s^{-½} P_s[:, :k]ᵀ (x − source mean), eigenvalues decreasing.
    Departs: the paper leaves out the rotation P_sᵀ into the eigenbasis of the source.

    Args:
        source: Features of a client, k_i dimensions.
        target: Anchor, k dimensions; N(0, I) in the paper.
        signs: Diagonal of Ĩ_k; all +1 unless given, for eigenvectors whose largest entry is > 0.
    """
    k = target.dim
    if k > source.dim:
        raise ConfigError(
            f"affine_map got a target of {k} dimensions for a source of {source.dim}; expected at "
            f"most {source.dim}. Choose a latent dimension no client's features fall short of."
        )
    source_axes, source_scale = _principal_axes(source)
    target_axes, target_scale = _principal_axes(target)
    _check_rank(source_scale, k)
    scale = target_scale / source_scale[..., :k] * (1 if signs is None else signs)
    matrix = (target_axes * scale[..., None, :]) @ source_axes[..., :k].mT
    return AffineMap(matrix, source.mean, target.mean)


@torch.no_grad()
def optimal_map(p: Gaussian, q: Gaussian) -> AffineMap:
    """Brenier map: the map from p to q that moves points least.

    A^{-½} (A^½ B A^½)^½ A^{-½} with A, B the covariances; where A is singular, on its range only.
    """
    root, inverse = sqrtm(p.covariance), inv_sqrtm(p.covariance)
    matrix = inverse @ sqrtm(root @ q.covariance @ root) @ inverse
    return AffineMap(matrix, p.mean, q.mean)


def _principal_axes(
    p: Gaussian,
) -> tuple[Float[Tensor, "*batch k k"], Float[Tensor, "*batch k"]]:
    """Eigenvectors P and D^½, decreasing, of the covariance PDPᵀ."""
    # From the factor, not the covariance: squaring would lose the small eigenvalues.
    axes, scale, _ = svd(p.dense_root())
    largest = axes.gather(-2, axes.abs().argmax(-2, keepdim=True))
    return axes * largest.sign(), scale


def _check_rank(scale: Float[Tensor, "*batch dim"], k: int) -> None:
    cutoff = scale.shape[-1] * torch.finfo(scale.dtype).eps
    if bool((scale[..., k - 1] <= cutoff * scale[..., 0]).any()):
        raise NumericalError(
            f"affine_map got a source covariance of rank below {k}; expected at least the target's "
            f"{k} dimensions. Drop constant or duplicate features, or lower the latent dimension."
        )
