"""Confidence intervals for the distance between a class and its anchor.

Paper: theorem:wass. A client has n rows of a class, not its distribution: W₂²(μ_c, ν̂) estimates
W₂²(μ_c, ν). Everything is detached: nothing is trained through intervals.
"""

from dataclasses import dataclass
from statistics import NormalDist

import torch
from jaxtyping import Float
from torch import Tensor

from flic.errors import ConfigError, NumericalError
from flic.gaussians.bures import polar_factor, wasserstein2_sq
from flic.gaussians.decomposition import svd
from flic.gaussians.gaussian import Gaussian


@dataclass(frozen=True, eq=False)
class Interval:
    """Estimates and their confidence intervals, one per batch entry."""

    estimate: Float[Tensor, " *batch"]
    low: Float[Tensor, " *batch"]
    high: Float[Tensor, " *batch"]


@torch.no_grad()
def limit_variance(nu: Gaussian, anchor: Gaussian) -> Float[Tensor, "..."]:
    """Variance s of the normal limit of √n (W₂²(anchor, ν̂) − W₂²(anchor, ν)) for n rows of ν.

    Paper: theorem:wass.    4 (m − v)ᵀ Σ (m − v) + 2 tr(((I − T)Σ)²), T the optimal map from ν
    Departs: the printed s takes the eigenpairs of Σ_i for those of Σ_c^½ Σ_i Σ_c^½ and leaves out
    2 tr(Σ_i²); it can be negative. With both corrected it equals this one.

    The delta method: W₂² has the derivative 2(m − v) in the mean and I − T in the covariance. With
    Σ = FFᵀ, Σ_c = GGᵀ and P the polar factor of GᵀF, TF is GP: no inverse, never negative.
    """
    f, g = nu.dense_root(), anchor.dense_root()
    not_moved = f - g @ polar_factor(g.mT @ f)
    shift = f.mT @ (nu.mean - anchor.mean)[..., None]
    return 4 * shift.square().sum((-2, -1)) + 2 * (f.mT @ not_moved).square().sum((-2, -1))


@torch.no_grad()
def wasserstein2_sq_interval(
    samples: Float[Tensor, "*batch n k"], anchor: Gaussian, *, level: float = 0.95
) -> Interval:
    """Estimate and confidence interval of W₂² between the law of the rows and the anchor.

    Paper: theorem:wass, with the variance at the estimated moments.
    For Gaussian rows. The bias of the estimate is corrected up to terms of order 1/n²: the plain
    W₂² of the sample moments lies above the truth, at n = 200 and k = 10 by up to 1.3 standard
    deviations. Measured coverage at level 0.95 is between 93 and 97 % from n = 200 on for k ≤ 10
    (at n = 50 from 92 to 98 %), where W₂² is well above its own sampling error of about k²/n.

    Close to the anchor the errors are not normal, and coverage is 91 to 99 %. If ν is the anchor
    itself, the limit has variance 0 and the theorem says nothing. The interval then shrinks like
    1/n and, as ends below 0 are set to 0, contains 0 in over 99 % of samples. It is no test of
    ν = anchor.

    Args:
        samples: Rows of one class, embedded; more of them than dimensions.
        anchor: Anchor of the class; batch axes broadcast.
        level: Probability that the interval covers the truth.
    """
    _check_request(samples, level)
    n = samples.shape[-2]
    wide = Gaussian(anchor.mean.double(), anchor.factor.double(), anchor.eps)
    nu = _unbiased_moments(samples.double())
    estimate = wasserstein2_sq(nu, wide) - _bias(nu, wide, n)
    quantile = NormalDist().inv_cdf((1 + level) / 2)
    margin = quantile * (limit_variance(nu, wide) / n).sqrt()
    ends = (estimate, estimate - margin, estimate + margin)
    return Interval(*(end.clamp(min=0).to(samples.dtype) for end in ends))


def _check_request(samples: Float[Tensor, "*batch n k"], level: float) -> None:
    n, k = samples.shape[-2:]
    if n <= k:
        raise NumericalError(
            f"wasserstein2_sq_interval got {n} rows of {k} dimensions; expected more rows than "
            "dimensions, for a covariance of full rank. Gather more rows of the class."
        )
    if not 0 < level < 1:
        raise ConfigError(
            f"wasserstein2_sq_interval got level = {level}; expected a probability between 0 "
            "and 1, such as 0.95."
        )


def _unbiased_moments(x: Float[Tensor, "*batch n k"]) -> Gaussian:
    """Mean and covariance (divisor n − 1) of the rows."""
    moments, n = Gaussian.from_samples(x), x.shape[-2]
    return Gaussian(moments.mean, moments.factor * (n / (n - 1)) ** 0.5)


def _bias(nu: Gaussian, anchor: Gaussian, n: int) -> Float[Tensor, "..."]:
    """Expected excess of W₂² at unbiased moments of n rows, up to order 1/n.

    The mean adds tr Σ / n to that of the covariance.
    """
    return nu.trace() / n + bures_excess(nu, anchor, n)


@torch.no_grad()
def bures_excess(nu: Gaussian, anchor: Gaussian, n: int) -> Float[Tensor, "..."]:
    """Expected excess of the squared Bures distance at covariances of n rows, up to order 1/n.

    For Gaussian rows of ν; the distance is to the anchor. It is half the second derivative of
    −2 tr(S^½) with S = Σ_c^½ Σ Σ_c^½, whose estimate is Wishart: in the eigenbasis of S its entry
    (i, j) has the variance (1 + δ_ij) λ_i λ_j / (n − 1). The singular values a of GᵀF are the
    roots of the λ.
    """
    _, a, _ = svd(anchor.dense_root().mT @ nu.dense_root())
    sums = a[..., :, None] + a[..., None, :]
    pairs = a[..., :, None] * a[..., None, :] / sums.clamp(min=torch.finfo(a.dtype).tiny)
    curvature = pairs.sum((-2, -1)) + a.sum(-1) / 2
    return curvature / (2 * (n - 1))
