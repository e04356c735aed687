"""Embedding φ: named parameters with a leading client axis, and a map of rows."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import leaky_relu

from flic.method_settings import Activation
from flic.shapes import Named


@runtime_checkable
class Embedding(Protocol):
    """Architecture of φ for all clients of a stack. Clients with equal ones can be stacked."""

    @property
    def dim(self) -> int:
        """Number of input features, padding included."""
        ...

    @property
    def dropout(self) -> float:
        """Share of inner units that a training step leaves out."""
        ...

    def init(self, features: int, *, rng: torch.Generator, dtype: torch.dtype) -> dict[str, Tensor]:
        """Parameters of one client with `features` features, unpadded."""
        ...

    def apply(
        self,
        parameters: Named,
        x: Float[Tensor, "clients rows dim"],
        *,
        masks: Sequence[Tensor] = (),
        rows: Sequence[int] | None = None,
    ) -> Float[Tensor, "clients rows k"]:
        """Latent representation φ_i(x).

        Args:
            parameters: of the clients, stacked.
            x: their rows; those of a client beyond its number in `rows` are padding, whose
                image does not matter.
            masks: dropout factors of the inner layers.
            rows: real rows of each client; None means all.
        """
        ...

    def draw_masks(
        self, rows: Sequence[int], rngs: Sequence[torch.Generator], *, dtype: torch.dtype
    ) -> list[Tensor]:
        """Dropout factors for one step, from each client's own generator, for its own rows."""
        ...


def init_layer(
    *shape: int,
    fan_in: int | None = None,
    fan_out: int | None = None,
    rng: torch.Generator,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """Weight of that shape and bias, uniform within ±1/√fan_in (PyTorch's default).

    Without fans it is an affine layer, whose shape they are.
    """
    bound = (fan_in or shape[0]) ** -0.5
    weight = torch.empty(shape, dtype=torch.float64)
    bias = torch.empty(fan_out or shape[1], dtype=torch.float64)
    for tensor in (weight, bias):
        tensor.uniform_(-bound, bound, generator=rng)
    return weight.to(dtype), bias.to(dtype)


def linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Each client's own affine layer: x_i W_i + b_i."""
    return torch.bmm(x, weight).add_(bias[:, None, :])


def activated(latent: Tensor, activation: Activation) -> Tensor:
    """The latent after its activation."""
    return latent if activation == "none" else leaky_relu(latent)


def dropout_masks(
    widths: Sequence[int],
    keep: float,
    rows: Sequence[int],
    rngs: Sequence[torch.Generator],
    *,
    dtype: torch.dtype,
) -> list[Float[Tensor, "clients rows width"]]:
    """Factors 0 or 1/keep for layers of those widths, drawn client by client."""
    masks = [torch.zeros(len(rngs), max(rows), width, dtype=dtype) for width in widths]
    for i, (count, rng) in enumerate(zip(rows, rngs, strict=True)):
        for mask in masks:
            uniform = torch.rand(count, mask.shape[2], generator=rng)
            mask[i, :count] = (uniform < keep).to(dtype) / keep
    return masks
