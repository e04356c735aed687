"""Meta-classes: C classes share C_meta anchors, given by the user or found before training.

Paper: "Scalability". For anchors, a meta-class replaces a class: its rows are aligned as one
distribution, and an anchor's samples have the label of the meta-class only. The head distinguishes
the classes within it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from flic.data.client_data import ClientData, Split
from flic.data.stacked import StackedData
from flic.data.task import Classification, Task
from flic.errors import ConfigError
from flic.method_settings import MethodSettings
from flic.methods.flic.scheme import ByClass
from flic.methods.protocol import (
    Entry,
    Population,
    ServerState,
    Stage,
    Update,
    Visit,
    VisitContext,
    check_update,
    gather_entries,
    weighted_mean,
)
from flic.notation import counted
from flic.shapes import Named, unlike_forms

MAP = "meta_classes"
"""Name under which the server shares the meta-class of each class, [C]."""

DISTANCES, TOGETHER = "meta_classes.distances", "meta_classes.together"
"""Names of the tensors that clients send to find meta-classes: distances of the pairs of classes
they hold, and 1 for each such pair. The server needs only the sums over the clients."""

# Keeps the covariance of a client with one row of each class invertible; features have variance 1.
RIDGE = 1e-6


class ByMetaClass(ByClass):
    """An anchor per meta-class."""

    fixed = frozenset({MAP})  # an anchor must mean the same to all

    def __init__(
        self, settings: MethodSettings, population: Population, *, dtype: torch.dtype
    ) -> None:
        super().__init__(settings, population, dtype=dtype)
        _refuse_impossible(settings, population.task.num_outputs)

    @classmethod
    def fits(cls, settings: MethodSettings, task: Task) -> bool:
        return settings.anchors.meta_classes is not None

    @property
    def num_anchors(self) -> int:
        num = self.settings.anchors.num_meta
        assert num is not None
        return num

    @property
    def labels(self) -> list[str]:
        return [f"meta-class {label}" for label in super().labels]

    def initial(self) -> dict[str, Tensor]:
        """The given map, or zeros for the distances from which it will be found."""
        given = self.settings.anchors.meta_classes
        if isinstance(given, tuple):
            return {MAP: torch.tensor(given)}
        classes = self.population.task.num_outputs
        nothing = torch.zeros(classes * (classes - 1) // 2, dtype=self.dtype)
        return {DISTANCES: nothing, TOGETHER: nothing.clone()}

    def unsound(self, beside: Named) -> list[str]:
        known = torch.zeros(self.population.task.num_outputs, dtype=torch.int64)
        if wrong := unlike_forms({MAP: known}, beside):
            return wrong
        return [] if {*beside[MAP].tolist()} == {*range(self.num_anchors)} else [MAP]

    def stages(self) -> list[Stage]:
        """A first stage that collects distances, if meta-classes are to be found."""
        if isinstance(self.settings.anchors.meta_classes, tuple):
            return []
        return [Stage("distances", self.tell_distances, self.find)]

    def tell_distances(self, context: VisitContext) -> Visit:
        """Each client's distances between its classes; they depend on no common space."""
        told = [self._distances(client) for client in context.data.clients]
        return Visit(context.stack, told, {})

    def _distances(self, client: ClientData) -> Update:
        distances = class_distances(client.train, self.population.task.num_outputs)
        told = pairs_to_send(distances, dtype=self.dtype)
        return Update(client.name, {name: Entry(value, 1.0) for name, value in told.items()})

    def find(self, server: ServerState, updates: Sequence[Update]) -> ServerState:
        """Replace the distances from clients by the map of classes found from them."""
        for update in updates:
            check_update(server, update, self.fixed)
        sent, shared = gather_entries(updates), dict(server.shared)
        distances, together = (weighted_mean(sent[name]) for name in (DISTANCES, TOGETHER))
        del shared[DISTANCES], shared[TOGETHER]
        found = torch.tensor(cluster(distances, together, self.num_anchors))
        return ServerState(server.round, {**shared, MAP: found})

    def seen(self, context: VisitContext) -> StackedData:
        return MetaClassView.view(context.data, context.server.shared[MAP])

    def anchor_scores(self, context: VisitContext, scores: Tensor) -> Tensor:
        return meta_scores(scores, context.server.shared[MAP])

    def predict(self, context: VisitContext, shared: Named, latent: Tensor) -> Tensor:
        return super().predict(context, shared, latent)[..., context.server.shared[MAP]]

    def anchors_of_classes(self, shared: Named, classes: Sequence[int]) -> Mapping[int, int]:
        return {c: int(shared[MAP][c]) for c in classes}


@dataclass(frozen=True)
class MetaClassView(StackedData):
    """A stack whose slots are meta-classes; rows keep the labels of classes."""

    meta_of: Int[Tensor, " classes"]

    @classmethod
    def view(cls, data: StackedData, meta_of: Int[Tensor, " classes"]) -> "MetaClassView":
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
    """Scores of meta-classes: softmax gives each the total probability of its classes."""
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
    """A client's distances under the names they are sent by, zero on pairs it does not hold."""
    above = distances[tuple(torch.triu_indices(*distances.shape, offset=1))]
    together = ~above.isnan()
    return {DISTANCES: above.nan_to_num(0.0).to(dtype), TOGETHER: together.to(dtype)}


def cluster(
    distances: Float[Tensor, " pairs"], together: Float[Tensor, " pairs"], num_meta: int
) -> tuple[int, ...]:
    """Meta-class of each class, from sums or means over clients of what `pairs_to_send` gives.

    Average linkage on the mean distance over the clients that hold both classes. A pair that no
    client holds gets the mean distance of all pairs.
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


def _refuse_impossible(settings: MethodSettings, num_classes: int) -> None:
    """Refuse meta-classes that do not fit the classes, or cannot distinguish them."""
    given, num = settings.anchors.meta_classes, settings.anchors.num_meta
    if isinstance(given, tuple) and len(given) != num_classes:
        raise ConfigError(
            f"anchors.meta_classes lists {counted(len(given), 'meta-class')} on data with "
            f"{num_classes} classes; expected one for each class, in the order of the classes."
        )
    if num is not None and num > num_classes:
        raise ConfigError(
            f"anchors.meta_classes is {num} on data with {num_classes} classes; expected at most "
            "as many. Leave the key out to give every class an anchor of its own."
        )
    by_anchor = settings.model.predict_by == "nearest-anchor"
    if num is not None and num < num_classes and by_anchor:
        raise ConfigError(
            f"model.predict_by is 'nearest-anchor' with {counted(num, 'anchor')} for {num_classes} "
            "classes; expected 'head', since classes of one meta-class have one anchor. Set "
            "model.predict_by = 'head', also over the preset 'recommended'."
        )
