"""The experts of linked features: what one client makes of others' sums beside its own rows.

Three discriminants (`alignment/pooled.py`): of the client's own rows alone, of its features with
the linked ones pooled, and of random features of the linked ones. Each is linear in its features,
so that a client's model is a handful of tensors.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product

import torch
from jaxtyping import Float
from torch import Tensor

from flic.algorithms.settings import LinkedConfig
from flic.alignment.pooled import Base, Moments, Own, Shrinkage, discriminants
from flic.data.client_data import ClientData
from flic.data.schema import FeatureSchema
from flic.seeding import generator
from flic.shapes import Named

EVER = float("inf")
OWN = [Shrinkage(0.0, 0.0, g) for g in (0.05, 0.1, 0.3, 0.5, 0.7, 0.9)]
_POOLED = list(product((2.0, 8.0, 32.0, EVER), (30.0, EVER), (0.05, 0.2, 0.5, 0.8)))
LINKED = [(private, Shrinkage(*s)) for private in (False, True) for s in _POOLED]
MAPPED = [Shrinkage(*s) for s in _POOLED]
TEMPERATURES = [2.0**e for e in range(-5, 2)]
WEIGHTS = [
    (a / 4, b / 4, (4 - a - b) / 4) for a in range(5) for b in range(5 - a)
]  # of own, linked, mapped

PARTS = ("count", "total", "scatter", "dof")
_CLIP = 5.0


@dataclass(frozen=True)
class Agreed:
    """What all clients agree on beforehand."""

    settings: LinkedConfig
    spaces: Mapping[str, FeatureSchema]
    num_classes: int
    seed: int

    @cached_property
    def random_maps(self) -> dict[str, tuple[Tensor, Tensor]]:
        """Directions of each feature, seeded by its key, and offsets, of each space."""
        width, found = self.settings.random_features, {}
        for space, schema in self.spaces.items():
            directions = [
                torch.randn(width, generator=generator(0, "linked", space, name)) * schema.dim**-0.5
                for name in schema.features
            ]
            rng = generator(0, "linked", space)
            offsets = 2 * torch.rand(width, generator=rng).double() - 1
            found[space] = (torch.stack(directions).double(), offsets)
        return found


class View:
    """One client's features among those of its space."""

    def __init__(self, agreed: Agreed, client: ClientData) -> None:
        union = agreed.spaces[client.schema.space]
        place = {name: i for i, name in enumerate(union.features)}
        self.places = torch.tensor([place[name] for name in client.schema.features])
        self.width = union.dim
        self.num_classes = agreed.num_classes
        self.client = client

    def moments(self, rows: Tensor) -> Moments:
        """Sums of the client's own rows."""
        train = self.client.train
        return Moments.of(
            train.x[rows],
            train.y[rows],
            num_classes=self.num_classes,
            places=self.places,
            width=self.width,
        )


@dataclass(frozen=True)
class _Expert:
    """Rows in the features of one expert, and what others sent about these."""

    rows: Tensor
    others: Moments
    base: Base

    def score(
        self, held: Tensor, slot: Tensor, train: Tensor, rows: Tensor, s: Sequence[Shrinkage]
    ) -> list[Tensor]:
        """Scores of rows, learnt from the client's `train` rows and the others."""
        own = Own.of(self.rows[train], slot[train], len(held))
        return discriminants(own, self.base, self.others, held, rows, s)


class Known:
    """What one client knows after the server has answered: others' sums beside its own rows."""

    def __init__(self, agreed: Agreed, shared: Named, client: ClientData) -> None:
        self.agreed, self.shared, self.client = agreed, shared, client
        self.view = View(agreed, client)
        self.held = torch.tensor(client.classes)
        self.slot = torch.searchsorted(self.held, client.train.y)
        self._mine = self.view.moments(enough(agreed, client))
        everyone = self._shared("linear")
        places = self.view.places
        self._shift, self._scale = everyone.mean[places], everyone.deviation[places]
        others = (everyone - self._mine).at(places)
        self._others = others.scaled(self._shift, self._scale)
        self.is_linked = others.count.sum(0) > 0
        self.has_links = bool(self.is_linked.any())

    def _shared(self, kind: str) -> Moments:
        prefix = f"moments.{self.client.schema.space}.{kind}."
        return Moments(*(self.shared[prefix + part] for part in PARTS))

    def scaled(self, x: Tensor) -> Tensor:
        """Rows in the units that the whole space uses."""
        return (x.double() - self._shift) / self._scale

    def mapped(self, x: Tensor) -> Tensor:
        """Rows under the random-feature map of their linked features."""
        directions, offsets = self.agreed.random_maps[self.client.schema.space]
        z = self.scaled(x)[:, self.is_linked].clamp(-_CLIP, _CLIP)
        spread = (self.view.width / max(1, z.shape[1])) ** 0.5
        return 2 * (spread * z @ directions[self.view.places[self.is_linked]] + offsets).relu()

    def mapped_moments(self, rows: Tensor) -> Moments:
        """Sums of the client's own rows under the random-feature map."""
        train, width = self.client.train, self.agreed.settings.random_features
        return Moments.of(
            self.mapped(train.x[rows]),
            train.y[rows],
            num_classes=self.view.num_classes,
            places=torch.arange(width),
            width=width,
        )

    # ---- experts -------------------------------------------------------------------------

    @cached_property
    def _joint(self) -> _Expert:
        """All of the client's features; others know nothing of the private ones."""
        covariance = self._others.covariance.clone()
        private = ~self.is_linked
        covariance[private, private] = 1.0  # they are scaled by their own deviation
        return _Expert(self.scaled(self.client.train.x), self._others, Base.of(covariance))

    @cached_property
    def _linked(self) -> _Expert:
        """The linked features alone."""
        if bool(self.is_linked.all()):
            return self._joint
        rows = self._joint.rows[:, self.is_linked]
        others = self._others.at(self.is_linked.nonzero().flatten())
        return _Expert(rows, others, Base.of(others.covariance))

    @cached_property
    def _mapped(self) -> _Expert:
        everyone = self._shared("mapped")
        others = everyone - self.mapped_moments(enough(self.agreed, self.client))
        scale = everyone.deviation
        others = others.scaled(everyone.mean, scale)
        rows = (self.mapped(self.client.train.x) - everyone.mean) / scale
        return _Expert(rows, others, Base.of(others.covariance))

    def _experts(self, name: str) -> list[tuple[_Expert, list[Shrinkage]]]:
        """The parts of an expert's grid, in order."""
        if name == "own" or not self.has_links:
            return [(self._joint, OWN if name == "own" else [OWN[2]] * len(_grid(name)))]
        if name == "mapped":
            return [(self._mapped, MAPPED)]
        return [
            (self._joint if private else self._linked, [s for p, s in LINKED if p == private])
            for private in (False, True)
        ]

    def _flat(self, name: str) -> list[tuple[_Expert, Shrinkage]]:
        """Expert and setting at every place of a grid."""
        return [(e, s) for e, settings in self._experts(name) for s in settings]

    # ---- cross-validation ----------------------------------------------------------------

    def folds(self) -> list[tuple[Tensor, Tensor]]:
        """Training and held-out rows, class by class."""
        y, count = self.client.train.y, self.agreed.settings.folds
        rng = generator(self.agreed.seed, "linked", "folds", self.client.name)
        order = torch.randperm(len(y), generator=rng)
        order = order[y[order].argsort(stable=True)]
        fold = torch.empty_like(order)
        fold[order] = torch.arange(len(order)) % count
        return [
            ((fold != k).nonzero().flatten(), (fold == k).nonzero().flatten()) for k in range(count)
        ]

    def fold_labels(self, folds: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
        """Slots of the held-out rows, fold after fold."""
        return torch.cat([self.slot[test] for _, test in folds])

    def fold_scores(self, name: str, folds: Sequence[tuple[Tensor, Tensor]]) -> list[Tensor]:
        """Scores of held-out rows under every setting of an expert's grid."""
        found: list[list[Tensor]] = [[] for _ in _grid(name)]
        for train, test in folds:
            place = 0
            for expert, settings in self._experts(name):
                scores = expert.score(self.held, self.slot, train, expert.rows[test], settings)
                for own in scores:
                    found[place].append(own)
                    place += 1
        return [torch.cat(parts) for parts in found]

    def best_fold_scores(self, name: str, folds: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
        """Log-probabilities of held-out rows, as the federation finds best for an expert."""
        setting, temperature = place_of(self.shared[f"scores.{name}"])
        expert, shrinkage = self._flat(name)[setting]
        scores = [
            expert.score(self.held, self.slot, train, expert.rows[test], [shrinkage])[0]
            for train, test in folds
        ]
        return (TEMPERATURES[temperature] * torch.cat(scores)).log_softmax(1)

    # ---- the model -----------------------------------------------------------------------

    def mix(self, x: Tensor) -> Tensor:
        """Log-probabilities of rows under the chosen mix of the chosen experts."""
        return apply_mix(self.model(), x)

    def model(self) -> dict[str, Tensor]:
        """The client's model as tensors: each expert is linear in its features, and so is kept."""
        shared = self.shared
        mapped, rest = divmod(int(shared["scores.mix"].argmax()), len(TEMPERATURES) * len(WEIGHTS))
        temperature, weights = divmod(rest, len(WEIGHTS))
        tensors = {
            "shift": self._shift,
            "scale": self._scale,
            "weights": torch.tensor(WEIGHTS[weights], dtype=torch.float64),
        }
        tensors |= self._linear("own", *place_of(shared["scores.own"]))
        tensors |= self._linear("linked", *place_of(shared["scores.linked"]))
        tensors |= self._linear("mapped", mapped, temperature)
        return tensors | (self._map_tensors() if self.has_links else {})

    def _linear(self, name: str, setting: int, temperature: int) -> dict[str, Tensor]:
        """An expert's scores as W and b, temperature included, of all of its features."""
        expert, shrinkage = self._flat(name)[setting]
        p, everything = expert.rows.shape[1], torch.arange(len(self.slot))
        probes = torch.cat([zeros(1, p), torch.eye(p, dtype=torch.float64)])
        [scores] = expert.score(self.held, self.slot, everything, probes, [shrinkage])
        scores = TEMPERATURES[temperature] * scores
        bias, weight = scores[0], scores[1:] - scores[0]
        if p < len(self.is_linked) and expert is self._linked:
            whole = zeros(len(self.is_linked), len(self.held))
            whole[self.is_linked] = weight
            weight = whole
        return {f"{name}.weight": weight, f"{name}.bias": bias}

    def _map_tensors(self) -> dict[str, Tensor]:
        directions, offsets = self.agreed.random_maps[self.client.schema.space]
        own = directions[self.view.places] * self.is_linked[:, None]
        spread = (self.view.width / max(1, int(self.is_linked.sum()))) ** 0.5
        everyone = self._shared("mapped")
        return {
            "map.directions": spread * own,
            "map.offsets": offsets,
            "map.mean": everyone.mean,
            "map.scale": everyone.deviation,
        }


def apply_mix(model: Named, x: Tensor) -> Tensor:
    """Log-probabilities of rows under a client's model."""
    z = (x.double() - model["shift"]) / model["scale"]
    features = {"own": z, "linked": z, "mapped": z}
    if "map.directions" in model:
        turned = z.clamp(-_CLIP, _CLIP) @ model["map.directions"] + model["map.offsets"]
        features["mapped"] = (2 * turned.relu() - model["map.mean"]) / model["map.scale"]
    parts = [
        (h @ model[f"{name}.weight"] + model[f"{name}.bias"]).log_softmax(1)
        for name, h in features.items()
    ]
    return mixed(tuple(parts), tuple(model["weights"].tolist()))


def _grid(name: str) -> Sequence[object]:
    return {"own": OWN, "linked": LINKED, "mapped": MAPPED}[name]


def enough(agreed: Agreed, client: ClientData) -> Tensor:
    """Rows of the classes that have enough of them to be sent in a sum."""
    least = agreed.settings.min_rows_per_class
    classes = [c for c, count in client.class_counts.items() if count >= least]
    return torch.isin(client.train.y, torch.tensor(classes)).nonzero().flatten()


def tempered(scores: Float[Tensor, "settings rows held"]) -> Tensor:
    """Log-probabilities at every temperature, [settings, temperatures, rows, held]."""
    temperatures = torch.tensor(TEMPERATURES, dtype=torch.float64)
    return (scores[:, None] * temperatures[:, None, None]).log_softmax(-1)


def likelihoods(scores: Sequence[Tensor], y: Tensor) -> Tensor:
    """Mean log-likelihood under every setting and temperature."""
    return likelihood(tempered(torch.stack(list(scores))), y)


def likelihood(logs: Float[Tensor, "*grid rows held"], y: Tensor) -> Float[Tensor, "*grid"]:
    """Mean log-likelihood of the rows' own classes."""
    of_truth = logs[..., torch.arange(len(y)), y]
    # A single hopeless row must not outvote all others.
    return of_truth.clamp_min(-10.0).mean(-1)


def place_of(likelihoods: Tensor) -> tuple[int, int]:
    """Setting and temperature with the best likelihood."""
    return divmod(int(likelihoods.argmax()), likelihoods.shape[1])


def mixed(parts: tuple[Tensor, ...], weights: tuple[float, ...]) -> Tensor:
    """Log-probabilities of a mix of experts."""
    mixed = sum(w * part for w, part in zip(weights, parts, strict=True))
    assert isinstance(mixed, Tensor)
    return mixed.log_softmax(-1)


def zeros(*shape: int) -> Tensor:
    """Zeros in double precision."""
    return torch.zeros(*shape, dtype=torch.float64)
