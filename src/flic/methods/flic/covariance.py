"""Learnt covariances: anchors N(v_c, L_c L_cᵀ + εI), whose factors travel beside the means.

Paper: sec:methodo, "Averaging Anchor Distributions", algo:FLIC-FEDREP_supp.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor

from flic.gaussians import Gaussian, bures_barycentre, sqrtm
from flic.methods.flic.anchors import MEAN, Anchors, mean_name
from flic.methods.protocol import Entry
from flic.shapes import Named

FACTOR = "anchors.factor"
"""A stack's own copies of L_1:C, [clients, anchors, k] if diagonal, else [clients, anchors, k, k],
in each client's own order."""


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
