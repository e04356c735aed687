import jaxtyping
import numpy as np
import pytest
import torch

import flic.gaussians
from flic.errors import NumericalError
from flic.gaussians import Gaussian

F64 = torch.float64


def test_all_lists_exactly_what_init_imports():
    public = {
        name
        for name, value in vars(flic.gaussians).items()
        if not name.startswith("_") and not isinstance(value, type(flic))
    }
    assert sorted(public) == flic.gaussians.__all__


def test_covariance_by_hand():
    full = Gaussian(torch.zeros(2), torch.tensor([[1.0, 2.0], [0.0, 3.0]]), eps=0.5)
    assert full.covariance.tolist() == [[5.5, 6.0], [6.0, 9.5]]
    diagonal = Gaussian(torch.zeros(2), torch.tensor([2.0, -3.0]), eps=0.5)
    assert diagonal.covariance.tolist() == [[4.5, 0.0], [0.0, 9.5]]
    assert (full.is_diagonal, diagonal.is_diagonal) == (False, True)


@pytest.mark.parametrize("eps", [0.0, 0.3])
@pytest.mark.parametrize("diagonal", [False, True])
def test_root_times_its_transpose_is_the_covariance(gaussian, normal, diagonal, eps):
    p = gaussian(1, batch=(3,), rank=2)
    factor = normal(5, 3, 6) if diagonal else p.factor
    p = Gaussian(p.mean, factor, eps=eps)
    root = p.root()
    assert root.shape == p.factor.shape
    dense = torch.diag_embed(root) if diagonal else root
    torch.testing.assert_close(dense @ dense.mT, p.covariance)


def test_root_is_the_factor_itself_without_eps(gaussian):
    p = gaussian(1)
    assert p.root() is p.factor


def test_root_exists_in_float32_where_rounding_exceeds_eps(normal):
    factor = normal(0, 64, 3).float() @ normal(1, 3, 64).float() * 10
    p = Gaussian(torch.zeros(64), factor, eps=1e-6)
    root = p.root()
    torch.testing.assert_close(root @ root.mT, p.covariance, rtol=1e-5, atol=1e-2)


@pytest.mark.parametrize("diagonal", [False, True])
def test_trace_is_that_of_the_covariance(gaussian, normal, diagonal):
    p = gaussian(1, batch=(2, 3))
    p = Gaussian(p.mean, normal(4, 2, 3, 6) if diagonal else p.factor, eps=0.1)
    expected = p.covariance.diagonal(dim1=-2, dim2=-1).sum(-1)
    torch.testing.assert_close(p.trace(), expected)


def test_isotropic_has_the_variance_it_was_given():
    p = Gaussian.isotropic(torch.zeros(2, 3, dtype=F64), variance=4.0)
    torch.testing.assert_close(p.covariance, 4 * torch.eye(3, dtype=F64).expand(2, 3, 3))


@pytest.mark.parametrize("n", [1, 2, 4, 6, 7, 40])
def test_from_samples_agrees_with_numpy_for_any_rank(normal, n):
    x = normal(n, n, 6) + 3
    p = Gaussian.from_samples(x)
    np.testing.assert_allclose(p.mean, x.mean(0))
    np.testing.assert_allclose(p.covariance, np.cov(x.T, bias=True), atol=1e-13)
    assert p.factor.shape == (6, 6)


def test_from_samples_does_not_square_small_spreads(normal):
    x = normal(0, 50, 3) * torch.tensor([1.0, 1.0, 1e-6], dtype=F64)
    x = (x - x.mean(0)).float()
    smallest = torch.linalg.svdvals(Gaussian.from_samples(x).factor)[-1]
    expected = torch.linalg.svdvals(x.double())[-1] / 50**0.5
    assert smallest.item() == pytest.approx(expected.item(), rel=0.2)


@pytest.mark.parametrize("n", [4, 20])
def test_from_samples_ignores_padded_rows(normal, n):
    x, garbage = normal(0, 2, n, 5), 1e3 * normal(1, 2, 3, 5)
    mask = torch.cat([torch.ones(2, n), torch.zeros(2, 3)], -1).double()
    padded = Gaussian.from_samples(torch.cat([x, garbage], -2), mask)
    plain = Gaussian.from_samples(x)
    torch.testing.assert_close(padded.mean, plain.mean)
    torch.testing.assert_close(padded.covariance, plain.covariance)


def test_from_samples_of_one_and_of_no_sample():
    x = torch.tensor([[[1.0, 2.0], [9.0, 9.0]], [[9.0, 9.0], [9.0, 9.0]]])
    p = Gaussian.from_samples(x, torch.tensor([[1.0, 0.0], [0.0, 0.0]]))
    assert p.mean.tolist() == [[1.0, 2.0], [0.0, 0.0]]
    assert p.covariance.abs().max() == 0


@pytest.mark.parametrize("n", [3, 9])
def test_from_samples_passes_the_gradient_of_the_covariance(normal, n):
    weight = normal(1, 4, 4)

    def through_factor(x):
        p = Gaussian.from_samples(x)
        return (p.mean.square().sum() + (weight * p.covariance).sum()).reshape(1)

    x = normal(0, n, 4).requires_grad_()
    assert torch.autograd.gradcheck(through_factor, x)


@pytest.mark.parametrize("eps", [0.0, 0.2])
@pytest.mark.parametrize("diagonal", [False, True])
def test_samples_have_the_moments_they_were_drawn_from(gaussian, normal, diagonal, eps):
    p = gaussian(3, 3, batch=(2,))
    p = Gaussian(p.mean, normal(4, 2, 3) if diagonal else p.factor, eps=eps)
    x = p.sample(200_000, generator=torch.Generator().manual_seed(0))
    q = Gaussian.from_samples(x)
    torch.testing.assert_close(q.mean, p.mean, atol=0.01, rtol=0)
    torch.testing.assert_close(q.covariance, p.covariance, atol=0.03, rtol=0)


def test_samples_repeat_with_the_generator(gaussian):
    p = gaussian(3, dtype=torch.float32)
    first, again, other = (
        p.sample(4, generator=torch.Generator().manual_seed(s)) for s in (0, 0, 1)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert first.dtype == torch.float32


@pytest.mark.parametrize("eps", [0.0, 0.2])
@pytest.mark.parametrize("diagonal", [False, True])
def test_reparameterise_is_differentiable(gaussian, normal, diagonal, eps):
    noise = normal(0, 2, 5, 3)
    p = gaussian(1, 3, batch=(2,))
    factor = normal(4, 2, 3) if diagonal else p.factor

    def draw(mean, factor):
        return Gaussian(mean, factor, eps).reparameterise(noise)

    assert torch.autograd.gradcheck(
        draw, (p.mean.clone().requires_grad_(), factor.clone().requires_grad_())
    )


def test_indexing_reaches_batch_axes_only(gaussian):
    p = Gaussian(*(getattr(gaussian(1, batch=(2, 6)), name) for name in ("mean", "factor")), 0.1)
    for index in (1, slice(0, 1), (0, 3), (..., 2), torch.tensor([1, 0, 1])):
        picked = p[index]
        expected = p.covariance[index] if index != (..., 2) else p.covariance[:, 2]
        torch.testing.assert_close(picked.covariance, expected)
        assert picked.dim == 6


def test_indexing_passes_gradients(gaussian):
    mean = gaussian(1, batch=(3,)).mean.requires_grad_()
    Gaussian.isotropic(mean)[torch.tensor([2, 2])].mean.sum().backward()
    assert mean.grad is not None
    assert mean.grad[:, 0].tolist() == [0, 0, 2]


def test_a_single_gaussian_cannot_be_indexed(gaussian):
    with pytest.raises(IndexError, match="no batch axes"):
        gaussian(1)[0]


@pytest.mark.parametrize(
    ("mean", "factor"), [((3,), (2, 2)), ((4, 3), (3, 3)), ((4, 3), (3,)), ((), ())]
)
def test_shapes_that_do_not_fit_are_named(monkeypatch, mean, factor):
    # As in production, where shape annotations are not checked.
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    with pytest.raises(NumericalError, match=r"expected \[\*batch, k\]"):
        Gaussian(torch.zeros(mean), torch.zeros(factor))


def test_negative_variances_are_refused():
    with pytest.raises(NumericalError, match=r"variance -1\.0; expected a number ≥ 0"):
        Gaussian.isotropic(torch.zeros(2), -1.0)
    with pytest.raises(NumericalError, match="expected eps ≥ 0"):
        Gaussian(torch.zeros(2), torch.ones(2), eps=-1e-3)


def test_a_covariance_without_cholesky_factor_says_what_to_do(normal):
    p = Gaussian(normal(0, 8), 1e9 * normal(1, 8, 1) @ normal(2, 1, 8), eps=1e-9)
    with pytest.raises(NumericalError, match="Raise eps"):
        p.root()
