"""The anchors μ_1:C: one Gaussian per class (or meta-class) in the latent space, shared by all.

Paper: sec:methodo, "Design Choices". As in its experiments, covariances stay as they are; learnt
ones (covariance.py) are anchors beside these.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from flic.errors import ConfigError
from flic.gaussians import Gaussian
from flic.method_settings import AnchorConfig
from flic.methods.protocol import Entry
from flic.notation import counted
from flic.shapes import Named

MEAN = "anchors.mean"
"""A stack's own copies of v_1:C, [clients, anchors, k], in each client's own order."""


def mean_name(c: int) -> str:
    """Name under which v_c is sent."""
    return f"anchor.{c}.mean"


class Anchors:
    """Anchors N(v_c, variance · I), of which the means are learnt."""

    #: Parts that are learnt: the name of a stack's own copies, and that under which one is sent.
    parts: ClassVar[Mapping[str, Callable[[int], str]]] = {MEAN: mean_name}

    def __init__(self, config: AnchorConfig) -> None:
        self.config = config

    def initial(
        self, num: int, latent_dim: int, *, rng: torch.Generator, dtype: torch.dtype
    ) -> dict[str, Tensor]:
        """Anchors μ_c^(0) under the names they are sent by."""
        means = _initial_means(self.config, num, latent_dim, rng=rng).to(dtype)
        return {mean_name(c): means[c] for c in range(num)}

    def copies(self, shared: Named, order: Int[Tensor, "clients anchors"]) -> dict[str, Tensor]:
        """Each client's own copies of the anchors that were sent, in its own order."""
        every = range(order.shape[1])
        return {
            own: torch.stack([shared[name(c)] for c in every])[order]
            for own, name in self.parts.items()
        }

    def gaussian(self, copies: Named) -> Gaussian:
        """The copies as one batch of Gaussians."""
        return Gaussian.isotropic(copies[MEAN], self.config.variance)

    def barycentre(self, name: str, entries: Sequence[Entry]) -> Tensor | None:
        """The average of a part that is no mean of its entries."""
        del name, entries
        return None


def _initial_means(
    config: AnchorConfig, num_classes: int, latent_dim: int, *, rng: torch.Generator
) -> Float[Tensor, "classes k"]:
    shape = (num_classes, latent_dim)
    normal = torch.randn(shape, generator=rng, dtype=torch.float64)
    if config.layout == "random":
        return config.scale * normal
    if num_classes > latent_dim:
        raise ConfigError(
            f"anchors.layout is 'equidistant' with {num_classes} classes in a latent space of "
            f"{counted(latent_dim, 'dimension')}; only as many means can be mutually equidistant. "
            "Raise embedding.latent_dim or use anchors.layout = 'random'."
        )
    # Orthonormal directions at the typical length of a random mean: all distances are equal.
    directions = torch.linalg.qr(normal.mT).Q.mT
    return config.scale * latent_dim**0.5 * directions
