"""Square roots of symmetric positive semi-definite matrices."""

import torch
from jaxtyping import Float
from torch import Tensor

from flic.gaussians.decomposition import eigh


def sqrtm(a: Float[Tensor, "*batch k k"]) -> Float[Tensor, "*batch k k"]:
    """Symmetric square root of positive semi-definite matrices; negative eigenvalues count as 0.

    The differential X of the root solves the Sylvester equation RX + XR = dA. It is solved in the
    eigenbasis of A, where it needs no differences of eigenvalues, so the gradient is exact for
    repeated ones (the identity). Between two directions of the null space the true gradient is
    infinite; it is 0 there. First derivatives only.
    """
    values, vectors = eigh(a)
    roots = values.clamp(min=0).sqrt()
    sums = roots[..., :, None] + roots[..., None, :]
    # Eigenvalues of a singular matrix come back as about ±k·eps·λ_max: below that, a zero.
    noise = (a.shape[-1] * torch.finfo(a.dtype).eps) ** 0.5 * roots.amax(-1)
    slopes = sums.reciprocal().masked_fill(sums <= noise[..., None, None], 0)
    change = vectors.mT @ (a - a.detach()) @ vectors  # zero, but has the gradient
    change = (change + change.mT) / 2  # a gradient in a symmetric matrix is symmetric
    return vectors @ (torch.diag_embed(roots) + slopes * change) @ vectors.mT


def inv_sqrtm(
    a: Float[Tensor, "*batch k k"], *, cutoff: float | None = None
) -> Float[Tensor, "*batch k k"]:
    """Pseudo-inverse of the symmetric square root, detached.

    Args:
        a: Symmetric positive semi-definite matrices.
        cutoff: Eigenvalues below `cutoff` times the largest count as 0; k·eps unless given.
    """
    values, vectors = eigh(a)
    relative = a.shape[-1] * torch.finfo(a.dtype).eps if cutoff is None else cutoff
    return (vectors * inverse_roots(values, cutoff=relative)[..., None, :]) @ vectors.mT


def inverse_roots(values: Float[Tensor, "*batch k"], *, cutoff: float) -> Float[Tensor, "*batch k"]:
    """λ^{-1/2} of increasing eigenvalues, and 0 where λ ≤ cutoff · λ_max."""
    return values.masked_fill(values <= cutoff * values[..., -1:], torch.inf).rsqrt_()
