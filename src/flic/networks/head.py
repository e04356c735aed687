"""g_θ: from the latent space to class scores or a response, through an optional hidden layer.

Paper: append:models. FLIC-Class has the head alone; FLIC-HL has a linear hidden layer with
LeakyReLU before it.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from flic.networks.base import init_linear, linear
from flic.shapes import Named


@dataclass(frozen=True)
class SplitModel:
    """Architecture of g_θ; `hidden_dim` None means no hidden layer."""

    latent_dim: int
    hidden_dim: int | None
    num_outputs: int

    def init(self, *, rng: torch.Generator, dtype: torch.dtype) -> dict[str, Tensor]:
        """Parameters θ of one client."""
        theta = {}
        if self.hidden_dim is not None:
            weight, bias = init_linear(self.latent_dim, self.hidden_dim, rng=rng, dtype=dtype)
            theta |= {"hidden.weight": weight, "hidden.bias": bias}
        inner = self.hidden_dim or self.latent_dim
        weight, bias = init_linear(inner, self.num_outputs, rng=rng, dtype=dtype)
        return theta | {"head.weight": weight, "head.bias": bias}

    def represent(
        self, theta: Named, latent: Float[Tensor, "clients rows k"]
    ) -> Float[Tensor, "clients rows inner"]:
        """Input of the last layer."""
        if self.hidden_dim is None:
            return latent
        hidden = linear(latent, theta["hidden.weight"], theta["hidden.bias"])
        return torch.nn.functional.leaky_relu_(hidden)

    def apply(
        self, theta: Named, latent: Float[Tensor, "clients rows k"]
    ) -> Float[Tensor, "clients rows outputs"]:
        """Class scores, or the response, g_θ(z)."""
        inner, weight, bias = (
            self.represent(theta, latent),
            theta["head.weight"],
            theta["head.bias"],
        )
        if self.num_outputs > 1:
            return linear(inner, weight, bias)
        # A batched product with one column rounds by the number of clients; this does not.
        return (inner * weight.mT).sum(-1, keepdim=True) + bias[:, None]
