import ot
import pytest
import torch

from flic.errors import NumericalError
from flic.gaussians import (
    Gaussian,
    bures_barycentre,
    bures_sq,
    factor_average,
    optimal_map,
    sqrtm,
)

F64 = torch.float64
WEIGHTS = torch.tensor([0.5, 0.2, 0.3], dtype=F64)


def weighted_distance(candidate: torch.Tensor, covariances: torch.Tensor) -> torch.Tensor:
    return (WEIGHTS * bures_sq(covariances, candidate)).sum()


def test_barycentre_of_equals_is_the_same(gaussian, hard):
    a = gaussian(1, **hard).covariance
    torch.testing.assert_close(bures_barycentre(a.expand(3, 6, 6), WEIGHTS), a)


def test_commuting_covariances_have_a_closed_form(orthogonal, normal):
    axes, roots = orthogonal(0, 5), normal(1, 3, 5).abs()
    roots[0, :2] = 0
    covariances = (axes * roots[:, None, :] ** 2) @ axes.mT
    mean_root = (WEIGHTS[:, None] * roots).sum(0)
    torch.testing.assert_close(
        bures_barycentre(covariances, WEIGHTS), (axes * mean_root**2) @ axes.mT
    )


@pytest.mark.parametrize("condition", [10.0, 1e3, 1e5])
def test_barycentre_of_pot(gaussian, condition):
    p = gaussian(1, batch=(3,), condition=condition)
    _, expected = ot.gaussian.bures_wasserstein_barycenter(p.mean, p.covariance, WEIGHTS, eps=1e-12)
    torch.testing.assert_close(bures_barycentre(p.covariance, WEIGHTS), expected, atol=1e-8, rtol=0)


def test_weighted_optimal_maps_to_the_clients_average_to_the_identity(gaussian):
    p = gaussian(1, batch=(3,), condition=1e3)
    centre = Gaussian(p.mean, sqrtm(bures_barycentre(p.covariance, WEIGHTS)).expand(3, 6, 6))
    average = (WEIGHTS[:, None, None] * optimal_map(centre, p).matrix).sum(0)
    torch.testing.assert_close(average, torch.eye(6, dtype=F64), atol=1e-6, rtol=0)


def test_no_neighbour_is_nearer_to_singular_covariances(gaussian, normal):
    covariances = gaussian(1, batch=(3,), rank=2).covariance
    centre = bures_barycentre(covariances, WEIGHTS)
    best = weighted_distance(centre, covariances)
    for seed in range(20):
        push = torch.eye(6, dtype=F64) + 0.05 * normal(seed, 6, 6)
        assert weighted_distance(push @ centre @ push.mT, covariances) > best - 1e-9


def test_two_rank_one_covariances_meet_at_the_middle_of_their_geodesic(normal):
    u, v = normal(0, 5), normal(1, 5)
    v = v if u @ v > 0 else -v
    centre = bures_barycentre(torch.stack([u.outer(u), v.outer(v)]), torch.ones(2, dtype=F64))
    middle = (u + v) / 2
    torch.testing.assert_close(centre, middle.outer(middle), atol=1e-6, rtol=0)


def test_all_zero_covariances_average_to_zero():
    assert bures_barycentre(torch.zeros(3, 2, 4, 4), torch.ones(3)).abs().max() == 0


def test_orthogonal_equivariance(gaussian, orthogonal, hard):
    a, turn = gaussian(1, batch=(3,), **hard).covariance, orthogonal(9, 6)
    torch.testing.assert_close(
        bures_barycentre(turn @ a @ turn.mT, WEIGHTS),
        turn @ bures_barycentre(a, WEIGHTS) @ turn.mT,
        atol=1e-6,
        rtol=0,
    )


def test_only_ratios_of_weights_matter(gaussian):
    p = gaussian(1, batch=(3, 2))
    torch.testing.assert_close(
        bures_barycentre(p.covariance, 7 * WEIGHTS), bures_barycentre(p.covariance, WEIGHTS)
    )
    torch.testing.assert_close(
        factor_average(p.factor, 7 * WEIGHTS), factor_average(p.factor, WEIGHTS)
    )


def test_a_client_without_weight_does_not_count(gaussian):
    a = gaussian(1, batch=(3,)).covariance
    weights = torch.tensor([1.0, 0.0, 1.0], dtype=F64)
    torch.testing.assert_close(
        bures_barycentre(a, weights), bures_barycentre(a[[0, 2]], weights[[0, 2]])
    )


@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_classes_are_averaged_each_with_its_own_weights(gaussian, dtype):
    p = gaussian(1, batch=(3, 2), dtype=dtype)
    weights = torch.tensor([[1.0, 0.0], [1.0, 2.0], [2.0, 2.0]], dtype=dtype)
    centres, factors = (
        bures_barycentre(p.covariance, weights),
        factor_average(p.factor, weights),
    )
    assert centres.dtype == dtype
    for c in range(2):
        one = bures_barycentre(p.covariance[:, c], weights[:, c])
        torch.testing.assert_close(centres[c], one, atol=1e-6, rtol=1e-5)
        torch.testing.assert_close(factors[c], factor_average(p.factor[:, c], weights[:, c]))


def test_factor_average_by_hand():
    factors = torch.tensor([[[1.0, 2.0]], [[5.0, 6.0]]])  # diagonal factors of one class
    assert factor_average(factors, torch.tensor([3.0, 1.0])).tolist() == [[2.0, 3.0]]


def test_factor_average_depends_on_a_clients_rotation_and_the_barycentre_does_not(
    gaussian, orthogonal
):
    p = gaussian(1, batch=(3,))
    turned = p.factor.clone()
    turned[0] = turned[0] @ orthogonal(9, 6)
    average, other = factor_average(p.factor, WEIGHTS), factor_average(turned, WEIGHTS)
    assert (average @ average.mT - other @ other.mT).abs().max() > 0.05
    torch.testing.assert_close(
        bures_barycentre(p.covariance, WEIGHTS), bures_barycentre(turned @ turned.mT, WEIGHTS)
    )


def test_factor_average_of_a_common_gauge_is_the_barycentre(orthogonal, normal):
    axes = orthogonal(0, 5)
    roots = (axes * normal(1, 3, 1, 5).abs()) @ axes.mT  # symmetric and commuting
    average = factor_average(roots, WEIGHTS)
    torch.testing.assert_close(bures_barycentre(roots @ roots, WEIGHTS), average @ average)


def test_giving_up_is_an_error(gaussian):
    a = gaussian(1, batch=(3,), condition=1e3).covariance
    with pytest.raises(NumericalError, match=r"after 1 iterations; expected at most .* Raise tol"):
        bures_barycentre(a, WEIGHTS, max_iter=1)


@pytest.mark.parametrize("weights", [[0.0, 0.0], [2.0, -1.0], [float("nan"), 1.0]])
def test_weights_that_average_nothing_are_refused(weights):
    for average in (factor_average, bures_barycentre):
        with pytest.raises(NumericalError, match="expected a positive sum for every class"):
            average(torch.eye(3).expand(2, 3, 3), torch.tensor(weights))
