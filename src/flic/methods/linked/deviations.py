"""Test for wrong links: compares a client's feature with the same feature of its peers.

Three things are compared, given the class: the location of the feature (a wrong unit, another
column), the contrast of the classes (another column, classes swapped), and its scale (a wrong
unit). Hospitals differ in all three although their links are right. So a difference is measured
against the usual difference of features in the federation, which is learnt from all clients.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from flic.methods.linked.sums import Moments

KINDS = ("location", "contrast", "scale")

_STEPS = torch.logspace(0, 1, 11, dtype=torch.float64)
USUAL = torch.tensor([0.2, 0.2, 0.3], dtype=torch.float64)[:, None] * _STEPS
"""Candidate values of the usual deviation between clients, by kind, from the least."""

FAR = 5.0
"""Limit beyond which a feature is unlike its peers', in units of usual deviation and noise."""

_LEAST = 1e-24
"""Variance, in common units, that may be rounding error alone; units may be far apart."""

_HALF = 0.6745  # the median size of a normal deviate


@dataclass(frozen=True)
class Marginals:
    """Sums of single features; no products of two."""

    count: Float[Tensor, "classes p"]
    total: Float[Tensor, "classes p"]
    squares: Float[Tensor, " p"]  # around the means of a client's classes
    dof: Float[Tensor, " p"]

    @classmethod
    def of(
        cls, sums: Moments, shift: Float[Tensor, " p"], scale: Float[Tensor, " p"]
    ) -> "Marginals":
        """Marginals of a client's sums, in units of everyone."""
        total = (sums.total - sums.count * shift) / scale
        return cls(sums.count, total, sums.scatter.diagonal() / scale**2, sums.dof.diagonal())

    @property
    def variance(self) -> Float[Tensor, " p"]:
        """Variance within classes; 0 where it is not known."""
        return self.squares.clamp_min(0) / self.dof.clamp_min(1)


def deviations(
    own: Marginals, others: Marginals, usual: Float[Tensor, " 3"]
) -> Float[Tensor, "3 p"]:
    """Distance of each feature from its peers', by kind, in units of usual deviation and noise."""
    location, contrast, scale = usual**2
    known = torch.stack([own.variance, others.variance])
    told = torch.stack([own.dof, others.dof]) > 0
    sigma = ((known * told).sum(0) / told.sum(0).clamp_min(1)).sqrt()
    both = (own.count > 1) & (others.count > 1) & (sigma > 0)
    means = [side.total / side.count.clamp_min(1) for side in (own, others)]
    apart = torch.where(both, (means[0] - means[1]) / sigma, torch.zeros_like(means[0]))
    noise = 1 / own.count.clamp_min(1) + 1 / others.count.clamp_min(1)
    weight = both / noise
    mean = (weight * apart).sum(0) / weight.sum(0).clamp_min(1e-12)
    first = mean / (1 / weight.sum(0).clamp_min(1e-12) + location).sqrt()
    third = (known[0].clamp_min(1e-300).log() - known[1].clamp_min(1e-300).log()) / 2
    third = third / (0.5 / own.dof.clamp_min(1) + 0.5 / others.dof.clamp_min(1) + scale).sqrt()
    vary = (known > _LEAST).all(0) & told.all(0)
    found = torch.stack([first, _contrast(apart, noise + contrast, both), third * vary])
    return torch.where(both.any(0), found, torch.zeros_like(found))


def _contrast(apart: Tensor, variance: Tensor, both: Tensor) -> Float[Tensor, " p"]:
    """Difference in the contrast of classes, as a normal deviate (Wilson and Hilferty)."""
    weight = both / variance
    mean = (weight * apart).sum(0) / weight.sum(0).clamp_min(1e-12)
    spread = (weight * (apart - mean).square()).sum(0)
    free = (both.sum(0) - 1).clamp_min(1).double()
    deviate = ((spread / free) ** (1 / 3) - 1 + 2 / (9 * free)) / (2 / (9 * free)).sqrt()
    return torch.where(both.sum(0) > 1, deviate.clamp_min(0), torch.zeros_like(deviate))


def shares_beyond(own: Marginals, others: Marginals) -> Float[Tensor, "3 usual"]:
    """Share of features further off than the median deviate, for every usual deviation."""
    found = [
        (deviations(own, others, usual).abs() > _HALF).double().mean(1) for usual in USUAL.unbind(1)
    ]
    return torch.stack(found, 1)


def usual_deviations(shares: Float[Tensor, "3 usual"]) -> Float[Tensor, " 3"]:
    """The least deviation of each kind that at least half of all features keep to."""
    enough = shares <= 0.5
    column = torch.where(enough.any(1), enough.int().argmax(1), USUAL.shape[1] - 1)
    return USUAL[torch.arange(len(KINDS)), column]
