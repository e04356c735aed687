"""Model g_θ: from the latent space to class scores or a response, with an optional hidden layer.

Paper: append:models. FLIC-Class has only the head; FLIC-HL has a linear hidden layer with
LeakyReLU before it.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from flic.data.batches import Batch
from flic.networks.base import init_layer, linear
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
            weight, bias = init_layer(self.latent_dim, self.hidden_dim, rng=rng, dtype=dtype)
            theta |= {"hidden.weight": weight, "hidden.bias": bias}
        inner = self.hidden_dim or self.latent_dim
        weight, bias = init_layer(inner, self.num_outputs, rng=rng, dtype=dtype)
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
        # Rounding of a batched product with one column depends on the number of clients.
        return (inner * weight.mT).sum(-1, keepdim=True) + bias[:, None]


def data_loss(
    scores: Float[Tensor, "clients rows outputs"], batch: Batch
) -> Float[Tensor, " clients"]:
    """Mean cross-entropy, or squared error, of each client's batch.  Paper: eq:PFL_local (f_i)."""
    real = batch.y.is_floating_point()
    loss = (scores[..., 0] - batch.y).square() if real else cross_entropy(scores, batch.y)
    return (loss * batch.member.sum(2)).sum(1) / batch.rows


def cross_entropy(
    scores: Float[Tensor, "clients rows classes"], labels: Int[Tensor, "clients rows"]
) -> Float[Tensor, "clients rows"]:
    """Cross-entropy of each row."""
    flat = torch.nn.functional.cross_entropy(
        scores.flatten(0, 1), labels.flatten(), reduction="none"
    )
    return flat.view(labels.shape)


def mask_to_own_classes(
    scores: Float[Tensor, "clients rows classes"], holds: Bool[Tensor, "clients classes"]
) -> Float[Tensor, "clients rows classes"]:
    """Scores with classes the client does not hold set to −∞."""
    return scores.masked_fill(~holds[:, None, :], float("-inf"))
