"""The anchors μ_1:C: one Gaussian per class (or meta-class) in the latent space, shared by all.

Paper: sec:methodo, "Design Choices"; μ_c = N(v_c, L_c L_cᵀ + εI).
"""

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from jaxtyping import Float, Int
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from torch import Tensor

from flic.errors import ConfigError
from flic.gaussians import Gaussian
from flic.shapes import Named


def parse_meta_classes(value: object) -> int | tuple[int, ...] | None:
    """How many meta-classes to find, or the meta-class of each class; None where there are none."""
    if value is None or (type(value) is int and value >= 1):
        return value
    if not isinstance(value, list | tuple) or not value or any(type(m) is not int for m in value):
        raise ValueError(
            "expected how many meta-classes to find, at least 1, or a list with one for each class"
        )
    if min(value) != 0 or max(value) + 1 != len(set(value)):
        raise ValueError("expected meta-classes 0, 1, … with no number left out")
    return tuple(value)


MetaClasses = Annotated[int | tuple[int, ...] | None, BeforeValidator(parse_meta_classes)]


class AnchorConfig(BaseModel):
    """How anchors start, what of them is learnt, and how the server averages them."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    scale: float = Field(default=1.0, gt=0, description="standard deviation of the initial means")
    layout: Literal["random", "equidistant"] = "random"
    covariance: Literal["identity", "diagonal", "full"] = "identity"
    variance: float = Field(
        default=1.0, gt=0, description="initial (or fixed) variance of an anchor"
    )
    eps: float = Field(default=1e-6, ge=0, description="ε of Σ = LLᵀ + εI where L is learnt")
    learn: Literal["after", "every-batch"] = "after"
    average_over: Literal["holders", "participants"] = "holders"
    average_covariance: Literal["factors", "barycentre"] = "factors"
    meta_classes: MetaClasses = None

    @property
    def num_meta(self) -> int | None:
        """C_meta, where classes share anchors."""
        given = self.meta_classes
        return max(given) + 1 if isinstance(given, tuple) else given


def mean_name(c: int) -> str:
    """Name under which v_c travels."""
    return f"anchor.{c}.mean"


def factor_name(c: int) -> str:
    """Name under which L_c travels."""
    return f"anchor.{c}.factor"


def initial_anchors(
    config: AnchorConfig,
    num_classes: int,
    latent_dim: int,
    *,
    rng: torch.Generator,
    dtype: torch.dtype,
) -> dict[str, Tensor]:
    """Anchors μ_c^(0) under the names they travel by."""
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
            f"{latent_dim} dimensions; at most {latent_dim} means can be mutually equidistant. "
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
        """Anchors from the names they travel by."""
        mean = torch.stack([shared[mean_name(c)] for c in range(num_classes)])
        if config.covariance == "identity":
            return cls(mean, None)
        return cls(mean, torch.stack([shared[factor_name(c)] for c in range(num_classes)]))

    def copies(self, anchor_of: Int[Tensor, "clients classes"]) -> "Anchors":
        """A copy per client, in the order of its own classes."""
        factor = None if self.factor is None else self.factor[anchor_of]
        return Anchors(self.mean[anchor_of], factor)

    def gaussian(self, config: AnchorConfig) -> Gaussian:
        """The anchors as one batch of Gaussians."""
        if self.factor is None:
            return Gaussian.isotropic(self.mean, config.variance)
        return Gaussian(self.mean, self.factor, config.eps)
