"""φ for feature vectors: a multilayer perceptron per client, all clients of a stack at once.

Paper: append:models (one input, one hidden and one output layer of 64 units, ReLU between).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from jaxtyping import Float
from torch import Tensor

from flic.shapes import Named

FIRST_LAYER = "embedding.0.weight"
"""The one parameter whose shape depends on a client's features."""


def linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Each client's own affine layer: x_i W_i + b_i."""
    return torch.bmm(x, weight).add_(bias[:, None, :])


def init_linear(
    fan_in: int, fan_out: int, *, rng: torch.Generator, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Weight and bias of one layer, uniform within ±1/√fan_in (PyTorch's own default)."""
    bound = fan_in**-0.5
    weight = torch.empty(fan_in, fan_out, dtype=torch.float64)
    bias = torch.empty(fan_out, dtype=torch.float64)
    for tensor in (weight, bias):
        tensor.uniform_(-bound, bound, generator=rng)
    return weight.to(dtype), bias.to(dtype)


@dataclass(frozen=True)
class Mlp:
    """φ: ℝ^dim → ℝ^latent_dim, with `dim` the padded width of the stack.

    Weights of padded features start at zero and have zero gradient, so they stay zero.
    """

    dim: int
    hidden: tuple[int, ...]
    latent_dim: int
    dropout: float = 0.0

    @property
    def sizes(self) -> tuple[int, ...]:
        """Widths of all layers, input and output included."""
        return (self.dim, *self.hidden, self.latent_dim)

    def init(self, features: int, *, rng: torch.Generator, dtype: torch.dtype) -> dict[str, Tensor]:
        """Parameters of one client with `features` features, unpadded."""
        parameters = {}
        sizes = (features, *self.sizes[1:])
        for layer, (fan_in, fan_out) in enumerate(pairwise(sizes)):
            weight, bias = init_linear(fan_in, fan_out, rng=rng, dtype=dtype)
            parameters[f"embedding.{layer}.weight"] = weight
            parameters[f"embedding.{layer}.bias"] = bias
        return parameters

    def apply(
        self,
        parameters: Named,
        x: Float[Tensor, "clients rows dim"],
        *,
        masks: Sequence[Tensor] = (),
    ) -> Float[Tensor, "clients rows k"]:
        """Latent representation φ_i(x); `masks` are dropout factors of the inner layers."""
        last = len(self.sizes) - 2
        for layer in range(last + 1):
            weight = parameters[f"embedding.{layer}.weight"]
            x = linear(x, weight, parameters[f"embedding.{layer}.bias"])
            if layer < last:
                x = torch.relu_(x)
                x = x * masks[layer] if masks else x
        return x

    def draw_masks(
        self, rows: Sequence[int], rngs: Sequence[torch.Generator], *, dtype: torch.dtype
    ) -> list[Float[Tensor, "clients rows width"]]:
        """Dropout factors for one step: each client's from its own generator, for its own rows."""
        if not self.dropout:
            return []
        keep = 1.0 - self.dropout
        masks = [torch.zeros(len(rngs), max(rows), width, dtype=dtype) for width in self.hidden]
        for i, (count, rng) in enumerate(zip(rows, rngs, strict=True)):
            for mask in masks:
                uniform = torch.rand(count, mask.shape[2], generator=rng)
                mask[i, :count] = (uniform < keep).to(dtype) / keep
        return masks
