"""The terms that FLIC adds to F_i: alignment (λ₁) and calibration (λ₂).

Paper: eq:PFL_ERM_reg; the data loss is `flic.networks.head.data_loss`. Every function returns one
number per client; weights λ are applied by the caller.
"""

from jaxtyping import Float, Int
from torch import Tensor

from flic.data.batches import Batch
from flic.methods.flic.targets import Targets
from flic.networks.head import cross_entropy


def alignment_loss(
    latent: Float[Tensor, "clients rows k"], batch: Batch, targets: Targets
) -> Float[Tensor, " clients"]:
    """Σ_c W2²(μ_c, ν_φi^(c)) over the classes in the batch.  Paper: eq:PFL_ERM_reg, eq:W2_Gauss.

    Each response is a class of its own; for these it is the mean over the rows.

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
    loss = cross_entropy(scores, labels.clamp_min(0))
    return (loss * (labels >= 0)).sum(1) / per_class
