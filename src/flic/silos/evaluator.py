"""Evaluation of every candidate on every split, and each client's choice there.

Each split is treated as a client would: candidates are cross-validated inside the training rows,
which gives one temperature per candidate and one choice per client over the federation. Only then
are the held-out rows looked at.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property

import numpy as np

from flic.data.task import Classification, TaskName
from flic.engine.runners import open_workers
from flic.silos.candidate import Learned, Learner
from flic.silos.candidates import CANDIDATES
from flic.silos.choice import (
    CandidatePrior,
    Choice,
    Estimate,
    RowScores,
    choose,
    estimates,
    experience,
)
from flic.silos.encoding import EncodedFederation, EncodedSilo, encode
from flic.silos.fit_cache import FitCache, Said, key_of
from flic.silos.fit_settings import FitSettings
from flic.silos.measures import figures, log_likelihoods, row_scores
from flic.silos.mixing import Mix, Weights, find_weights, mixed
from flic.silos.model import Model, tempered
from flic.silos.results import Results
from flic.silos.splits import Rows, cross_validation
from flic.tables.table import TableFederation

Predictions = dict[str, Said]
"""candidate → client → predictions of its held-out rows."""

#: The model of a client that has nothing in common with its peers.
LINEAR_ALONE: Mapping[TaskName, str] = {"classification": "lda", "regression": "ridge"}

TEMPERATURES = 2.0 ** np.arange(-6, 2.5, 0.5)


@dataclass(frozen=True)
class Trial:
    """Result of cross-validation inside some training rows."""

    temperatures: Mapping[str, float]
    known: Mapping[str, CandidatePrior]
    choices: Mapping[str, Mapping[str, Choice]]  # "alone", "federated", "kept" → client → choice
    scores: Mapping[str, Mapping[str, float]]  # candidate → client → mean row score
    weights: Weights  # in the mix, if there is one


@dataclass(frozen=True)
class Prior:
    """A federation's experience from before a newcomer joins."""

    known: Mapping[str, CandidatePrior]
    temperatures: Mapping[str, float]
    weights: Mapping[str, float]  # in the mix


@dataclass(frozen=True)
class Evaluator:
    """Evaluates candidates on splits of the tables, with the settings of a fit."""

    federation: TableFederation
    settings: FitSettings
    offered: Mapping[str, Learner] = field(default_factory=lambda: CANDIDATES)
    before: Prior | None = None
    cache: FitCache | None = None  # keeps predictions, if given

    def encode(self, rows: Rows) -> EncodedFederation:
        """The clients' rows of one split, encoded."""
        return encode(self.federation.tables, self.federation.task, rows)

    @cached_property
    def served(self) -> dict[str, list[str]]:
        """Clients that each candidate serves; candidates that serve none are left out.

        Decided once, on all rows: the levels in a fold must not change which clients are compared.
        """
        rows = {t.name: (np.arange(len(t)), np.arange(0)) for t in self.federation.tables}
        encoded, task, names = (
            self.encode(rows),
            self.federation.task.name,
            self.settings.candidates,
        )
        clients = {
            name: candidate.served(encoded)
            for name, candidate in self.offered.items()
            if task in candidate.tasks and (not names or name in names)
        }
        return {name: own for name, own in clients.items() if own}

    def learn(self, candidate: Learner, encoded: EncodedFederation, *, seed: int) -> Learned:
        """One candidate's models of the clients it serves.

        A client that has nothing in common with its peers in these rows gets a linear model alone.
        """
        served, able = self.served[candidate.name], candidate.served(encoded)
        learned = candidate.learn(encoded, self.settings, seed=seed) if able else Learned({})
        left = tuple(s for s in encoded.silos if s.name in served and s.name not in able)
        models = dict(learned.models)
        if left:
            alone = CANDIDATES[LINEAR_ALONE[encoded.task.name]]
            rest = EncodedFederation(encoded.task, left)
            models |= alone.learn(rest, self.settings, seed=seed).models
        return replace(learned, models={client: models[client] for client in served})

    def predictions(self, rows: Rows, *, seed: int) -> Predictions:
        """Held-out predictions of every candidate, learnt from the training rows."""
        encoded = cache(lambda: self.encode(rows))
        return {name: self._said(name, rows, encoded, seed=seed) for name in self.served}

    def _said(
        self, name: str, rows: Rows, encoded: Callable[[], EncodedFederation], *, seed: int
    ) -> Said:
        """Held-out predictions of one candidate, from the cache or made now."""
        key = key_of(name, rows, seed=seed)
        if self.cache and (found := self.cache.find(key, self.served[name])) is not None:
            return found
        silos = {silo.name: silo for silo in encoded().silos}
        said = _predict(self.learn(self.offered[name], encoded(), seed=seed).models, silos)
        if self.cache:
            self.cache.keep(key, said)
        return said

    @property
    def mixes(self) -> bool:
        """True if a mix is compared: several candidates serve all clients, and one is federated.

        For a newcomer, candidates that serve it must hold more than half of the mix's weight.
        """
        names = {*self.federation.names}
        for_all = [name for name, own in self.served.items() if names <= {*own}]
        shares = any(CANDIDATES[name].federated for name in for_all) and len(for_all) > 1
        if self.before is not None:
            shares = shares and sum(self.before.weights.get(n, 0.0) for n in for_all) > 0.5
        wanted = not self.settings.candidates or Mix.name in self.settings.candidates
        return wanted and Mix.name in self.offered and shares

    def learn_all(
        self, names: Iterable[str], encoded: EncodedFederation, trial: Trial
    ) -> dict[str, Learned]:
        """Models of some candidates after a trial, and of the candidates in a kept mix."""
        wanted, seed = {*names}, self.settings.seed
        choices = trial.choices["kept"].items()
        keepers = [client for client, choice in choices if choice.candidate == Mix.name]
        weights = {c: trial.weights.of_client[c] for c in keepers if Mix.name in wanted}
        wanted |= {name for own in weights.values() for name in own}
        learned = {
            name: self.learn(self.offered[name], encoded, seed=seed)
            for name in self.served
            if name in wanted
        }
        if weights:
            models = mixed(learned, trial.temperatures, weights, encoded.task)
            learned[Mix.name] = Learned(models)
        return learned

    def trial(self, training: Mapping[str, np.ndarray], *, seed: int) -> Trial:
        """Cross-validation inside the training rows."""
        found: dict[str, dict[str, list[np.ndarray]]] = {}
        labels: dict[str, list[np.ndarray]] = {t.name: [] for t in self.federation.tables}
        for rows in self._folds(training, seed=seed):
            for table in self.federation.tables:
                labels[table.name].append(table.y[rows[table.name][1]])
            for candidate, by_client in self.predictions(rows, seed=seed).items():
                for client, predicted in by_client.items():
                    found.setdefault(candidate, {}).setdefault(client, []).append(predicted)
        y = {name: np.concatenate(parts) for name, parts in labels.items()}
        whole = {m: {c: np.concatenate(p) for c, p in own.items()} for m, own in found.items()}
        return self._conclude(whole, y)

    def _folds(self, training: Mapping[str, np.ndarray], *, seed: int) -> Iterator[Rows]:
        """Rows of each fold of the cross-validation inside the training rows."""
        tables = [t.take(training[t.name]) for t in self.federation.tables]
        path = ("inner", seed)
        for inner in cross_validation(tables, self.settings.folds, seed=seed, path=path):
            yield {c: (training[c][train], training[c][test]) for c, (train, test) in inner.items()}

    def keeps_trial(self, training: Mapping[str, np.ndarray], *, seed: int) -> bool:
        """True if the cache has all predictions of a trial."""
        return all(self._keeps(rows, seed=seed) for rows in self._folds(training, seed=seed))

    def keeps_split(self, rows: Rows, *, seed: int) -> bool:
        """True if the cache has all predictions of a split."""
        training = {name: train for name, (train, _) in rows.items()}
        return self._keeps(rows, seed=seed) and self.keeps_trial(training, seed=seed)

    def _keeps(self, rows: Rows, *, seed: int) -> bool:
        return self.cache is not None and all(
            self.cache.find(key_of(name, rows, seed=seed), clients) is not None
            for name, clients in self.served.items()
        )

    def _conclude(self, predicted: Predictions, y: Mapping[str, np.ndarray]) -> Trial:
        temperatures = dict(self.before.temperatures) if self.before else {}
        if isinstance(self.federation.task, Classification) and not self.before:
            temperatures = {name: best_temperature(own, y) for name, own in predicted.items()}
        metric = self.settings.metric_for(self.federation.task)
        said = _tempered(predicted, temperatures)
        before = self.before.weights if self.before else None
        mixing = find_weights(said, y, self.federation.task, before) if self.mixes else Weights()
        said |= mixing.say(said, self.federation.task)
        scores: RowScores = {
            name: {client: row_scores(metric, p, y[client]) for client, p in own.items()}
            for name, own in said.items()
        }
        reference = next(name for name in scores if not CANDIDATES[name].federated)
        known = self.before.known if self.before else experience(scores, reference)
        expected = {c: estimates(scores, known, reference, c) for c in y}
        means = {m: {c: float(s.mean()) for c, s in own.items()} for m, own in scores.items()}
        choices = _choices(expected, list(scores))
        return Trial(temperatures, known, choices, means, mixing)

    def split(self, rows: Rows, *, seed: int) -> tuple[Results, Trial]:
        """Choose inside the training rows of one split, then score the held-out rows."""
        trial = self.trial({name: train for name, (train, _) in rows.items()}, seed=seed)
        y = {t.name: t.y[rows[t.name][1]] for t in self.federation.tables}
        said = _tempered(self.predictions(rows, seed=seed), trial.temperatures)
        said |= trial.weights.say(said, self.federation.task)
        found = {
            name: {c: figures(self.federation.task, p, y[c]) for c, p in own.items()}
            for name, own in said.items()
        }
        shares = {
            name: len(test) / (len(train) + len(test)) for name, (train, test) in rows.items()
        }
        chosen = {
            kind: {client: choice.candidate for client, choice in own.items()}
            for kind, own in trial.choices.items()
        }
        return Results.of_split(found, chosen, shares), trial


def _predict(models: Mapping[str, Model], silos: Mapping[str, EncodedSilo]) -> Said:
    # In the order on disk: memory layout affects how sums are rounded.
    return {
        name: np.ascontiguousarray(model.predict(silos[name].held_out))
        for name, model in models.items()
    }


def _choices(
    expected: Mapping[str, Mapping[str, Estimate]], names: Sequence[str]
) -> dict[str, dict[str, Choice]]:
    among = {
        "alone": [n for n in names if not CANDIDATES[n].federated],
        "federated": [n for n in names if CANDIDATES[n].federated],
        "kept": list(names),
    }
    return {
        kind: {
            client: choice
            for client, own in expected.items()
            if (choice := choose(own, able)) is not None
        }
        for kind, able in among.items()
    }


def _tempered(predicted: Predictions, temperatures: Mapping[str, float]) -> Predictions:
    return {
        name: {client: tempered(p, temperatures.get(name)) for client, p in own.items()}
        for name, own in predicted.items()
    }


def best_temperature(predicted: Mapping[str, np.ndarray], y: Mapping[str, np.ndarray]) -> float:
    """The factor on the scores with the best mean likelihood over the clients."""

    def likelihood(factor: float) -> float:
        own = [log_likelihoods(tempered(p, factor), y[c]).mean() for c, p in predicted.items()]
        return float(np.mean(own))

    return float(max(TEMPERATURES, key=likelihood))


# ---- many splits, in one process or several ------------------------------------------------


def work_through(
    evaluator: Evaluator, splits: Sequence[Rows], *, workers: int
) -> Iterator[tuple[Results, Trial]]:
    """Results of the splits, in their order; they do not depend on the number of processes."""
    jobs = seeded(evaluator, splits)
    if workers == 1:
        yield from (evaluator.split(rows, seed=seed) for rows, seed in jobs)
        return
    with open_workers(
        evaluator, workers=workers, advice="try again with fewer --workers"
    ) as opened:
        yield from opened.do(_split, jobs)


def seeded(evaluator: Evaluator, splits: Sequence[Rows]) -> list[tuple[Rows, int]]:
    """Each split with its seed."""
    return [(rows, evaluator.settings.seed + number) for number, rows in enumerate(splits)]


def _split(evaluator: Evaluator, rows: Rows, seed: int) -> tuple[Results, Trial]:
    return evaluator.split(rows, seed=seed)
