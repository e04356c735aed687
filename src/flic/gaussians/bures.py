"""The Bures distance of covariances and the 2-Wasserstein distance of Gaussians.

All of it uses one identity: if FFᵀ = A and GGᵀ = B, then tr((A^½ B A^½)^½) is the nuclear norm of
GᵀF, for any such factors. The nuclear norm is ⟨P, Y⟩ with P the polar factor of Y, and its
gradient is P: with P frozen, `(P * Y).sum()` has the exact value and the exact first derivative,
and no decomposition is differentiated.  Paper: eq:W2_Gauss.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from flic.errors import NumericalError
from flic.gaussians.decomposition import eigh, svd
from flic.gaussians.gaussian import Gaussian
from flic.gaussians.sqrtm import inverse_roots, sqrtm

# Eigenvalues of a Gram matrix have an error of some eps·λ_max; below this they are noise.
_GRAM_CUTOFF = {torch.float32: 1e-6, torch.float64: 1e-12}


def wasserstein2_sq(p: Gaussian, q: Gaussian) -> Float[Tensor, "..."]:
    """Squared 2-Wasserstein distance between (batches of) Gaussians; batch axes broadcast.

    Paper: eq:W2_Gauss.    ‖p.mean − q.mean‖² + bures_sq(p.covariance, q.covariance)
    Exact for non-commuting and singular covariances, never negative, with finite gradients.
    """
    if p.dim != q.dim:
        raise NumericalError(
            f"wasserstein2_sq got Gaussians of {p.dim} and {q.dim} dimensions; expected the same. "
            "Embed the features into the latent space first."
        )
    return (p.mean - q.mean).square().sum(-1) + _covariance_term(p, q)


def bures_sq(
    a: Float[Tensor, "*#batch k k"], b: Float[Tensor, "*#batch k k"]
) -> Float[Tensor, "..."]:
    """Squared Bures distance between covariance matrices; batch axes broadcast.

    Paper: eq:W2_Gauss.    tr A + tr B − 2 tr((A^½ B A^½)^½)
    Where the true gradient is infinite (in the null space of one matrix) it is finite here.
    """
    return _procrustes_sq(sqrtm(a), sqrtm(b))


def nuclear_norm(y: Float[Tensor, "*batch n k"]) -> Float[Tensor, " *batch"]:
    """Sum of the singular values, exact; the subgradient at zero singular values is 0."""
    return (polar_factor(y) * y).sum((-2, -1))


def nuclear_norm_gram(y: Float[Tensor, "*batch n k"]) -> Float[Tensor, " *batch"]:
    """Sum of the singular values above 1e-3 of the largest (1e-6 in float64), fast.

    With Y = (X − mean) L / √n this is the trace term of eq:W2_Gauss for the rows X of a class.
    Zero rows change nothing. Use `nuclear_norm` where the small singular values count.
    """
    return (polar_gram(y) * y).sum((-2, -1))


def block_nuclear_norm(
    y: Float[Tensor, "*batch n k"], same: Float[Tensor, "*batch n n"]
) -> Float[Tensor, " *batch"]:
    """Sum over blocks of rows of `nuclear_norm_gram` of the block, by one decomposition."""
    return (polar_gram_blocks(y, same) * y).sum((-2, -1))


@torch.no_grad()
def polar_gram(y: Float[Tensor, "*batch n k"]) -> Float[Tensor, "*batch n k"]:
    """Polar factor from the smaller Gram matrix, detached; fast, ignores small singular values."""
    wide = y.shape[-2] <= y.shape[-1]
    values, v = eigh(y @ y.mT if wide else y.mT @ y)
    v_scaled = v * inverse_roots(values, cutoff=_GRAM_CUTOFF[y.dtype])[..., None, :]
    return v_scaled @ (v.mT @ y) if wide else (y @ v) @ v_scaled.mT


@torch.no_grad()
def polar_gram_blocks(
    y: Float[Tensor, "*batch n k"], same: Float[Tensor, "*batch n n"]
) -> Float[Tensor, "*batch n k"]:
    """Polar factor of each block of rows, by one decomposition, detached.

    Faster than padding every class to its own matrix while n is about 10.

    Args:
        y: Rows of all blocks, in any order.
        same: 1 where two rows are of the same block, else 0; rows of no block are all 0.
    """
    gram = (y @ y.mT).mul_(same)
    # Scale blocks to unit trace: the cutoff is relative to the largest eigenvalue of all blocks,
    # and a narrow class would lose its gradient beside a wide one.
    tiny = torch.finfo(y.dtype).tiny
    trace = (same @ gram.diagonal(dim1=-2, dim2=-1)[..., None]).clamp_(min=tiny)
    values, v = eigh(gram.div_(trace))
    v_scaled = v * inverse_roots(values, cutoff=_GRAM_CUTOFF[y.dtype])[..., None, :]
    return ((v_scaled @ v.mT) * (same * trace.rsqrt())) @ y


def polar_factor(y: Float[Tensor, "*batch n k"]) -> Float[Tensor, "*batch n k"]:
    """UVᵀ of the singular value decomposition USVᵀ over the singular values above 0, detached."""
    u, s, vh = svd(y)
    cutoff = max(y.shape[-2:]) * torch.finfo(y.dtype).eps
    return (u * (s > cutoff * s[..., :1])[..., None, :]) @ vh


def _covariance_term(p: Gaussian, q: Gaussian) -> Float[Tensor, "..."]:
    if p.is_diagonal and q.is_diagonal:
        return (p.root().abs() - q.root().abs()).square().sum(-1)
    return _procrustes_sq(p.dense_root(), q.dense_root())


def _procrustes_sq(
    f: Float[Tensor, "*#batch k k"], g: Float[Tensor, "*#batch k k"]
) -> Float[Tensor, "..."]:
    """Squared Bures distance of FFᵀ and GGᵀ, the least ‖F − GU‖² over rotations U.

    Written as two squares rather than ‖F‖² + ‖G‖² − 2‖GᵀF‖_*: no cancellation, never negative, and
    the gradient vanishes at equal covariances. P is a partial isometry where GᵀF is singular; the
    second square is the part of G that it misses.
    """
    polar = polar_factor(g.mT @ f)
    turned = g @ polar
    missed = g - turned @ polar.mT
    return (f - turned).square().sum((-2, -1)) + missed.square().sum((-2, -1))
