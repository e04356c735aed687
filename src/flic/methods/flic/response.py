"""Anchors indexed by a real response: μ_y = N(y a + (1 − y) b, I).

Paper: "Reference Distribution for Regression". Responses are encoded, so that the declared range
is [0, 1]; the two vectors travel as the anchors at its ends, b as anchor 0 and a as anchor 1.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from flic.data.batches import Batch
from flic.methods.flic.targets import Targets


def response_means(
    ends: Float[Tensor, "clients 2 k"], y: Float[Tensor, "clients rows"]
) -> Float[Tensor, "clients rows k"]:
    """m(y) = y a + (1 − y) b of each response."""
    b, a = ends[:, :1], ends[:, 1:]
    return y[..., None] * a + (1 - y)[..., None] * b


def response_targets(batch: Batch, ends: Float[Tensor, "clients 2 k"]) -> Targets:
    """Where each row is pulled to: the mean of its own response's anchor.

    A response belongs to a single row, so W2² is ‖φ(x) − m(y)‖² and the trace of the anchor's
    fixed covariance, a constant that the paper leaves out.
    """
    rows = response_means(ends, batch.y)
    return Targets(rows, rows.new_zeros(len(rows)))


def even_responses(num: int, *, dtype: torch.dtype) -> Float[Tensor, " num"]:
    """Responses spread evenly over [0, 1], where the anchors are sampled for calibration."""
    return (torch.arange(num, dtype=dtype) + 0.5) / num


def response_calibration_loss(
    outputs: Float[Tensor, "clients samples 1"], y: Float[Tensor, " samples"]
) -> Float[Tensor, " clients"]:
    """Mean squared error of g at samples Z ~ μ_y.  Paper: eq:PFL_ERM_reg, the λ₂ term."""
    return (outputs[..., 0] - y).square().mean(1)


def nearest_response(
    latent: Float[Tensor, "clients rows k"], ends: Float[Tensor, "clients 2 k"]
) -> Float[Tensor, "clients rows 1"]:
    """Response whose anchor is nearest, and likeliest: the projection on the line from b to a."""
    b, a = ends[:, :1], ends[:, 1:]
    tiny = torch.finfo(latent.dtype).tiny
    length_sq = (a - b).square().sum(-1, keepdim=True).clamp_min(tiny)
    return ((latent - b) * (a - b)).sum(-1, keepdim=True) / length_sq
