"""The anchors μ_1:C: one Gaussian per class (or meta-class) in the latent space, shared by all.

Paper: sec:methodo, "Design Choices"; μ_c = N(v_c, L_c L_cᵀ + εI).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from flic.errors import ConfigError
from flic.gaussians import Gaussian, bures_barycentre, sqrtm
from flic.method_settings import AnchorConfig
from flic.methods.protocol import Entry
from flic.notation import counted
from flic.shapes import Named

MEAN, FACTOR = "anchors.mean", "anchors.factor"
"""A stack's own copies of v_1:C and L_1:C, [clients, anchors, …], in each client's own order."""


def mean_name(c: int) -> str:
    """Name under which v_c is sent."""
    return f"anchor.{c}.mean"


def factor_name(c: int) -> str:
    """Name under which L_c is sent."""
    return f"anchor.{c}.factor"


def initial_anchors(
    config: AnchorConfig,
    num_classes: int,
    latent_dim: int,
    *,
    rng: torch.Generator,
    dtype: torch.dtype,
) -> dict[str, Tensor]:
    """Anchors μ_c^(0) under the names they are sent by."""
    means = _initial_means(config, num_classes, latent_dim, rng=rng).to(dtype)
    named = {mean_name(c): means[c] for c in range(num_classes)}
    std = config.variance**0.5
    if config.covariance == "diagonal":
        named |= {factor_name(c): torch.full_like(means[c], std) for c in range(num_classes)}
    if config.covariance == "full":
        eye = std * torch.eye(latent_dim, dtype=dtype)
        named |= {factor_name(c): eye.clone() for c in range(num_classes)}
    return named


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


@dataclass(frozen=True)
class Anchors:
    """All anchors, stacked; or each client's own copy of them, with a client axis before."""

    mean: Float[Tensor, "*clients classes k"]
    factor: Tensor | None  # [classes, k] for diagonal, [classes, k, k] for full, none for identity

    @classmethod
    def of(cls, shared: Named, config: AnchorConfig, num_classes: int) -> "Anchors":
        """Anchors from tensors under the names they are sent by."""
        mean = torch.stack([shared[mean_name(c)] for c in range(num_classes)])
        if config.covariance == "identity":
            return cls(mean, None)
        return cls(mean, torch.stack([shared[factor_name(c)] for c in range(num_classes)]))

    def take(self, places: Tensor | tuple[Tensor, ...]) -> "Anchors":
        """Copies of the anchors at these places."""
        factor = None if self.factor is None else self.factor[places]
        return Anchors(self.mean[places], factor)

    def gaussian(self, config: AnchorConfig) -> Gaussian:
        """The anchors as one batch of Gaussians."""
        if self.factor is None:
            return Gaussian.isotropic(self.mean, config.variance)
        return Gaussian(self.mean, self.factor, config.eps)


def barycentre_factor(entries: Sequence[Entry]) -> Tensor:
    """A root of the Bures barycentre of the holders' covariances.  Paper: steps 19-20.

    Diagonal covariances commute, and the root of their barycentre is the mean of the positive
    roots; the sign of a factor means nothing.
    """
    factors = torch.stack([e.value.to(torch.float64) for e in entries])
    weights = torch.tensor([e.weight for e in entries], dtype=torch.float64)
    if factors.ndim == 2:
        root = (weights[:, None] * factors.abs()).sum(0) / weights.sum()
    else:
        root = sqrtm(bures_barycentre(factors @ factors.mT, weights))
    return root.to(entries[0].value.dtype)
