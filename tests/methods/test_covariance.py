"""The stretch of learnt covariances: what sampling noise takes from an anchor is given back."""

import pytest
import torch
from torch import Tensor

from flic.gaussians import Gaussian, bures_sq
from flic.methods.flic.covariance import stretch

K, N = 20, 200


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0)).double()


def cross(a: Tensor, b: Tensor) -> Tensor:
    """2 tr((A^½ B A^½)^½), the term of eq:W2_Gauss that holds an anchor's covariance up."""
    return a.diagonal(dim1=-2, dim2=-1).sum(-1) + b.trace() - bures_sq(a, b)


def law(spread: float) -> Tensor:
    """Factor of a law with deviations from 1 − spread to 1 + spread, turned."""
    turn = torch.linalg.qr(normal(K, K)).Q
    return turn * torch.linspace(1 - spread, 1 + spread, K).double()


@pytest.mark.parametrize("anchor", ["near", "far"])
def test_the_stretched_cross_term_is_that_of_the_law(anchor):
    factor = law(0.5)
    own = factor if anchor == "near" else torch.eye(K).double() * 1.5
    rows = normal(30, N, K) @ factor.mT
    means = torch.zeros(K).double()
    covariances = torch.stack([torch.cov(own_rows.mT) for own_rows in rows])
    plain = cross(covariances, own @ own.mT)
    lengths = torch.stack([stretch(own_rows, Gaussian(means, own)) for own_rows in rows])
    expected = cross((factor @ factor.mT)[None], own @ own.mT)[0]
    assert plain.mean() < 0.99 * expected
    torch.testing.assert_close((lengths * plain).mean(), expected, rtol=0.003, atol=0)


@pytest.mark.slow
def test_an_anchor_at_the_rows_lacks_nothing():
    rows = normal(N, K)
    found = stretch(rows, Gaussian.from_samples(rows))
    torch.testing.assert_close(found, torch.ones(()).double())


@pytest.mark.parametrize("n", [2, 5])
def test_few_rows_stretch_little(n):
    """The rule is for more rows than dimensions; below, it must do no harm."""
    anchor = Gaussian.isotropic(torch.zeros(K).double())
    assert 1 <= stretch(normal(n, K), anchor) < 1.5
    assert stretch(torch.ones(n, K).double(), anchor) == 1
