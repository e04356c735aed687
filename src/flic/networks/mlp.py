"""φ for feature vectors: a multilayer perceptron per client, all clients of a stack at once.

Paper: append:models (one input, one hidden and one output layer of 64 units, ReLU between).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from jaxtyping import Float
from torch import Tensor

from flic.method_settings import Activation
from flic.networks.base import activated, dropout_masks, init_layer, linear
from flic.shapes import Named

FIRST_LAYER = "embedding.0.weight"
"""Name of the only parameter whose shape depends on a client's features: a row for each."""


@dataclass(frozen=True)
class Mlp:
    """φ: ℝ^dim → ℝ^latent_dim, with `dim` the padded width of the stack.

    Weights of padded features start at zero and have zero gradient, so they stay zero.
    """

    dim: int
    hidden: tuple[int, ...]
    latent_dim: int
    dropout: float = 0.0
    activation: Activation = "none"

    @property
    def sizes(self) -> tuple[int, ...]:
        """Widths of all layers, input and output included."""
        return (self.dim, *self.hidden, self.latent_dim)

    def init(self, features: int, *, rng: torch.Generator, dtype: torch.dtype) -> dict[str, Tensor]:
        """Parameters of one client with `features` features, unpadded."""
        parameters = {}
        sizes = (features, *self.sizes[1:])
        for layer, (fan_in, fan_out) in enumerate(pairwise(sizes)):
            weight, bias = init_layer(fan_in, fan_out, rng=rng, dtype=dtype)
            parameters[f"embedding.{layer}.weight"] = weight
            parameters[f"embedding.{layer}.bias"] = bias
        return parameters

    def apply(
        self,
        parameters: Named,
        x: Float[Tensor, "clients rows dim"],
        *,
        masks: Sequence[Tensor] = (),
        rows: Sequence[int] | None = None,
    ) -> Float[Tensor, "clients rows k"]:
        """Latent representation φ_i(x)."""
        del rows  # padding is computed too: leaving it out would cost more than it saves
        last = len(self.sizes) - 2
        for layer in range(last + 1):
            weight = parameters[f"embedding.{layer}.weight"]
            x = linear(x, weight, parameters[f"embedding.{layer}.bias"])
            if layer < last:
                x = torch.relu_(x)
                x = x * masks[layer] if masks else x
        return activated(x, self.activation)

    def draw_masks(
        self, rows: Sequence[int], rngs: Sequence[torch.Generator], *, dtype: torch.dtype
    ) -> list[Float[Tensor, "clients rows width"]]:
        """Dropout factors for one step, from each client's own generator, for its own rows."""
        if not self.dropout:
            return []
        return dropout_masks(self.hidden, 1.0 - self.dropout, rows, rngs, dtype=dtype)
