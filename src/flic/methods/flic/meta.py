"""Meta-classes: C classes share C_meta anchors, given by the user or found before training.

Paper: "Scalability". A meta-class takes the place of a class wherever anchors are concerned: its
rows are aligned as one distribution, and an anchor's samples tell the meta-class only. Which class
of it a row belongs to is left to the head.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from flic.data.client_data import Split
from flic.data.stacked import StackedData
from flic.data.task import Classification

MAP = "meta_classes"
"""Name under which the server shares the meta-class of each class, [C]."""

DISTANCES, TOGETHER = "meta_classes.distances", "meta_classes.together"
"""What clients send to have meta-classes found: distances of the pairs of classes that they hold,
and one for each such pair. The server needs only the sums over the clients."""

# Keeps the covariance of a client with one row of each class invertible; features have variance 1.
RIDGE = 1e-6


@dataclass(frozen=True)
class ByMetaClass(StackedData):
    """A stack as its anchors see it: slots are meta-classes; rows keep the labels of classes."""

    meta_of: Int[Tensor, " classes"]

    @classmethod
    def view(cls, data: StackedData, meta_of: Int[Tensor, " classes"]) -> "ByMetaClass":
        """The same clients and rows, slot by meta-class."""
        num = int(meta_of.max()) + 1
        held = meta_of[data.classes.clamp_min(0)].where(data.holds, num).sort(1).values
        held[:, 1:] = held[:, 1:].where(held[:, 1:] != held[:, :-1], num)
        # As many slots as any client of the federation can need, so that no result depends on
        # which clients were stacked together.
        slots = held.sort(1).values[:, :num]
        slots = slots.where(slots < num, -1)
        task = Classification(num)
        return cls(data.clients, data.train, slots, task, data.width, data.longest, meta_of)

    def slot_of_rows(self) -> Int[Tensor, "clients rows"]:
        rows = replace(self.train, y=self.meta_of[self.train.y])
        own = (self.clients, rows, self.classes, self.task, self.width, self.longest)
        return StackedData(*own).slot_of_rows()


def meta_scores(
    scores: Float[Tensor, "clients rows classes"], meta_of: Int[Tensor, " classes"]
) -> Float[Tensor, "clients rows meta"]:
    """Scores of meta-classes: softmax gives each the probability of its classes together."""
    members = [(meta_of == m).nonzero().flatten() for m in range(int(meta_of.max()) + 1)]
    return torch.stack([scores[..., own].logsumexp(-1) for own in members], dim=-1)


def class_distances(split: Split, num_classes: int) -> Float[Tensor, "classes classes"]:
    """Mahalanobis distances between a client's class means, in units of their mean.

    Invertible linear maps of the features do not change them (up to the shrinkage of the
    covariance), so clients that read different features can be compared before any common space
    exists. NaN on pairs of classes that the client does not hold.
    """
    distances = torch.full((num_classes, num_classes), torch.nan, dtype=torch.float64)
    held, index = split.y.unique(return_inverse=True)
    if len(held) > 1:
        own = _mahalanobis(split.x.double().numpy(), index.numpy())
        distances[held[:, None], held] = torch.from_numpy(own)
    return distances


def _mahalanobis(x: np.ndarray, index: np.ndarray) -> np.ndarray:
    """Distances between the means of the classes 0, 1, … in `index`, in units of their mean."""
    from sklearn.covariance import ledoit_wolf

    spread = x.std(0)
    x = (x - x.mean(0)) / np.where(spread > 0, spread, 1.0)
    means = np.stack([x[index == c].mean(0) for c in range(index.max() + 1)])
    covariance = ledoit_wolf(x - means[index], assume_centered=True)[0]
    root = np.linalg.cholesky(covariance + RIDGE * np.eye(x.shape[1]))
    white = np.linalg.solve(root, means.T).T
    distances = np.sqrt(np.square(white[:, None] - white).sum(-1))
    typical = distances.sum() / (len(means) * (len(means) - 1))
    return distances / max(typical, np.finfo(float).tiny)


def pairs_to_send(
    distances: Float[Tensor, "classes classes"], *, dtype: torch.dtype
) -> dict[str, Float[Tensor, " pairs"]]:
    """A client's distances under the names they travel by, zero on pairs it does not hold."""
    above = distances[tuple(torch.triu_indices(*distances.shape, offset=1))]
    together = ~above.isnan()
    return {DISTANCES: above.nan_to_num(0.0).to(dtype), TOGETHER: together.to(dtype)}


def cluster(
    distances: Float[Tensor, " pairs"], together: Float[Tensor, " pairs"], num_meta: int
) -> tuple[int, ...]:
    """Meta-class of each class, from sums or means over clients of what `pairs_to_send` gives.

    Average linkage on the mean distance over the clients that hold both classes. A pair that
    nobody holds is as far apart as the mean pair: nothing speaks for it, nothing against it.
    """
    from scipy.cluster.hierarchy import cut_tree, linkage

    known = together > 0
    mean = distances.double() / together.double().clamp_min(torch.finfo(torch.float64).tiny)
    neutral = mean[known].mean() if known.any() else torch.ones((), dtype=torch.float64)
    tree = linkage(mean.where(known, neutral).numpy(), method="average")
    return in_order_of_appearance(cut_tree(tree, n_clusters=num_meta)[:, 0].tolist())


def in_order_of_appearance(groups: Sequence[int]) -> tuple[int, ...]:
    """The same groups, numbered 0, 1, … as they first appear."""
    number = {group: i for i, group in enumerate(dict.fromkeys(groups))}
    return tuple(number[group] for group in groups)
