"""The oracle of the theory: Gaussian features, linear labels, a feature space per client.

Paper: sec:theory, ass. Labels are noiseless, y = (A* β_i*)ᵀ φ_i*(x), so a model that finds the
column space of A* predicts them to the last digit.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from flic.errors import ConfigError
from flic.gaussians import AffineMap, Gaussian
from flic.gaussians.decomposition import orthonormal_basis
from flic.seeding import generator

_VARIANCES = (1.0, -1.0)  # powers of ten of the largest and the least eigenvalue of Σ_i


@dataclass(frozen=True)
class LinearOracleConfig:
    """Sizes of the problem.  Paper: sec:theory."""

    num_clients: int = 20  # b
    latent_dim: int = 8  # k
    rank: int = 2  # d, columns of A*
    dims: tuple[int, int] = (8, 16)  # least and largest k_i

    def __post_init__(self) -> None:
        if not 1 <= self.rank <= self.latent_dim <= self.dims[0] <= self.dims[1]:
            raise ConfigError(
                f"A linear oracle got rank {self.rank}, latent_dim {self.latent_dim} and dims "
                f"{self.dims}; expected 1 ≤ rank ≤ latent_dim ≤ dims[0] ≤ dims[1]: φ_i* keeps "
                "latent_dim of a client's directions. Change one of them."
            )


@dataclass(frozen=True, eq=False)
class LabelledRows:
    """Rows of one client and their responses."""

    x: Float[Tensor, "rows dim"]
    y: Float[Tensor, " rows"]


@dataclass(frozen=True, eq=False)
class OracleClient:
    """A client's features N(m_i, Σ_i), the map φ_i* to N(0, I_k), and its head β_i*."""

    name: str
    moments: Gaussian
    embedding: AffineMap
    head: Float[Tensor, " d"]


@dataclass(frozen=True, eq=False)
class LinearOracle:
    """The ground truth.  Paper: ass.

    `signs` is the diagonal of Ĩ_k*, the same for all clients: the paper's "shared randomness". It
    is for eigenvectors whose largest entry is positive, as in `affine_map`. Without a common
    choice, Q would differ from client to client and no single A would fit all.
    """

    representation: Float[Tensor, "k d"]  # A*
    signs: Float[Tensor, " k"]
    clients: Sequence[OracleClient]

    @property
    def latent_dim(self) -> int:
        """Number k of latent dimensions."""
        return len(self.signs)

    def heads_of(self, names: Sequence[str]) -> Float[Tensor, "active d"]:
        """β_i* of the clients with these names."""
        by_name = {client.name: client.head for client in self.clients}
        return torch.stack([by_name[name] for name in names])

    def draw(self, client: OracleClient, rows: int, *, rng: torch.Generator) -> LabelledRows:
        """Rows of a client with noiseless labels (A* β_i*)ᵀ φ_i*(x)."""
        x = client.moments.sample(rows, generator=rng)
        return LabelledRows(x, client.embedding(x) @ self.representation @ client.head)


def make_linear_oracle(config: LinearOracleConfig, *, seed: int) -> LinearOracle:
    """A random ground truth that meets the paper's assumptions.

    Paper: ass.    A* orthonormal, ‖β_i*‖ = √d, φ_i*(x) ~ N(0, I_k)
    The paper gives no Σ_i; here eigenvalues fall in equal ratios from 10 to 0.1.
    """
    rng = generator(seed, "linear-oracle")
    signs = torch.randn(config.latent_dim, generator=rng, dtype=torch.float64).sign()
    representation = orthonormal_basis(_normal(config.latent_dim, config.rank, rng=rng))
    clients = [
        _make_client(f"client-{i:03d}", config, signs, seed=seed) for i in range(config.num_clients)
    ]
    return LinearOracle(representation, signs, clients)


def _make_client(
    name: str, config: LinearOracleConfig, signs: Float[Tensor, " k"], *, seed: int
) -> OracleClient:
    rng = generator(seed, "linear-oracle", name)
    low, high = config.dims
    dim = int(torch.randint(low, high + 1, (), generator=rng))
    axes = _positive_largest(orthonormal_basis(_normal(dim, dim, rng=rng)))
    deviations = torch.logspace(*_VARIANCES, dim, dtype=torch.float64).sqrt()
    mean = _normal(dim, rng=rng)
    direction = _normal(config.rank, rng=rng)
    k = config.latent_dim
    matrix = (signs / deviations[:k])[:, None] * axes[:, :k].mT
    return OracleClient(
        name=name,
        moments=Gaussian(mean, axes * deviations),
        embedding=AffineMap(matrix, mean, torch.zeros_like(signs)),
        head=direction / direction.norm() * config.rank**0.5,
    )


def _normal(*shape: int, rng: torch.Generator) -> Float[Tensor, "..."]:
    return torch.randn(shape, generator=rng, dtype=torch.float64)


def _positive_largest(axes: Float[Tensor, "dim dim"]) -> Float[Tensor, "dim dim"]:
    """Columns with signs such that the entry of largest magnitude is positive."""
    return axes * axes.gather(0, axes.abs().argmax(0, keepdim=True)).sign()
