import pytest
import scipy.linalg
import torch

from flic.errors import NumericalError
from flic.gaussians import inv_sqrtm, nuclear_norm, nuclear_norm_gram, sqrtm

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-13}


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_root_is_symmetric_and_squares_to_the_matrix(gaussian, hard, dtype):
    a = gaussian(1, batch=(2, 3), dtype=dtype, **hard).covariance
    root = sqrtm(a)
    tol = TOLERANCE[dtype]
    torch.testing.assert_close(root @ root, a, atol=tol, rtol=tol)
    torch.testing.assert_close(root, root.mT, atol=tol, rtol=tol)
    assert root.dtype == dtype


@pytest.mark.parametrize("condition", [10.0, 1e5])
def test_root_agrees_with_scipy(gaussian, condition):
    a = gaussian(1, 8, condition=condition).covariance
    torch.testing.assert_close(sqrtm(a), torch.from_numpy(scipy.linalg.sqrtm(a.numpy())))


def test_negative_eigenvalues_of_rounding_count_as_zero():
    a = torch.diag(torch.tensor([1.0, -1e-9, 4.0]))
    assert sqrtm(a).diagonal().tolist() == [1.0, 0.0, 2.0]


@pytest.mark.parametrize("condition", [10.0, 1e3])
def test_gradient_agrees_with_finite_differences(gaussian, condition):
    factor = gaussian(1, 4, condition=condition, batch=(2,)).factor.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda f: sqrtm(f @ f.mT), factor)


def test_gradient_at_repeated_eigenvalues(normal):
    # At c·I the root is A ↦ √c I + (A − cI) / 2√c to first order.
    direction = normal(0, 5, 5)
    direction = direction + direction.mT
    a = (4 * torch.eye(5, dtype=torch.float64)).requires_grad_()
    (sqrtm(a) * direction).sum().backward()
    torch.testing.assert_close(a.grad, direction / 4)


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_gradient_of_singular_matrices_is_finite_and_exact_on_their_range(dtype, orthogonal):
    axes = orthogonal(0, 5).to(dtype)
    a = ((axes[:, :2] * 9) @ axes[:, :2].mT).requires_grad_()
    sqrtm(a).diagonal().sum().backward()
    # tr √A: the gradient is A^{-½} / 2 on the range and 0 (for ∞) on the null space.
    expected = axes[:, :2] @ axes[:, :2].mT / 6
    torch.testing.assert_close(
        a.grad, expected, atol=1e-3 if dtype == torch.float32 else 1e-7, rtol=0
    )


def test_gradient_of_zero_is_zero():
    a = torch.zeros(3, 3, requires_grad=True)
    sqrtm(a).sum().backward()
    assert a.grad is not None
    assert a.grad.abs().max() == 0


@pytest.mark.parametrize("condition", [10.0, 1e5])
def test_inverse_root_inverts_the_root(gaussian, condition):
    a = gaussian(1, condition=condition, batch=(3,)).covariance
    eye = torch.eye(6, dtype=a.dtype).expand_as(a)
    torch.testing.assert_close(inv_sqrtm(a) @ sqrtm(a), eye, atol=1e-9, rtol=0)


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_inverse_root_of_a_singular_matrix_projects_on_its_range(orthogonal, dtype):
    axes = orthogonal(0, 5).to(dtype)[:, :2]
    inverse = inv_sqrtm(axes @ axes.mT * 4)
    torch.testing.assert_close(inverse, axes @ axes.mT / 2, atol=1e-6, rtol=0)


def test_cutoff_is_relative_to_the_largest_eigenvalue():
    inverse = inv_sqrtm(torch.diag(torch.tensor([100.0, 4.0, 0.25])), cutoff=0.01)
    torch.testing.assert_close(inverse.diagonal(), torch.tensor([0.1, 0.5, 0.0]))


def test_zero_has_inverse_root_zero():
    assert inv_sqrtm(torch.zeros(2, 3, 3)).abs().max() == 0


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("k", [2, 6, 40])
def test_entries_that_are_not_finite_are_located_at_every_size(bad, k):
    a = torch.eye(k).repeat(3, 1, 1)
    a[1, 0, 0] = bad
    for fn in (sqrtm, nuclear_norm, nuclear_norm_gram):
        with pytest.raises(
            NumericalError, match=r"1 of its 3 matrices, first at batch index \[1\]"
        ):
            fn(a)


def test_finite_entries_may_overflow_when_summed():
    a = torch.diag(torch.full((2,), 3e38))  # the sum, asked first, is infinite
    torch.testing.assert_close(sqrtm(a), torch.diag(torch.full((2,), 3e38**0.5)))
