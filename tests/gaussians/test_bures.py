import numpy as np
import ot
import pytest
import scipy.linalg
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flic.errors import NumericalError
from flic.gaussians import Gaussian, bures_sq, optimal_map, wasserstein2_sq

F64 = torch.float64
laws = settings(derandomize=True, deadline=None, max_examples=25)
seeds = st.integers(0, 10_000)


def zero_mean(p: Gaussian) -> Gaussian:
    return Gaussian(torch.zeros_like(p.mean), p.factor, p.eps)


def transformed(p: Gaussian, matrix: torch.Tensor) -> Gaussian:
    return Gaussian(p.mean @ matrix.mT, matrix @ p.factor, p.eps)


# --- a metric ----------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [1.0, 300.0])
def test_distance_to_itself_is_zero(gaussian, hard, scale):
    p = transformed(gaussian(1, 32, batch=(4,), **hard), scale * torch.eye(32, dtype=F64))
    assert wasserstein2_sq(p, p).max() < 1e-8
    assert bures_sq(p.covariance, p.covariance).max() < 1e-8


def test_distance_to_itself_is_zero_in_float32(gaussian, hard):
    p = gaussian(1, 32, batch=(4,), dtype=torch.float32, **hard)
    assert wasserstein2_sq(p, p).max() < 1e-8
    assert bures_sq(p.covariance, p.covariance).max() < 1e-5


def test_distance_does_not_see_the_rotation_of_a_factor(gaussian, orthogonal, hard):
    p, q = gaussian(1, 16, **hard), gaussian(5, 16, **hard)
    turned = Gaussian(p.mean, p.factor @ orthogonal(9, 16))
    assert wasserstein2_sq(p, turned) < 1e-8
    torch.testing.assert_close(wasserstein2_sq(p, q), wasserstein2_sq(turned, q))


def test_symmetry(gaussian, hard):
    p, q = gaussian(1, batch=(5,), **hard), gaussian(5, batch=(5,), condition=1e3)
    torch.testing.assert_close(wasserstein2_sq(p, q), wasserstein2_sq(q, p))
    torch.testing.assert_close(
        bures_sq(p.covariance, q.covariance), bures_sq(q.covariance, p.covariance)
    )


@laws
@given(seed=seeds, ranks=st.tuples(*[st.integers(0, 4)] * 3))
def test_triangle_inequality_of_the_root(gaussian, seed, ranks):
    p, q, r = (gaussian(seed + 10 * i, 4, condition=1e4, rank=rank) for i, rank in enumerate(ranks))
    pq, qr, pr = (wasserstein2_sq(*pair).sqrt() for pair in ((p, q), (q, r), (p, r)))
    assert pr <= (pq + qr) * (1 + 1e-12)


@laws
@given(seed=seeds, step=st.floats(0, 1e-5))
def test_never_negative_however_near(gaussian, normal, seed, step):
    p = gaussian(seed, 5, condition=1e5, dtype=torch.float32)
    near = Gaussian(p.mean, p.factor + step * normal(seed, 5, 5).float())
    assert wasserstein2_sq(p, near) >= 0
    assert bures_sq(p.covariance, near.covariance) >= 0


# --- how it moves ------------------------------------------------------------------------------


def test_translation_of_both_changes_nothing_and_of_one_adds_its_square(gaussian, normal, hard):
    p, q, shift = gaussian(1, **hard), gaussian(5, **hard), normal(9, 6)
    moved_p, moved_q = (Gaussian(g.mean + shift, g.factor) for g in (p, q))
    torch.testing.assert_close(wasserstein2_sq(moved_p, moved_q), wasserstein2_sq(p, q))
    torch.testing.assert_close(wasserstein2_sq(moved_p, p), shift.square().sum())


def test_orthogonal_invariance(gaussian, orthogonal, hard):
    p, q, turn = gaussian(1, **hard), gaussian(5, **hard), orthogonal(9, 6)
    torch.testing.assert_close(
        wasserstein2_sq(transformed(p, turn), transformed(q, turn)), wasserstein2_sq(p, q)
    )


def test_scaling_by_c_multiplies_by_its_square(gaussian, hard):
    p, q, c = gaussian(1, **hard), gaussian(5, **hard), 3 * torch.eye(6, dtype=F64)
    torch.testing.assert_close(
        wasserstein2_sq(transformed(p, c), transformed(q, c)), 9 * wasserstein2_sq(p, q)
    )


# --- other ways to the same number -------------------------------------------------------------


def test_commuting_covariances_have_a_closed_form(orthogonal, normal):
    axes, a, b = orthogonal(0, 6), normal(1, 6).abs(), normal(2, 6).abs()
    b[:3] = 0
    distance = bures_sq((axes * a**2) @ axes.mT, (axes * b**2) @ axes.mT)
    torch.testing.assert_close(distance, (a - b).square().sum())


@pytest.mark.parametrize("eps", [0.0, 0.1])
def test_diagonal_and_full_factors_agree(gaussian, normal, eps):
    mean, d, e = normal(0, 3, 5), normal(1, 3, 5), normal(2, 3, 5)  # of either sign
    p, q = Gaussian(mean, d, eps), Gaussian(-mean, e, eps)
    full_p, full_q = (Gaussian(g.mean, torch.diag_embed(g.factor), eps) for g in (p, q))
    for left, right in ((full_p, full_q), (p, full_q), (full_p, q)):
        torch.testing.assert_close(wasserstein2_sq(left, right), wasserstein2_sq(p, q))


@pytest.mark.parametrize("condition", [10.0, 1e3, 1e5])
def test_textbook_formula_by_scipy(gaussian, condition):
    p, q = gaussian(1, 8, condition=condition), gaussian(5, 8, condition=condition)
    a, b = p.covariance.numpy(), q.covariance.numpy()
    root = scipy.linalg.sqrtm(a)
    textbook = np.trace(a) + np.trace(b) - 2 * np.trace(scipy.linalg.sqrtm(root @ b @ root)).real
    assert bures_sq(p.covariance, q.covariance).item() == pytest.approx(textbook, rel=1e-9)
    assert wasserstein2_sq(zero_mean(p), zero_mean(q)).item() == pytest.approx(textbook, rel=1e-9)


@pytest.mark.parametrize("condition", [10.0, 1e3, 1e5])
def test_distance_of_pot(gaussian, condition):
    p, q = gaussian(1, 8, condition=condition), gaussian(5, 8, condition=condition)
    expected = ot.gaussian.bures_wasserstein_distance(p.mean, q.mean, p.covariance, q.covariance)
    assert wasserstein2_sq(p, q).sqrt().item() == pytest.approx(expected.item(), rel=1e-9)


def test_singular_covariances_are_the_limit_of_regular_ones(gaussian):
    p, q = gaussian(1, rank=2), gaussian(5, rank=3)
    lifted = (g.covariance + 1e-14 * torch.eye(6, dtype=F64) for g in (p, q))
    limit = ot.gaussian.bures_wasserstein_distance(p.mean, q.mean, *lifted).squeeze() ** 2
    torch.testing.assert_close(wasserstein2_sq(p, q), limit, rtol=1e-6, atol=0)


def test_rank_one_covariances_by_hand():
    u, v = torch.tensor([3.0, 4.0]), torch.tensor([1.0, 0.0])
    # tr uuᵀ + tr vvᵀ − 2|uᵀv| = 25 + 1 − 6
    assert bures_sq(torch.outer(u, u), torch.outer(v, v)).item() == pytest.approx(20, rel=1e-5)


def test_float32_agrees_with_float64(gaussian, hard):
    p, q = gaussian(1, 16, **hard), gaussian(5, 16, **hard)
    low = wasserstein2_sq(*(Gaussian(g.mean.float(), g.factor.float()) for g in (p, q)))
    assert low.dtype == torch.float32
    torch.testing.assert_close(low.double(), wasserstein2_sq(p, q), rtol=1e-5, atol=1e-5)


def test_batch_axes_broadcast_and_equal_a_loop(gaussian):
    p, q = gaussian(1, batch=(3,)), gaussian(5, batch=(4,), rank=2)
    lifted = Gaussian(p.mean[:, None], p.factor[:, None])
    loop = torch.stack(
        [torch.stack([wasserstein2_sq(p[i], q[j]) for j in range(4)]) for i in range(3)]
    )
    torch.testing.assert_close(wasserstein2_sq(lifted, q), loop)


def test_one_sample_leaves_the_trace_of_the_anchor(gaussian, normal):
    anchor, x = gaussian(1), normal(5, 1, 6).requires_grad_()
    distance = wasserstein2_sq(anchor, Gaussian.from_samples(x))
    torch.testing.assert_close(distance, (x[0] - anchor.mean).square().sum() + anchor.trace())
    distance.backward()
    torch.testing.assert_close(x.grad[0], 2 * (x[0] - anchor.mean))


# --- gradients ---------------------------------------------------------------------------------


@pytest.mark.parametrize("eps", [0.0, 0.05])
@pytest.mark.parametrize("diagonal", ["neither", "first", "both"])
@pytest.mark.parametrize("condition", [10.0, 1e4])
def test_gradient_agrees_with_finite_differences(gaussian, normal, diagonal, eps, condition):
    p, q = (gaussian(s, 4, condition=condition, batch=(2,)) for s in (1, 5))
    f = p.factor if diagonal == "neither" else normal(8, 2, 4)
    g = q.factor if diagonal != "both" else normal(9, 2, 4)

    def distance(mean_p, f, mean_q, g):
        return wasserstein2_sq(Gaussian(mean_p, f, eps), Gaussian(mean_q, g, eps))

    inputs = tuple(t.clone().requires_grad_() for t in (p.mean, f, q.mean, g))
    assert torch.autograd.gradcheck(distance, inputs, atol=1e-5, rtol=1e-4)


def test_gradient_in_the_matrices_agrees_with_finite_differences(gaussian):
    factors = tuple(gaussian(s, 4, condition=100.0, batch=(2,)).factor.clone() for s in (1, 5))
    assert torch.autograd.gradcheck(
        lambda f, g: bures_sq(f @ f.mT, g @ g.mT), tuple(f.requires_grad_() for f in factors)
    )


def test_gradient_in_a_matrix_is_the_identity_less_the_optimal_map(gaussian):
    p, q = gaussian(1, condition=1e3), gaussian(5, condition=1e3)
    a = p.covariance.requires_grad_()
    bures_sq(a, q.covariance).backward()
    torch.testing.assert_close(a.grad, torch.eye(6, dtype=F64) - optimal_map(p, q).matrix)


@pytest.mark.parametrize("n", [2, 3, 12])
def test_gradient_in_samples_agrees_with_finite_differences_also_below_full_rank(
    gaussian, normal, n
):
    anchor, x = gaussian(1, 5), normal(5, n, 5).requires_grad_()
    assert torch.autograd.gradcheck(
        lambda x: wasserstein2_sq(anchor, Gaussian.from_samples(x)).reshape(1), x
    )


def test_gradient_vanishes_at_equal_gaussians(gaussian, hard):
    p = gaussian(1, 16, **hard)
    factor, mean = p.factor.clone().requires_grad_(), p.mean.clone().requires_grad_()
    wasserstein2_sq(Gaussian(mean, factor), p).backward()
    assert mean.grad.abs().max() == 0
    assert factor.grad.abs().max() < 1e-12


CORNERS = {
    "identity": torch.eye(4),
    "zero": torch.zeros(4, 4),
    "rank1": torch.ones(4, 4),
    "cond1e10": torch.diag(torch.tensor([1.0, 1.0, 1e-5, 1e-10])),
}


@pytest.mark.parametrize("dtype", [torch.float32, F64])
@pytest.mark.parametrize("left", CORNERS)
@pytest.mark.parametrize("right", CORNERS)
def test_gradients_are_finite_in_every_corner(left, right, dtype):
    f, g = (CORNERS[name].to(dtype, copy=True).requires_grad_() for name in (left, right))
    mean = torch.zeros(4, dtype=dtype)
    (wasserstein2_sq(Gaussian(mean, f), Gaussian(mean, g)) + bures_sq(f, g)).backward()
    assert torch.isfinite(f.grad).all()
    assert torch.isfinite(g.grad).all()


def test_identity_anchor_pulls_a_narrow_covariance_open():
    factor = torch.diag(torch.tensor([0.1, 0.5, 2.0])).requires_grad_()
    anchor = Gaussian.isotropic(torch.zeros(3))
    wasserstein2_sq(anchor, Gaussian(torch.zeros(3), factor)).backward()
    torch.testing.assert_close(factor.grad, torch.diag(torch.tensor([-1.8, -1.0, 2.0])))


def test_different_dimensions_are_named(gaussian):
    with pytest.raises(NumericalError, match="1 and 6 dimensions; expected the same"):
        wasserstein2_sq(gaussian(1, 1), gaussian(1, 6))
