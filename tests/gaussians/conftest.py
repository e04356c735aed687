"""Factories of hard inputs: non-commuting, ill-conditioned, rank-deficient, batched."""

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from flic.gaussians import Gaussian


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def _normal(seed: int, *shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def _orthogonal(seed: int, k: int, batch: tuple[int, ...] = ()) -> Tensor:
    return torch.linalg.qr(_normal(seed, *batch, k, k)).Q


def _scales(k: int, condition: float, rank: int | None) -> Tensor:
    scales = torch.logspace(0, -0.5, k, base=condition, dtype=torch.float64)
    scales[k if rank is None else rank :] = 0
    return scales


def _gaussian(
    seed: int,
    k: int = 6,
    *,
    condition: float = 10.0,
    rank: int | None = None,
    batch: tuple[int, ...] = (),
    dtype: torch.dtype = torch.float64,
) -> Gaussian:
    axes, turn = _orthogonal(seed, k, batch), _orthogonal(seed + 1, k, batch)
    factor = (axes * _scales(k, condition, rank)) @ turn
    return Gaussian(_normal(seed + 2, *batch, k).to(dtype), factor.to(dtype))


@pytest.fixture(scope="session")
def normal() -> Callable[..., Tensor]:
    """normal(seed, *shape): standard normal, float64."""
    return _normal


@pytest.fixture(scope="session")
def orthogonal() -> Callable[..., Tensor]:
    """orthogonal(seed, k, batch): random rotations."""
    return _orthogonal


@pytest.fixture(scope="session")
def gaussian() -> Callable[..., Gaussian]:
    """gaussian(seed, k, condition=, rank=, batch=, dtype=): covariance of that condition number.

    Covariances of different seeds do not commute, and factors are not symmetric.
    """
    return _gaussian


HARD = {
    "mild": {"condition": 10.0},
    "cond1e3": {"condition": 1e3},
    "cond1e5": {"condition": 1e5},
    "rank2": {"rank": 2},
}


@pytest.fixture(scope="session", params=HARD.values(), ids=HARD.keys())
def hard(request: pytest.FixtureRequest) -> dict[str, float]:
    """Keyword arguments of `gaussian`, one difficulty after another."""
    return request.param
