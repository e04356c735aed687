"""FLIC-FedRep for linear regression on Gaussian features, with the bounds of the theory.

Paper: algo:FLIC-FedRep-linreg, theorem:1. Every step is a function: the client half makes an
`Update`, the server half checks and averages. Given the oracle's features φ* instead of φ̂ the
same functions are plain FedRep. Clients are stacked after φ̂, where all have k features.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from flic.errors import FederationError
from flic.gaussians import AffineMap, Gaussian, affine_map
from flic.gaussians.decomposition import eigh, orthonormal_basis
from flic.methods.protocol import (
    Entry,
    ServerState,
    Update,
    check_update,
    gather_entries,
    weighted_mean,
)

_SECOND_MOMENT = "second_moment"  # Z
_REPRESENTATION = "representation"  # A


@dataclass(frozen=True, eq=False)
class EmbeddedRows:
    """Rows of clients after their maps φ, the same number for each client."""

    names: Sequence[str]
    features: Float[Tensor, "clients rows k"]
    y: Float[Tensor, "clients rows"]

    def of(self, names: Sequence[str]) -> "EmbeddedRows":
        """Only the rows of the clients with these names."""
        index = torch.tensor([self.names.index(name) for name in names])
        return EmbeddedRows(tuple(names), self.features[index], self.y[index])


def estimated_embedding(moments: Gaussian, latent_dim: int) -> AffineMap:
    """The map φ̂_i to N(0, I_k), if `moments` are the true ones of the client's features.

    Paper: algo:FLIC-FedRep-linreg, step 2.    x ↦ [Ĩ_k D^{-½} 0] P_iᵀ (x − m_i), Ĩ_k = I
    Departs: the paper leaves out the rotation P_iᵀ. The sign of an eigenvector is fixed by its
    largest entry, the same way on every client: the paper's "shared randomness".
    """
    zero = torch.zeros(latent_dim, dtype=moments.mean.dtype)
    return affine_map(moments, Gaussian.isotropic(zero))


def initial_server(latent_dim: int, *, dtype: torch.dtype = torch.float64) -> ServerState:
    """Server that waits for the clients' second moments."""
    return ServerState(0, {_SECOND_MOMENT: torch.zeros(latent_dim, latent_dim, dtype=dtype)})


def send_second_moments(rows: EmbeddedRows) -> list[Update]:
    """Updates that every client sends before the first round.

    Paper: algo:FLIC-FedRep-linreg, step 4.    Z_i = (1/n) Σ_j y_j² φ̂(x_j) φ̂(x_j)ᵀ
    """
    weighted = rows.y[..., None] * rows.features
    return _updates(rows.names, _SECOND_MOMENT, weighted.mT @ weighted / weighted.shape[-2])


def start(server: ServerState, updates: Iterable[Update], *, rank: int) -> ServerState:
    """Server with A⁰, the first `rank` eigenvectors of the clients' mean Z.

    Paper: algo:FLIC-FedRep-linreg, steps 5-6.
    """
    _, vectors = eigh(_average(server, _SECOND_MOMENT, updates))
    return ServerState(0, {_REPRESENTATION: vectors[:, -rank:]})


def representation(server: ServerState) -> Float[Tensor, "k d"]:
    """A of the server, columns orthonormal."""
    return server.shared[_REPRESENTATION]


def fit_heads(server: ServerState, rows: EmbeddedRows) -> Float[Tensor, "clients d"]:
    """Heads β_i of least squared error, given A; they stay with the clients.

    Paper: algo:FLIC-FedRep-linreg, step 12.
    """
    projected = rows.features @ representation(server)
    return torch.linalg.lstsq(projected, rows.y[..., None]).solution[..., 0]


def predict(
    server: ServerState,
    heads: Float[Tensor, "clients d"],
    features: Float[Tensor, "clients rows k"],
) -> Float[Tensor, "clients rows"]:
    """Responses (A β_i)ᵀ φ̂_i(x)."""
    return (features @ representation(server) @ heads[..., None])[..., 0]


def client_update(server: ServerState, rows: EmbeddedRows, *, step_size: float) -> list[Update]:
    """Updates of active clients: A after one gradient step with their own head.

    Paper: algo:FLIC-FedRep-linreg, steps 12-16.
    Departs: the gradient is that of 1/(2n) Σ_j (y_j − β_iᵀ Aᵀ φ̂_j)². The algorithm prints the sum,
    2n times as steep; the recursion of subsec:proof_thm2 and the condition on η are for this one.
    """
    heads = fit_heads(server, rows)
    residual = predict(server, heads, rows.features) - rows.y
    slope = rows.features.mT @ residual[..., None] / rows.y.shape[-1]
    stepped = representation(server) - step_size * slope @ heads[:, None, :]
    return _updates(rows.names, _REPRESENTATION, stepped)


def aggregate(server: ServerState, updates: Iterable[Update]) -> ServerState:
    """Server with the orthonormalised mean of the active clients' A_i.

    Paper: algo:FLIC-FedRep-linreg, steps 18-19.
    """
    mean = _average(server, _REPRESENTATION, updates)
    return ServerState(server.round + 1, {_REPRESENTATION: orthonormal_basis(mean)})


def run(
    rows: EmbeddedRows, *, rank: int, step_size: float, active: Iterable[Sequence[str]]
) -> list[ServerState]:
    """Server states from A⁰ on, one round for each set of active clients.

    Paper: algo:FLIC-FedRep-linreg.
    """
    waiting = initial_server(rows.features.shape[-1], dtype=rows.features.dtype)
    states = [start(waiting, send_second_moments(rows), rank=rank)]
    for names in active:
        updates = client_update(states[-1], rows.of(names), step_size=step_size)
        states.append(aggregate(states[-1], updates))
    return states


def principal_angle_distance(a: Float[Tensor, "k d"], b: Float[Tensor, "k d"]) -> float:
    """Sine of the largest angle between two column spaces: ‖(I − BBᵀ)A‖₂.

    Paper: theorem2. Both with orthonormal columns; 0 for equal spaces, 1 for a right angle.
    """
    return float(torch.linalg.matrix_norm(a - b @ (b.mT @ a), ord=2))


def largest_step(heads: Float[Tensor, "*sets active d"]) -> float:
    """Largest η that theorem:1 allows, for the heads β* of (every set of) active clients.

    Paper: theorem:1.    1 / (4 σ̄²_max)
    """
    return 1 / (4 * float(_head_spread(heads).max()))


def contraction_bound(
    heads: Float[Tensor, "*sets active d"], *, step_size: float, start_distance: float
) -> float:
    """Largest factor by which dist(A, QA*) can change in a round.

    Paper: theorem:1.    (1 − η E₀ σ̄²_min / 2)^½
    Departs: as in Collins et al. (2021), theorem 1, E₀ is 1 − dist²(A⁰, QA*), not the distance, and
    what the paper calls κ is 1 − κ.
    """
    quality = 1 - start_distance**2
    return (1 - step_size * quality * float(_head_spread(heads).min()) / 2) ** 0.5


def _head_spread(heads: Float[Tensor, "*sets active d"]) -> Float[Tensor, "*sets d"]:
    """Squared singular values of B*/√|A|."""
    return torch.linalg.svdvals(heads).square() / heads.shape[-2]


def _updates(
    names: Sequence[str], entry: str, values: Float[Tensor, "clients ..."]
) -> list[Update]:
    # ω_i = 1/b for all: every client counts the same
    return [
        Update(name, {entry: Entry(value, weight=1.0)})
        for name, value in zip(names, values, strict=True)
    ]


def _average(server: ServerState, name: str, updates: Iterable[Update]) -> Float[Tensor, "..."]:
    received = list(updates)
    for update in received:
        check_update(server, update)
    if not any(update.entries for update in received):
        raise FederationError(
            f"Round {server.round} got no {name!r} from any client; expected one at least. "
            "Activate a client."
        )
    return weighted_mean(gather_entries(received)[name])
