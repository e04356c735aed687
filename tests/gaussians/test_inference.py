"""theorem:wass: the right limit variance, and intervals that cover what they promise."""

import pytest
import torch

from flic.errors import ConfigError, NumericalError
from flic.gaussians import (
    Gaussian,
    limit_variance,
    optimal_map,
    wasserstein2_sq,
    wasserstein2_sq_interval,
)

F64 = torch.float64


def diagonal(mean, *deviations):
    return Gaussian(
        torch.tensor([mean] * len(deviations), dtype=F64), torch.tensor(deviations, dtype=F64)
    )


def draws(nu, repeats, n, seed=0):
    rng = torch.Generator().manual_seed(seed)
    return nu.reparameterise(torch.randn(repeats, n, nu.dim, generator=rng, dtype=F64))


def by_eigenpairs(nu, anchor, pairs_of):
    """The printed expression, sum over eigenpairs and all."""
    delta, root = nu.mean - anchor.mean, symmetric_root(anchor.covariance)
    turned = torch.linalg.inv(root) @ nu.covariance @ root
    kappa, r = torch.linalg.eigh(pairs_of)
    mixed = sum(k.sqrt() * v @ turned @ v for k, v in zip(kappa, r.mT, strict=True))
    product = (nu.covariance @ anchor.covariance).trace()
    return 4 * delta @ nu.covariance @ delta + 2 * product - 4 * mixed


def symmetric_root(a):
    values, vectors = torch.linalg.eigh(a)
    return (vectors * values.sqrt()) @ vectors.mT


def test_one_dimension_by_hand():
    # W₂² = (m − v)² + (σ − τ)², with 1/n times σ² the variance of m̂ and σ²/2 that of σ̂
    s = limit_variance(diagonal(3.0, 2.0), diagonal(1.0, 0.5))
    assert s == pytest.approx(4 * 2**2 * 2**2 + 4 * (2 - 0.5) ** 2 * 2**2 / 2)


def test_commuting_case_is_a_sum_over_axes():
    nu, anchor = diagonal(3.0, 2.0, 0.7), diagonal(1.0, 0.5, 1.5)
    axes = [limit_variance(diagonal(3.0, a), diagonal(1.0, b)) for a, b in [(2.0, 0.5), (0.7, 1.5)]]
    torch.testing.assert_close(limit_variance(nu, anchor), sum(axes))


@pytest.mark.parametrize("condition", [10.0, 1e3])
def test_it_is_the_delta_method_with_the_optimal_map(gaussian, condition):
    nu, anchor = (gaussian(s, condition=condition, batch=(3,)) for s in (1, 5))
    cov, delta = nu.covariance, (nu.mean - anchor.mean)[..., None]
    moved = (torch.eye(6, dtype=F64) - optimal_map(nu, anchor).matrix) @ cov
    by_map = 4 * (delta.mT @ cov @ delta)[..., 0, 0]
    by_map = by_map + 2 * (moved @ moved).diagonal(dim1=-2, dim2=-1).sum(-1)
    torch.testing.assert_close(limit_variance(nu, anchor), by_map, rtol=1e-8, atol=0)


def test_gradient_of_the_distance_gives_the_same(gaussian):
    # Var of ⟨G, Σ̂⟩ is 2 tr((GΣ)²)/n: with G from autograd no formula of ours enters
    nu, anchor = gaussian(1), gaussian(5)
    mean = nu.mean.clone().requires_grad_()
    factor = nu.factor.clone().requires_grad_()
    wasserstein2_sq(Gaussian(mean, factor), anchor).backward()
    in_covariance = factor.grad @ torch.linalg.inv(nu.factor) / 2  # dF = 2 G F
    s = mean.grad @ nu.covariance @ mean.grad
    moved = in_covariance @ nu.covariance
    torch.testing.assert_close(limit_variance(nu, anchor), s + 2 * (moved @ moved).trace())


def test_the_corrected_eigenpair_formula_is_the_same(gaussian):
    nu, anchor = gaussian(1), gaussian(5)
    root = symmetric_root(anchor.covariance)
    corrected = by_eigenpairs(nu, anchor, root @ nu.covariance @ root)
    corrected = corrected + 2 * nu.covariance.square().sum()
    torch.testing.assert_close(limit_variance(nu, anchor), corrected)


def test_rotation_and_translation_change_nothing(gaussian, orthogonal, normal):
    nu, anchor, turn, shift = gaussian(1), gaussian(5), orthogonal(9, 6), normal(8, 6)
    moved = [Gaussian(turn @ p.mean + shift, turn @ p.factor) for p in (nu, anchor)]
    torch.testing.assert_close(limit_variance(*moved), limit_variance(nu, anchor))


def test_interval_turns_with_the_rows(gaussian, orthogonal, normal):
    nu, anchor, turn, shift = gaussian(1), gaussian(5), orthogonal(9, 6), normal(8, 6)
    x = draws(nu, 2, 50)
    moved = Gaussian(turn @ anchor.mean + shift, turn @ anchor.factor)
    plain = wasserstein2_sq_interval(x, anchor)
    turned = wasserstein2_sq_interval(x @ turn.mT + shift, moved)
    for end in ("estimate", "low", "high"):
        torch.testing.assert_close(getattr(turned, end), getattr(plain, end))


def test_variance_vanishes_at_the_anchor_and_never_below(gaussian):
    nu = gaussian(1, condition=1e5)
    turned = Gaussian(nu.mean, torch.linalg.qr(nu.factor.mT).R.mT)
    assert 0 <= limit_variance(nu, turned) < 1e-20


@pytest.mark.slow
def test_simulation_decides_against_the_printed_variance(gaussian):
    nu, anchor = gaussian(1, 3), gaussian(5, 3)
    n, repeats = 1000, 4000
    errors = n**0.5 * wasserstein2_sq(Gaussian.from_samples(draws(nu, repeats, n)), anchor)
    # four standard errors of a variance, and what is left of order 1/n
    assert float(errors.var() / limit_variance(nu, anchor)) == pytest.approx(1, abs=0.09)
    printed = by_eigenpairs(nu, anchor, nu.covariance)
    assert abs(printed / errors.var() - 1) > 0.2
    with_square = printed + 2 * nu.covariance.square().sum()
    assert abs(with_square / errors.var() - 1) > 0.2


def test_printed_variance_can_be_negative():
    nu, anchor = diagonal(0.0, 1.0, 1.0), diagonal(0.0, 1.0, 1.0)
    assert by_eigenpairs(nu, anchor, nu.covariance) == pytest.approx(-4.0)


CASES = {
    "moved": lambda k, gaussian: (diagonal(k**-0.5, *[1.0] * k), diagonal(0.0, *[1.0] * k)),
    "non-commuting": lambda k, gaussian: (gaussian(1, k), gaussian(5, k)),
    "ill-conditioned": lambda k, gaussian: (
        gaussian(1, k, condition=1e3),
        gaussian(5, k, condition=1e3),
    ),
}


@pytest.mark.parametrize("k", [2, 5, 10])
@pytest.mark.parametrize("case", CASES)
def test_coverage_at_200_rows(gaussian, case, k):
    nu, anchor = CASES[case](k, gaussian)
    truth = wasserstein2_sq(nu, anchor)
    interval = wasserstein2_sq_interval(draws(nu, 2000, 200), anchor)
    covered = ((interval.low <= truth) & (truth <= interval.high)).double().mean()
    assert 0.93 <= covered <= 0.97


@pytest.mark.slow
def test_bias_is_taken_off():
    nu, anchor = diagonal(10**-0.5, *[1.0] * 10), diagonal(0.0, *[1.0] * 10)
    x = draws(nu, 2000, 200)
    plain = wasserstein2_sq(Gaussian.from_samples(x), anchor)
    estimate = wasserstein2_sq_interval(x, anchor).estimate
    assert plain.mean() - 1 > plain.std()
    assert abs(estimate.mean() - 1) < 0.1 * plain.std()


def test_at_the_anchor_zero_is_covered_and_the_width_falls_like_one_over_n():
    nu = diagonal(0.0, *[1.0] * 5)
    widths = []
    for n in (200, 800):
        interval = wasserstein2_sq_interval(draws(nu, 500, n), nu)
        assert (interval.low == 0).double().mean() > 0.98
        widths.append(interval.high.mean())
    assert float(widths[0] / widths[1]) == pytest.approx(4, rel=0.2)


def test_higher_levels_give_wider_intervals(gaussian):
    x = draws(gaussian(1), 1, 100)
    narrow, wide = (wasserstein2_sq_interval(x, gaussian(5), level=p) for p in (0.5, 0.99))
    assert wide.low < narrow.low < narrow.estimate < narrow.high < wide.high


def test_batches_broadcast_and_keep_the_type(gaussian):
    anchors = gaussian(5, batch=(3,), dtype=torch.float32)
    x = draws(gaussian(1), 1, 100).float()
    interval = wasserstein2_sq_interval(x, anchors)
    assert interval.low.shape == (3,)
    assert interval.low.dtype == torch.float32
    alone = wasserstein2_sq_interval(x[0], anchors[1])
    torch.testing.assert_close(interval.high[1], alone.high)


def test_singular_anchors_are_welcome(gaussian):
    nu, anchor = gaussian(1), gaussian(5, rank=2)
    truth = wasserstein2_sq(nu, anchor)
    interval = wasserstein2_sq_interval(draws(nu, 1000, 400), anchor)
    covered = ((interval.low <= truth) & (truth <= interval.high)).double().mean()
    assert 0.93 <= covered <= 0.97


def test_too_few_rows_are_named(normal, gaussian):
    with pytest.raises(NumericalError, match=r"6 rows of 6 dimensions; .*more rows than"):
        wasserstein2_sq_interval(normal(0, 6, 6), gaussian(5))


def test_an_impossible_level_is_named(normal, gaussian):
    with pytest.raises(ConfigError, match=r"level = 95.0; expected a probability"):
        wasserstein2_sq_interval(normal(0, 20, 6), gaussian(5), level=95.0)
