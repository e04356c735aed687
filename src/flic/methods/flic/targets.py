"""Images of embedded rows under optimal transport to their class's anchor.

Paper: eq:W2_Gauss. With c_r the centred rows of a class of n rows, F a root of the anchor's
covariance (FFᵀ = Σ) and P the polar factor of c F/√n, the Bures cross term is ⟨P, c F⟩/√n and
row r goes to T_r = v + √n P_r Fᵀ. P comes from small Gram matrices and is never differentiated,
so classes with fewer rows than dimensions, or a single row, need no special care.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from flic.data.batches import Batch
from flic.gaussians import Gaussian, polar_gram, polar_gram_blocks


@dataclass(frozen=True)
class Target:
    """Gaussian of each slot in the form transport needs: mean, root F and trace of FFᵀ."""

    mean: Float[Tensor, "clients slots k"]
    root: Tensor  # [clients, slots, k] where diagonal, else [clients, slots, k, q]
    trace: Float[Tensor, "clients slots"]

    @classmethod
    def of(cls, anchors: Gaussian) -> "Target":
        """The anchors themselves: the closed form of eq:W2_Gauss."""
        return cls(anchors.mean, anchors.root(), anchors.trace())

    @classmethod
    def of_samples(
        cls, samples: Float[Tensor, "clients slots num k"], counts: Int[Tensor, "clients slots"]
    ) -> "Target":
        """Empirical Gaussians of the first `counts` samples of each anchor.

        This is what the authors' program aligns with; its distance is biased upwards.
        """
        used = torch.arange(samples.shape[2]) < counts[..., None]
        mass = used.to(samples) / counts.clamp_min(1)[..., None]
        mean = (mass[..., None] * samples).sum(2)
        root = ((samples - mean[:, :, None]) * mass.sqrt()[..., None]).mT
        return cls(mean, root, root.square().sum((-2, -1)))


@dataclass(frozen=True)
class Targets:
    """Transport images of the rows, and the part of the anchors' traces they do not span."""

    rows: Float[Tensor, "clients rows k"]
    unspanned: Float[Tensor, " clients"]


def transport_targets(
    latent: Float[Tensor, "clients rows k"],
    batch: Batch,
    target: Target,
    stretch: Float[Tensor, "clients slots"] | None = None,
) -> Targets:
    """Transport images of each row on its class's target, differentiable in the target only.

    A stretch makes a class's images, and the cross term, so many times as long.
    """
    root = target.root
    spread = batch.mass.clamp_min(1e-30).sqrt()[..., None]  # 1/√n_c
    with torch.no_grad():
        centred = _centred(latent, batch)
        polar = _polar(_times_root(centred * spread, root, batch), batch)
        # P of centred rows is centred. Where all rows of a class are equal, only rounding is
        # left, and P is an arbitrary direction, the same for all rows: centring removes it.
        polar = _centred(polar, batch)
        if stretch is not None:
            polar = polar * torch.bmm(batch.member, stretch[..., None])
    reach = _times_root(polar, _transposed(root), batch)  # P_r Fᵀ
    rows = torch.bmm(batch.member, target.mean) + reach / spread
    trace = (target.trace * (batch.counts > 0)).sum(1)
    return Targets(rows, trace - reach.square().sum((1, 2)))


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


def _centred(rows: Tensor, batch: Batch) -> Tensor:
    """Rows less the mean of their class."""
    means = torch.bmm((batch.member * batch.mass[..., None]).mT, rows)
    return rows - torch.bmm(batch.member, means)


def _times_root(rows: Tensor, root: Tensor, batch: Batch) -> Tensor:
    """Each row times the root of its own class's covariance."""
    if root.ndim == 3:
        return rows * torch.bmm(batch.member, root)
    per_slot = [
        torch.bmm(rows * batch.member[..., s, None], root[:, s]) for s in range(root.shape[1])
    ]
    return torch.stack(per_slot).sum(0)


def _transposed(root: Tensor) -> Tensor:
    return root if root.ndim == 3 else root.mT


def _polar(y: Float[Tensor, "clients rows q"], batch: Batch) -> Float[Tensor, "clients rows q"]:
    """Polar factor of each class's block of rows."""
    if batch.is_small:
        return polar_gram_blocks(y, torch.bmm(batch.member, batch.member.mT))
    # A zero row at the end is what padding (row −1) reads, and where its result goes.
    flat = torch.nn.functional.pad(y.flatten(0, 1), (0, 0, 0, 1))
    polar = torch.zeros_like(flat)
    for index in batch.blocks():
        polar[index] = polar_gram(flat[index])
    return polar[:-1].view_as(y)
