"""Learnt covariances: anchors N(v_c, L_c L_cᵀ + εI), whose factors travel beside the means.

Paper: sec:methodo, "Averaging Anchor Distributions", algo:FLIC-FEDREP_supp. Departs: the pull of
a client's rows on a covariance is stretched, since anchors would be too narrow without.

The trace of a barycentre is the mean trace of the clients' covariances less their mean squared
Bures distance to it. Covariances of n rows are apart even where the clients' laws are equal, and a
diagonal anchor is apart from every one of them: at n = 500 and k = 64 that is 3 % of the trace.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from flic.data.batches import Batch
from flic.gaussians import Gaussian, bures_barycentre, bures_excess, sqrtm, wasserstein2_sq
from flic.methods.flic.anchors import MEAN, Anchors, mean_name
from flic.methods.protocol import Entry
from flic.shapes import Named

FACTOR = "anchors.factor"
"""A stack's own copies of L_1:C, [clients, anchors, k] if diagonal, else [clients, anchors, k, k],
in each client's own order."""

STRETCH = "anchors.stretch"
"""Factor by which rows pull longer at the covariance of their own anchor, [clients, slots], while
the anchors are trained. It is never sent."""


def factor_name(c: int) -> str:
    """Name under which L_c is sent."""
    return f"anchor.{c}.factor"


class LearntCovariances(Anchors):
    """Anchors N(v_c, L_c L_cᵀ + εI), of which means and factors are learnt."""

    parts: ClassVar[Mapping[str, Callable[[int], str]]] = {MEAN: mean_name, FACTOR: factor_name}

    def initial(
        self, num: int, latent_dim: int, *, rng: torch.Generator, dtype: torch.dtype
    ) -> dict[str, Tensor]:
        means = super().initial(num, latent_dim, rng=rng, dtype=dtype)
        deviations = torch.full((latent_dim,), self.config.variance**0.5, dtype=dtype)
        factor = deviations if self.config.covariance == "diagonal" else torch.diag(deviations)
        return means | {factor_name(c): factor.clone() for c in range(num)}

    def gaussian(self, copies: Named) -> Gaussian:
        return Gaussian(copies[MEAN], copies[FACTOR], self.config.eps)

    def barycentre(self, name: str, entries: Sequence[Entry]) -> Tensor | None:
        """A factor, if `anchors.average_covariance` asks for the barycentre of covariances."""
        is_asked = self.config.average_covariance == "barycentre"
        return barycentre_factor(entries) if is_asked and name.endswith(".factor") else None


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


def stretches(
    latent: Float[Tensor, "clients rows k"], batch: Batch, anchors: Gaussian
) -> Float[Tensor, "clients slots"]:
    """The stretch of each client's rows of a class, from the anchors as the client got them."""
    found = torch.ones(batch.counts.shape, dtype=latent.dtype)
    for i, s in (batch.counts > 1).nonzero().tolist():
        found[i, s] = stretch(latent[i, batch.member[i, :, s] > 0], anchors[i, s])
    return found


@torch.no_grad()
def stretch(rows: Float[Tensor, "n k"], anchor: Gaussian) -> Float[Tensor, ""]:
    """Stretch that gives an anchor the trace back which the rows' sampling noise takes from it.

    That is the part of B²(Σ, Σ̂) to be expected of n rows of a normal law, and no more than all of
    it: an anchor of one client alone comes to its Σ̂ and lacks nothing. With rows of one law at
    every client, an anchor that is the mean of b clients' is apart by 1 − 1/b of the expected, so
    that nobody has to know b.
    """
    moments = Gaussian.from_samples(rows)
    distance = wasserstein2_sq(Gaussian(moments.mean, anchor.factor, anchor.eps), moments)
    noise = bures_excess(moments, anchor, len(rows)).minimum(distance)
    common = moments.trace() + anchor.trace() - distance  # 2 tr((Σ^½ Σ̂ Σ^½)^½)
    return 1 + noise / common.clamp_min(torch.finfo(rows.dtype).tiny)
