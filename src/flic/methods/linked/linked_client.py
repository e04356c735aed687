"""Predictors of linked features: one client's models from its peers' sums and its own rows.

Three discriminants (`discriminants.py`), or ridge regressions: of the client's own rows alone, of
its features with the linked ones pooled, and of random features of the linked ones. Each is linear
in its features, so that a client's model is a few tensors.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor

from flic.data.client_data import ClientData
from flic.methods.linked.agreement import Agreement, class_of
from flic.methods.linked.client_sums import ClientSums, Sent, apply_map
from flic.methods.linked.discriminants import (
    Base,
    Linear,
    Own,
    Shrinkage,
    discriminants,
    regressions,
    scores,
)
from flic.methods.linked.peers import PeerSide, PeerSums, others_at
from flic.methods.linked.sums import Moments
from flic.methods.linked.tuning import (
    PREDICTORS,
    WEIGHTS,
    Classes,
    Predictor,
    Responses,
    tuning_of,
)
from flic.seeding import generator
from flic.shapes import Named

Folds = Sequence[tuple[Tensor, Tensor]]
"""Training and held-out rows."""

_EQUAL = 1e-9
"""Difference of two scores that is rounding."""

ROWS_AT_ONCE = 512
"""Number of held-out rows whose answers under all settings are in memory together."""


class LinkedClient:
    """One client's predictors, from its peers' sums and its own rows."""

    def __init__(
        self, agreed: Agreement, shared: Named, client: ClientData, sent: Sent | None = None
    ) -> None:
        self.agreed, self.shared, self.client = agreed, shared, client
        self.tuning = tuning_of(agreed.task, hides_rows=agreed.settings.min_rows > 1)
        self.pool = ClientSums(agreed, shared, client, sent)
        self.group = agreed.group(client.schema.space)
        self.held = torch.tensor(client.classes)
        self.slot = torch.searchsorted(self.held, class_of(agreed, client.train))

    # ---- predictors -------------------------------------------------------------------------

    @cached_property
    def linear(self) -> PeerSide:
        """The client's features as they are."""
        return PeerSide.linear(self.pool)

    @cached_property
    def _alone(self) -> PeerSums:
        """All of the client's columns, without sums of its peers.

        Units are its own as well, since common ones are useless where links are wrong.
        """
        dim, columns = self.pool.dim, self.linear.columns
        own = Own.of(columns, self.slot, len(self.held))
        spread = (own.spread.diagonal / max(own.dof, 1.0)).sqrt()
        spread[:dim][spread[:dim] <= self.pool.least_spread] = 1.0
        spread[dim:] = 1.0  # of a response
        # Where links are wrong, the rows may be far from 0 in common units.
        centre = columns.mean(0).index_fill(0, torch.arange(dim, len(spread)), 0.0)
        base, basis = Base(torch.ones(dim).double()), torch.diag(1 / spread[:dim])
        return PeerSums((columns - centre) / spread, self._nothing, base, basis, centre[:dim])

    @cached_property
    def _nothing(self) -> Moments:
        width, num = self.pool.width, self.agreed.num_classes
        return Moments(*(zeros(*shape) for shape in ((num, width),) * 2 + ((width, width),) * 2))

    @cached_property
    def _joint(self) -> PeerSums:
        """All of the client's columns; peers have no sums of the private ones."""
        return others_at(self.pool, self.linear, torch.arange(self.pool.width))

    @cached_property
    def _linked(self) -> PeerSums:
        """The linked columns alone."""
        return others_at(self.pool, self.linear, self._linked_positions)

    @cached_property
    def _linked_positions(self) -> Int[Tensor, " linked"]:
        rest = torch.ones(self.agreed.responses, dtype=torch.bool)
        return torch.cat([self.pool.is_linked, rest]).nonzero().flatten()

    @cached_property
    def _mapped(self) -> PeerSums:
        side = PeerSide.mapped(self.pool)
        return others_at(self.pool, side, torch.arange(len(side.shift)))

    def _grid(self, name: Predictor) -> list[tuple[PeerSums, Sequence[Shrinkage]]]:
        """The parts of a predictor's grid, in order; only the first if the rest repeats it.

        Private columns are left out, or used beside the linked ones. Peers do not know the
        covariance between the two, so that at ν = ∞ private columns are a block of their own.
        """
        own, pooled = self.tuning.own, self.tuning.pooled
        if name == "own":
            return [(self._alone, own)]
        if not self.pool.has_links:
            return [(self._alone, [own[2]])]
        if name == "mapped":
            return [(self._mapped, pooled)]
        if bool(self.pool.is_linked.all()):
            return [(self._joint, pooled)]
        return [(self._linked, pooled), (self._joint, pooled)]

    def _at(self, name: Predictor, setting: int) -> tuple[PeerSums, Shrinkage]:
        """Columns and shrinkage at a position of a grid."""
        every = [(o, s) for o, settings in self._grid(name) for s in settings]
        return every[setting % len(every)]

    def _of_whole_grid(self, name: Predictor, cv_scores: Tensor) -> Tensor:
        """Scores for the full grid; duplicated settings are repeated."""
        again = self.tuning.grid(name) // len(cv_scores)
        return cv_scores.repeat(again, *(1,) * (cv_scores.ndim - 1))

    def _learnt(
        self, others: PeerSums, train: Tensor, settings: Sequence[Shrinkage]
    ) -> list[Linear]:
        """Predictors learnt from the client's `train` rows and its peers, one for each setting."""
        own = Own.of(others.columns[train], self.slot[train], len(self.held))
        if not self.agreed.responses:
            return discriminants(own, others.base, others.sums, self.held, settings)
        assert isinstance(others.sums, Moments)
        return regressions(own, others.base, others.sums, settings)

    def _scores(
        self, others: PeerSums, train: Tensor, test: Tensor, settings: Sequence[Shrinkage]
    ) -> Float[Tensor, "settings rows held"]:
        """Scores of the client's `test` rows, learnt from `train` and its peers."""
        rows = others.columns[test, : others.columns.shape[1] - self.agreed.responses]
        return scores(self._learnt(others, train, settings), others.base.turned(rows))

    # ---- cross-validation ----------------------------------------------------------------

    @cached_property
    def folds(self) -> Folds:
        """Training and held-out rows, class by class."""
        y, count = self.slot, self.agreed.settings.folds
        rng = generator(self.agreed.seed, "linked", "folds", self.client.name)
        order = torch.randperm(len(y), generator=rng)
        order = order[y[order].argsort(stable=True)]
        fold = torch.empty_like(order)
        fold[order] = torch.arange(len(order)) % count
        return [
            ((fold != k).nonzero().flatten(), (fold == k).nonzero().flatten()) for k in range(count)
        ]

    @cached_property
    def truth(self) -> Tensor:
        """Slots, or responses in common units, of the held-out rows, fold after fold."""
        truth = self.linear.columns[:, -1] if self.agreed.responses else self.slot
        return torch.cat([truth[test] for _, test in self.folds])

    def fold_scores(self, name: Predictor) -> Float[Tensor, "settings rows held"]:
        """Scores of held-out rows under every setting of the parts of a predictor's grid."""
        parts = self._grid(name)
        found = [
            torch.cat([self._scores(others, *rows, settings) for others, settings in parts])
            for rows in self.folds
        ]
        return torch.cat(found, 1)

    def cv_scores(self, name: Predictor) -> Float[Tensor, "settings temperatures"]:
        """Cross-validated score of every setting of a predictor."""
        found = self.fold_scores(name)
        of_parts = self._mean(
            lambda rows: self.tuning.score(self.tuning.tempered(found[:, rows]), self.truth[rows])
        )
        return self._of_whole_grid(name, of_parts)

    def _mean(self, score: Callable[[slice], Tensor]) -> Tensor:
        """Mean of a score over all held-out rows, chunk by chunk; all answers at once are large."""
        count, total = len(self.truth), zeros(1)
        for first in range(0, count, ROWS_AT_ONCE):
            rows = slice(first, min(first + ROWS_AT_ONCE, count))
            total = total + (rows.stop - rows.start) / count * score(rows)
        return total

    def _scores_of(self, name: str) -> Tensor:
        """Scores of a predictor, or of mixes, in the client's tuning group."""
        return self.shared[scores_name(name, self.group)]

    def best_fold_scores(self, name: Predictor) -> Float[Tensor, "rows held"]:
        """Scores of held-out rows, under the federation's best setting of a predictor."""
        setting, temperature = best_of(self._scores_of(name))
        return self.tuning.temperatures[temperature] * self._fold_scores_at(name, setting)

    def _fold_scores_at(self, name: Predictor, setting: int) -> Float[Tensor, "rows held"]:
        others, shrinkage = self._at(name, setting)
        parts = [self._scores(others, train, test, [shrinkage])[0] for train, test in self.folds]
        return torch.cat(parts)

    def mix_scores(self) -> Float[Tensor, "settings temperatures weights"]:
        """Cross-validated score of every mix, with every setting of the mapped predictor."""
        parts = [self.best_fold_scores("own"), self.best_fold_scores("linked")]
        of_mapped = self.fold_scores("mapped")

        def cv_scores(rows: slice) -> Tensor:
            mapped = self.tuning.tempered(of_mapped[:, rows])
            scores = (*(part[rows] for part in parts), mapped)
            found = [
                self.tuning.score(self.tuning.mixed(scores, weights), self.truth[rows])
                for weights in WEIGHTS
            ]
            # Mixes without the mapped predictor have one score for all of its settings.
            return torch.stack(torch.broadcast_tensors(*found), -1)

        return self._of_whole_grid("mapped", self._mean(cv_scores))

    # ---- results -------------------------------------------------------------------------

    def best_scores(self) -> dict[str, float]:
        """Cross-validated score on the client's own rows, by predictor and for the mix."""
        mapped, temperature, weights = best_of_mix(self._scores_of("mix"))
        factor = self.tuning.temperatures[temperature]
        parts = [self.best_fold_scores("own"), self.best_fold_scores("linked")]
        parts.append(factor * self._fold_scores_at("mapped", mapped))
        parts.append(self.tuning.mixed(parts, WEIGHTS[weights]))
        found = [float(self.tuning.score(scores, self.truth)) for scores in parts]
        return dict(zip((*PREDICTORS, "mix"), found, strict=True))

    def worth_of_links(self, features: Collection[str]) -> float:
        """Loss of the pooled features' cross-validated score if some are not linked."""
        schema = self.client.schema
        names = tuple(f"{n}, not linked" if n in features else n for n in schema.features)
        apart = replace(self.client, schema=replace(schema, features=names))
        sent: Sent = {"linear": self.pool.sent("linear")}  # it did send them, as linked
        return (
            self._pooled_score - LinkedClient(self.agreed, self.shared, apart, sent)._pooled_score
        )

    @cached_property
    def _pooled_score(self) -> float:
        """Score of private and linked features together, under the federation's best setting."""
        setting, temperature = best_of(self._scores_of("linked"))
        joint = len(self.tuning.pooled) + setting % len(self.tuning.pooled)
        factor = self.tuning.temperatures[temperature]
        scores = factor * self._fold_scores_at("linked", joint)
        return float(self.tuning.score(scores, self.truth))

    # ---- the model -----------------------------------------------------------------------

    def model(self) -> dict[str, Tensor]:
        """The client's model as tensors; each predictor is linear in its features."""
        mapped, temperature, weights = best_of_mix(self._scores_of("mix"))
        tensors = {
            "shift": self.pool.shift[: self.pool.dim],
            "scale": self.pool.scale[: self.pool.dim],
            "weights": torch.tensor(WEIGHTS[weights], dtype=torch.float64),
        }
        tensors |= self._as_linear("own", *best_of(self._scores_of("own")))
        tensors |= self._as_linear("linked", *best_of(self._scores_of("linked")))
        tensors |= self._as_linear("mapped", mapped, temperature)
        if self.agreed.responses:
            tensors["response"] = torch.stack([self.pool.shift[-1], self.pool.scale[-1]])
        return tensors | (self._map_tensors() if self.pool.has_links else {})

    def _as_linear(self, name: Predictor, setting: int, temperature: int) -> dict[str, Tensor]:
        """A predictor's scores as W and b, temperature included, of all of its features."""
        others, shrinkage = self._at(name, setting)
        [found] = self._learnt(others, torch.arange(len(self.slot)), [shrinkage])
        factor = self.tuning.temperatures[temperature]
        weight, bias = others.back(found)
        if name == "linked" and len(weight) < self.pool.dim:
            whole = zeros(self.pool.dim, weight.shape[1])
            whole[self.pool.is_linked] = weight
            weight = whole
        return {f"{name}.weight": (factor * weight).contiguous(), f"{name}.bias": factor * bias}

    def _map_tensors(self) -> dict[str, Tensor]:
        width = self.agreed.settings.random_features
        (directions, offsets), (shift, scale) = self.pool.random_map, self.pool.mapped_units
        return {
            "map.directions": directions,
            "map.offsets": offsets,
            "map.mean": shift[:width],
            "map.scale": scale[:width],
        }


def apply_mix(model: Named, x: Tensor) -> Float[Tensor, "rows held"]:
    """Log-probabilities, or responses in one column, of rows under a client's model."""
    z = (x.double() - model["shift"]) / model["scale"]
    features = {"own": z, "linked": z, "mapped": z}
    if "map.directions" in model:
        turned = apply_map(z, model["map.directions"], model["map.offsets"])
        features["mapped"] = (turned - model["map.mean"]) / model["map.scale"]
    tuning = Responses() if "response" in model else Classes()
    parts = [h @ model[f"{name}.weight"] + model[f"{name}.bias"] for name, h in features.items()]
    mixed = tuning.answers(tuning.mixed(parts, model["weights"].tolist()))
    if "response" not in model:
        return mixed
    shift, scale = model["response"]
    return shift + scale * mixed


def scores_name(predictor: str, group: str) -> str:
    """Name of a tuning group's scores of a predictor, or of mixes."""
    return f"scores.{predictor}.{group}"


def best_of(cv_scores: Float[Tensor, "settings temperatures"]) -> tuple[int, int]:
    """Setting and temperature with the best score."""
    return divmod(_best(cv_scores), cv_scores.shape[1])


def best_of_mix(cv_scores: Tensor) -> tuple[int, int, int]:
    """Setting of the mapped predictor, its temperature, and the weights with the best score."""
    setting, rest = divmod(_best(cv_scores), cv_scores.shape[1] * cv_scores.shape[2])
    return setting, *divmod(rest, cv_scores.shape[2])


def _best(cv_scores: Tensor) -> int:
    """Position of the first of the best scores.

    Scores that are sent in steps are often equal, but for roundings of their mean.
    """
    return int((cv_scores >= cv_scores.max() - _EQUAL).flatten().int().argmax())


def zeros(*shape: int) -> Tensor:
    """Zeros in double precision."""
    return torch.zeros(*shape, dtype=torch.float64)
