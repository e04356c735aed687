"""The terms of F_i: data loss, alignment (λ₁) and calibration (λ₂).

Paper: eq:PFL_ERM_reg. Every function returns one number per client; weights λ are applied
by the caller.
"""

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from flic.data.batches import Batch
from flic.methods.flic.targets import Targets


def data_loss(
    scores: Float[Tensor, "clients rows outputs"], batch: Batch
) -> Float[Tensor, " clients"]:
    """Mean cross-entropy, or squared error, of each client's batch.  Paper: eq:PFL_local (f_i)."""
    loss = _loss_of_rows(scores, batch.y)
    return (loss * batch.member.sum(2)).sum(1) / batch.rows


def _loss_of_rows(
    scores: Float[Tensor, "clients rows outputs"], labels: Shaped[Tensor, "clients rows"]
) -> Float[Tensor, "clients rows"]:
    if labels.is_floating_point():
        return (scores[..., 0] - labels).square()
    return _cross_entropy(scores, labels)


def alignment_loss(
    latent: Float[Tensor, "clients rows k"], batch: Batch, targets: Targets
) -> Float[Tensor, " clients"]:
    """Σ_c W2²(μ_c, ν_φi^(c)) over the classes in the batch.  Paper: eq:PFL_ERM_reg, eq:W2_Gauss.

    Of responses, which are a class of their own each, the mean over the rows.

    With T the optimal transport image of each row on its anchor, W2² = Σ_r ‖φ(x_r) − T_r‖²/n_c
    plus the part of the anchor's trace that the rows do not span. T may be held fixed when
    differentiating in φ (envelope theorem), so no gradient goes through an eigenvalue problem.
    """
    gap = (latent - targets.rows).square().sum(-1)
    return (batch.mass * gap).sum(1) + targets.unspanned


def calibration_loss(
    scores: Float[Tensor, "clients samples classes"],
    classes: Int[Tensor, "clients slots"],
) -> Float[Tensor, " clients"]:
    """Σ_c (1/J) Σ_j ℓ(c, g(Z_c^(j))) over a client's classes.  Paper: eq:PFL_ERM_reg.

    Samples come slot by slot, J of each; samples of unused slots (class −1) count nothing.
    """
    per_class = scores.shape[1] // classes.shape[1]
    labels = classes.repeat_interleave(per_class, dim=1)
    loss = _cross_entropy(scores, labels.clamp_min(0))
    return (loss * (labels >= 0)).sum(1) / per_class


def _cross_entropy(
    scores: Float[Tensor, "clients rows classes"], labels: Int[Tensor, "clients rows"]
) -> Float[Tensor, "clients rows"]:
    flat = torch.nn.functional.cross_entropy(
        scores.flatten(0, 1), labels.flatten(), reduction="none"
    )
    return flat.view(labels.shape)


def mask_to_own_classes(
    scores: Float[Tensor, "clients rows classes"], holds: Bool[Tensor, "clients classes"]
) -> Float[Tensor, "clients rows classes"]:
    """Scores with classes the client does not hold set to −∞."""
    return scores.masked_fill(~holds[:, None, :], float("-inf"))
