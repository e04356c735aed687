from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from flic.gaussians import Gaussian, block_nuclear_norm, nuclear_norm, nuclear_norm_gram

DTYPES = [torch.float32, torch.float64]
SHAPES = [(5, 5), (3, 7), (7, 3), (1, 4), (33, 64)]
TOLERANCE = {torch.float32: 2e-4, torch.float64: 1e-9}


def value_and_grad(fn: Callable[..., Tensor], y: Tensor, *args: Tensor) -> tuple[Tensor, Tensor]:
    y = y.clone().requires_grad_()
    value = fn(y, *args)
    (grad,) = torch.autograd.grad(value.sum(), y)
    return value.detach(), grad


def assert_same(got: tuple[Tensor, Tensor], expected: tuple[Tensor, Tensor]) -> None:
    tol = TOLERANCE[got[0].dtype]
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b, atol=tol, rtol=tol)


@pytest.mark.parametrize("shape", SHAPES)
def test_value_is_the_sum_of_singular_values(normal, shape):
    y = normal(0, 2, 3, *shape)
    torch.testing.assert_close(nuclear_norm(y), torch.linalg.svdvals(y).sum(-1))


@pytest.mark.parametrize("fn", [nuclear_norm, nuclear_norm_gram])
@pytest.mark.parametrize("shape", SHAPES[:4])
def test_gradient_agrees_with_finite_differences(normal, fn, shape):
    assert torch.autograd.gradcheck(fn, normal(0, 2, *shape).requires_grad_(), atol=1e-6)


@pytest.mark.parametrize("rank", [0, 1, 2])
@pytest.mark.parametrize("fn", [nuclear_norm, nuclear_norm_gram])
@pytest.mark.parametrize("dtype", DTYPES)
def test_subgradient_of_rank_deficient_matrices_lives_on_their_range(orthogonal, fn, rank, dtype):
    left, right = orthogonal(0, 6)[:, :rank], orthogonal(1, 9)[:, :rank]
    y = ((left * torch.tensor([3.0, 2.0])[:rank]) @ right.mT).to(dtype)
    value, grad = value_and_grad(fn, y)
    assert value.item() == pytest.approx([0, 3, 5][rank], rel=1e-5)
    torch.testing.assert_close(grad, (left @ right.mT).to(dtype), atol=2e-5, rtol=0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_gram_path_equals_the_exact_one(normal, shape, dtype):
    # Centred rows, as in the alignment term, so that one singular value is 0 for n ≤ k.
    y = normal(0, 4, *shape)
    y = (y - y.mean(-2, keepdim=True)).to(dtype)
    assert_same(value_and_grad(nuclear_norm_gram, y), value_and_grad(nuclear_norm, y))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [4, 40])
def test_gram_path_ignores_zero_rows(normal, dtype, rows):
    y = normal(0, 3, rows, 16).to(dtype)
    padded = torch.cat([y, torch.zeros_like(y)], -2)
    value, grad = value_and_grad(nuclear_norm_gram, padded)
    assert_same((value, grad[:, :rows]), value_and_grad(nuclear_norm, y))
    assert grad[:, rows:].abs().max() < 1e-4


def test_gram_path_drops_what_it_says_it_drops():
    y = torch.diag(torch.tensor([1.0, 2e-3, 5e-4]))
    assert nuclear_norm_gram(y).item() == pytest.approx(1.002, abs=1e-6)
    assert nuclear_norm_gram(y.double()).item() == pytest.approx(1.0025, abs=1e-9)


def test_no_rows_have_norm_zero():
    assert nuclear_norm_gram(torch.zeros(2, 0, 3)).tolist() == [0, 0]


@pytest.mark.parametrize("dtype", DTYPES)
def test_trace_term_of_an_empirical_class(gaussian, normal, dtype):
    # performance.md: with Y = (X − mean) L / √n, tr((Σ^½ S Σ^½)^½) = ‖Y‖_*.
    anchor, x = gaussian(1, 16, dtype=dtype), normal(5, 9, 16).to(dtype)
    moments = Gaussian.from_samples(x)
    y = (x - moments.mean) @ anchor.factor / 3
    exact = torch.linalg.eigvals((anchor.covariance @ moments.covariance).double())
    expected = exact.real.clamp(min=0).sqrt().sum().to(dtype)
    torch.testing.assert_close(nuclear_norm_gram(y), expected, rtol=1e-3, atol=0)


# --- blocks ------------------------------------------------------------------------------------


def membership(labels: Tensor, dtype: torch.dtype) -> Tensor:
    equal = labels[..., :, None] == labels[..., None, :]
    return (equal & (labels >= 0)[..., None]).to(dtype)


def by_loop(y: Tensor, labels: Tensor) -> Tensor:
    return torch.stack(
        [
            sum((nuclear_norm(rows[label == c]) for c in range(3)), torch.zeros((), dtype=y.dtype))
            for rows, label in zip(y, labels, strict=True)
        ]
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("k", [4, 32])
def test_blocks_equal_a_loop_over_classes_and_padding_is_in_none(normal, dtype, k):
    # Rows in any order, an absent class, a class of one row, and garbage in padded rows (−1).
    labels = torch.tensor([[0, 1, 2, 0, 1, 2, 0, 1, 2, 0], [2, 0, 2, 2, 2, 2, 2, -1, -1, -1]])
    y = normal(0, 2, 10, k).to(dtype)
    y[1, 7:] = 100
    got = value_and_grad(block_nuclear_norm, y, membership(labels, dtype))
    assert_same(got, value_and_grad(by_loop, y, labels))
    assert got[1][1, 7:].abs().max() == 0


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_narrow_class_keeps_its_gradient_beside_a_wide_one(normal, dtype):
    # The same spectrum up to scale and rows in turns, so that the eigenvectors of both blocks mix.
    labels = torch.tensor([[0, 1] * 5])
    wide = normal(0, 1, 5, 16).to(dtype)
    y = torch.stack([wide, 1e-5 * wide.flip(-1)], -2).flatten(1, 2)
    got = value_and_grad(block_nuclear_norm, y, membership(labels, dtype))
    assert_same(got, value_and_grad(by_loop, y, labels))


@pytest.mark.parametrize("dtype", DTYPES)
def test_blocks_of_nothing_are_zero_with_zero_gradient(normal, dtype):
    empty = value_and_grad(
        block_nuclear_norm, normal(0, 1, 4, 3).to(dtype), torch.zeros(1, 4, 4, dtype=dtype)
    )
    collapsed = value_and_grad(
        block_nuclear_norm, torch.zeros(1, 4, 3, dtype=dtype), torch.ones(1, 4, 4, dtype=dtype)
    )
    for value, grad in (empty, collapsed):
        assert value.item() == 0
        assert grad.abs().max() == 0
