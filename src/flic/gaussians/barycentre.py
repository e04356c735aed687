"""Averages of anchor covariances over clients.

Paper: "Averaging Anchor Distributions", step 20 of algo:FLIC-FEDREP.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from flic.errors import NumericalError
from flic.gaussians.decomposition import svd
from flic.gaussians.sqrtm import sqrtm


def factor_average(
    factors: Float[Tensor, "m ..."], weights: Float[Tensor, "m ..."]
) -> Float[Tensor, "..."]:
    """Weighted mean of the factors L over the first axis.

    Paper: "Averaging Anchor Distributions".    L_c = Σ_i ω_i L_i,c
    It depends on the rotation LU of every client's factor, which the covariance does not show.

    Args:
        factors: Full or diagonal factors, one per client along the first axis.
        weights: [m], or [m, *batch]; only their ratios along the first axis matter.
    """
    return (_normalised(weights, factors.ndim) * factors).sum(0)


@torch.no_grad()
def bures_barycentre(
    covariances: Float[Tensor, "m *batch k k"],
    weights: Float[Tensor, "m ..."],
    *,
    tol: float = 1e-9,
    max_iter: int = 1000,
) -> Float[Tensor, "*batch k k"]:
    """Covariance with the least weighted sum of squared Bures distances to the given ones.

    The fixed point of Álvarez-Esteban et al. (2016), written on factors: rotate every client's
    factor onto the current one, then average. So it is `factor_average` made independent of the
    clients' rotations. The usual form S^{-½}(Σ ω_i (S^½ Σ_i S^½)^½)² S^{-½} is the same iteration
    but needs S to be invertible. Computed in float64, detached.

    Args:
        covariances: One per client along the first axis; they may be singular.
        weights: [m], or [m, *batch]; only their ratios along the first axis matter.
        tol: Largest change of the result in one iteration, relative to its trace.
        max_iter: Number of iterations after which it fails.
    """
    wide = covariances.double()
    share = _normalised(weights.double(), wide.ndim)
    roots = sqrtm(wide)
    current, change = sqrtm((share * wide).sum(0)), float("inf")
    for _ in range(max_iter):
        turned = roots @ _rotation(roots @ current)
        updated = (share * turned).sum(0)
        current, change = updated, _relative_change(current, updated)
        if change <= tol:
            return (current @ current.mT).to(covariances.dtype)
    raise NumericalError(
        f"bures_barycentre of {len(covariances)} covariances still changes by {change:.1e} of its "
        f"trace after {max_iter} iterations; expected at most {tol:.1e}. Raise tol or max_iter, or "
        "add eps·I to nearly singular covariances."
    )


def _normalised(weights: Float[Tensor, "m ..."], ndim: int) -> Float[Tensor, "m ..."]:
    total = weights.sum(0)
    if bool((weights < 0).any()) or not bool((total > 0).all()):
        raise NumericalError(
            f"An average over {len(weights)} clients got weights that are negative or add up to 0; "
            "expected a positive sum for every class. Leave out the classes that nobody holds."
        )
    share = weights / total
    return share.reshape(*share.shape, *(1,) * (ndim - share.ndim))


def _rotation(y: Float[Tensor, "*batch k k"]) -> Float[Tensor, "*batch k k"]:
    # All of UVᵀ, unlike bures.polar_factor: a partial isometry would lose variance of Σ_i.
    u, _, vh = svd(y)
    return u @ vh


def _relative_change(old: Float[Tensor, "*batch k k"], new: Float[Tensor, "*batch k k"]) -> float:
    change = (new @ new.mT - old @ old.mT).square().sum((-2, -1)).sqrt()
    trace = new.square().sum((-2, -1)).clamp(min=torch.finfo(new.dtype).tiny)
    return float((change / trace).max())
