import pytest
import torch

from flic.errors import ConfigError, NumericalError
from flic.gaussians import Gaussian, affine_map, optimal_map, wasserstein2_sq

F64 = torch.float64


def standard(k: int) -> Gaussian:
    return Gaussian.isotropic(torch.zeros(k, dtype=F64))


@pytest.mark.parametrize("k", [1, 3, 6])
@pytest.mark.parametrize("condition", [10.0, 1e5])
def test_moments_of_the_source_become_those_of_the_target(gaussian, k, condition):
    source = gaussian(1, 6, condition=condition, batch=(2,))
    target = gaussian(5, k, condition=condition, batch=(2,))
    phi = affine_map(source, target)
    pushed = phi.matrix @ source.covariance @ phi.matrix.mT
    torch.testing.assert_close(pushed, target.covariance, atol=1e-9, rtol=0)
    torch.testing.assert_close(phi(source.mean[:, None]), target.mean[:, None])


def test_moments_of_samples_are_pushed_exactly(gaussian, normal):
    source = Gaussian.from_samples(normal(0, 40, 8) @ normal(1, 8, 8))
    x = source.mean + torch.cat([source.factor.mT, -source.factor.mT]) * 8**0.5  # 2k points
    target = gaussian(5, 3)
    image = Gaussian.from_samples(affine_map(source, target)(x))
    assert wasserstein2_sq(image, target) < 1e-20


def test_singular_targets_are_reached(gaussian):
    source, target = gaussian(1, 6), gaussian(5, 4, rank=2)
    matrix = affine_map(source, target).matrix
    torch.testing.assert_close(matrix @ source.covariance @ matrix.mT, target.covariance)


@pytest.mark.parametrize("seed", range(5))
def test_oracle_map_is_recovered_up_to_signs(gaussian, normal, seed):
    # theorem2: φ̂_i = Q φ*_i with Q = diag(±1), for φ* built from another diagonalisation.
    source, k = gaussian(seed, 7, condition=1e3), 4
    values, vectors = torch.linalg.eigh(source.covariance)
    values, vectors = values.flip(-1)[:k], vectors.flip(-1)[:, :k]
    oracle_signs = normal(seed, k).sign()
    x = normal(seed + 1, 20, 7)
    oracle = (x - source.mean) @ vectors / values.sqrt() * oracle_signs
    ratio = affine_map(source, standard(k))(x) / oracle
    torch.testing.assert_close(ratio.abs(), torch.ones(20, k, dtype=F64), atol=1e-9, rtol=0)
    assert (ratio.sign() == ratio[0].sign()).all()


def test_paper_formula_holds_only_after_rotating_into_the_eigenbasis(gaussian):
    # Point 5 of the notes: [D^{-½} 0] on x − m itself does not whiten.
    source, k = gaussian(1, 5), 3
    scale = torch.linalg.eigvalsh(source.covariance).flip(-1)[:k].rsqrt()
    literal = torch.cat([torch.diag(scale), torch.zeros(k, 2, dtype=F64)], -1)
    eye = torch.eye(k, dtype=F64)
    assert (literal @ source.covariance @ literal.mT - eye).abs().max() > 0.1
    matrix = affine_map(source, standard(k)).matrix
    torch.testing.assert_close(matrix @ source.covariance @ matrix.mT, eye)


def test_signs_flip_the_latent_axes(gaussian):
    source, signs = gaussian(1, 5), torch.tensor([1.0, -1.0, -1.0], dtype=F64)
    plain, flipped = affine_map(source, standard(3)), affine_map(source, standard(3), signs=signs)
    torch.testing.assert_close(flipped.matrix, signs[:, None] * plain.matrix)


def test_default_signs_do_not_come_from_the_library(gaussian):
    matrix = affine_map(gaussian(1, 9, batch=(4,)), standard(5)).matrix
    largest = matrix.gather(-1, matrix.abs().argmax(-1, keepdim=True))
    assert (largest > 0).all()


def test_map_does_not_depend_on_the_rotation_of_the_factor(gaussian, orthogonal):
    source = gaussian(1, 5)
    turned = Gaussian(source.mean, source.factor @ orthogonal(9, 5))
    torch.testing.assert_close(
        affine_map(turned, standard(3)).matrix, affine_map(source, standard(3)).matrix
    )


def test_optimal_map_carries_p_to_q_at_the_cost_of_their_distance(gaussian):
    p, q = (gaussian(s, batch=(2,), condition=1e3) for s in (1, 5))
    brenier = optimal_map(p, q)
    pushed = brenier.matrix @ p.covariance @ brenier.matrix.mT
    torch.testing.assert_close(pushed, q.covariance, atol=1e-9, rtol=0)
    moved = Gaussian(q.mean - p.mean, (brenier.matrix - torch.eye(6, dtype=F64)) @ p.factor)
    cost = moved.mean.square().sum(-1) + moved.trace()
    torch.testing.assert_close(cost, wasserstein2_sq(p, q))


def test_optimal_map_is_symmetric_and_positive(gaussian):
    matrix = optimal_map(gaussian(1), gaussian(5)).matrix
    torch.testing.assert_close(matrix, matrix.mT)
    assert torch.linalg.eigvalsh(matrix).min() > 0


def test_optimal_map_by_hand():
    # OTT's example: N(0, 1) to N(1, 4) is x ↦ 2x + 1.
    p, q = Gaussian.isotropic(torch.zeros(1)), Gaussian.isotropic(torch.ones(1), 4.0)
    torch.testing.assert_close(optimal_map(p, q)(torch.tensor([[3.0]])), torch.tensor([[7.0]]))


def test_too_large_a_latent_space_is_named(gaussian):
    with pytest.raises(ConfigError, match=r"target of 5 dimensions for a source of 4; .*at most 4"):
        affine_map(gaussian(1, 4), gaussian(5, 5))


def test_too_low_a_rank_is_named(gaussian):
    with pytest.raises(NumericalError, match=r"rank below 3.*Drop constant"):
        affine_map(gaussian(1, 6, rank=2), gaussian(5, 3))
