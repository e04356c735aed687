"""The fit: verdict by splits, choice on all rows, and the kept models."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace

import numpy as np

from flic.data.task import TaskName
from flic.digests import environment
from flic.engine.runners import one_thread
from flic.engine.traffic import ClientTraffic
from flic.errors import ConfigError
from flic.silos.candidate import Learned
from flic.silos.candidates import CANDIDATES, FLIC, LINKED
from flic.silos.encoding import EncodedFederation
from flic.silos.evaluator import Evaluator, Trial, seeded, work_through
from flic.silos.explanations import explanations
from flic.silos.fit_cache import FitCache
from flic.silos.fit_settings import FitSettings
from flic.silos.fitted import FittedClient, FittedFederation
from flic.silos.mixing import Mix, Weighed
from flic.silos.report_data import report_data
from flic.silos.results import Results
from flic.silos.splits import Rows, outer_splits
from flic.silos.verdict import verdict
from flic.tables import TableFederation

OnFitStep = Callable[[int, int, str], None]
"""Called first and after every step with the steps done, the total, and the name of the next."""


@one_thread()
def fit(
    federation: TableFederation,
    settings: FitSettings,
    *,
    workers: int = 1,
    on_step: OnFitStep = lambda done, total, what: None,
    cache: FitCache | None = None,
) -> FittedFederation:
    """Compare every candidate on every split, then train each client's choice on all rows.

    Finished work is kept in the cache, if there is one, and reused.
    """
    refuse(federation, settings)
    with cache.alone() if cache else nullcontext():
        return _fit(Evaluator(federation, settings, cache=cache), workers, on_step)


def _fit(evaluator: Evaluator, workers: int, on_step: OnFitStep) -> FittedFederation:
    federation, settings = evaluator.federation, evaluator.settings
    splits = outer_splits(federation.tables, settings)
    everything = {table.name: np.arange(len(table)) for table in federation.tables}
    total, kept = len(splits) + 2, _kept(evaluator, splits, everything)
    on_step(sum(kept), total, "splits")
    results, trials = [], []
    for result, trial in work_through(evaluator, splits, workers=workers):
        results.append(result)
        trials.append(trial)
        on_step(len(results) + sum(kept[len(results) :]), total, "splits")
    final = evaluator.trial(everything, seed=settings.seed)
    on_step(total - 1, total, "models")
    encoded = evaluator.encode({name: (rows, rows[:0]) for name, rows in everything.items()})
    learned = _learn_kept(evaluator, encoded, final)
    metric = settings.metric_for(federation.task)
    rows = {table.name: len(table) for table in federation.tables}
    shown = report_data(evaluator, splits[0], trials[0].temperatures.get(FLIC.name))
    fitted = FittedFederation(
        task=federation.task,
        labels=federation.labels,
        settings=settings,
        verdict=verdict(Results.of_splits(results), final, metric=metric, rows=rows),
        clients=_clients(federation, encoded, final, learned),
        shared=learned[FLIC.name].shared if FLIC.name in learned else {},
        known=final.known,
        temperatures=final.temperatures,
        weights=final.weights.of_all,
        records=learned[FLIC.name].records if FLIC.name in learned else (),
        report_data=shown.model_copy(update={"traffic": _traffic(federation.names, learned)}),
        environment=environment(),
        notices=(
            *federation.notices,
            *_explanations(encoded, settings, learned),
            *_mixes(final),
        ),
        linked=learned[LINKED.name].linked if LINKED.name in learned else None,
    )
    on_step(total, total, "done")
    return fitted


def _kept(
    evaluator: Evaluator, splits: Sequence[Rows], everything: Mapping[str, np.ndarray]
) -> list[bool]:
    """True for each split, and for the trial on all rows, that an interrupted fit has done."""
    if evaluator.cache is None or not evaluator.cache.is_begun:
        return [False] * (len(splits) + 1)
    done = [evaluator.keeps_split(rows, seed=seed) for rows, seed in seeded(evaluator, splits)]
    return [*done, evaluator.keeps_trial(everything, seed=evaluator.settings.seed)]


def refuse(federation: TableFederation, settings: FitSettings) -> None:
    """Refuse, before work starts, settings with which these tables cannot be fitted."""
    _refuse_candidates(settings, federation.task.name)
    outer_splits(federation.tables, settings)
    evaluator = Evaluator(federation, settings)
    encoded = evaluator.encode(
        {t.name: (np.arange(len(t)), np.arange(0)) for t in federation.tables}
    )
    for name in evaluator.served:
        evaluator.offered[name].refuse(encoded, settings)


def _refuse_candidates(settings: FitSettings, task: TaskName) -> None:
    """Refuse unknown candidates, or a list in which none stays alone."""
    unknown = [name for name in settings.candidates if name not in CANDIDATES]
    if unknown:
        raise ConfigError(
            f"candidates: got {', '.join(map(repr, unknown))}; expected some of "
            f"{', '.join(CANDIDATES)}. Correct the names, or leave the key out for all."
        )
    if Mix.name in settings.candidates and len({*settings.candidates}) < 3:
        raise ConfigError(
            f"candidates: got {', '.join(settings.candidates)}; expected two or more others "
            f"for {Mix.name!r} to combine. Add some, or leave it out."
        )
    alone = [name for name, c in CANDIDATES.items() if not c.federated and task in c.tasks]
    chosen = settings.candidates or tuple(CANDIDATES)
    if not {*alone} & {*chosen}:
        raise ConfigError(
            f"candidates: got {', '.join(chosen)}, none of which stays alone in a {task}; expected "
            f"at least one of {', '.join(alone)} to compare with. Add one."
        )


def _learn_kept(
    evaluator: Evaluator, encoded: EncodedFederation, final: Trial
) -> dict[str, Learned]:
    """Models on all rows, of candidates that a client keeps or newcomers may join."""
    kept = {choice.candidate for choice in final.choices["kept"].values()}
    return evaluator.learn_all({*kept, FLIC.name, LINKED.name}, encoded, final)


def _traffic(names: Sequence[str], learned: Mapping[str, Learned]) -> list[ClientTraffic]:
    """Tensors that leave each client, for kept models and for those that newcomers join."""
    return [
        ClientTraffic(
            client,
            [
                replace(tensor, name=f"{candidate}: {tensor.name}")
                for candidate, own in learned.items()
                for tensor in own.sent.get(client, ())
            ],
        )
        for client in names
    ]


def _explanations(
    encoded: EncodedFederation, settings: FitSettings, learned: Mapping[str, Learned]
) -> Sequence[str]:
    linked = learned[LINKED.name].linked if LINKED.name in learned else None
    return explanations(encoded, settings, linked) if linked is not None else ()


def _mixes(final: Trial) -> Iterator[str]:
    """Sentences on the weights in mixes: over all clients, and of each client that keeps one."""
    if final.weights.of_all:
        weights = _shown(final.weights.of_all)
        yield f"mix is a weighted mean of candidates: {weights}."
    for client, choice in final.choices["kept"].items():
        if choice.candidate == Mix.name:
            yield f"client '{client}': its mix is {_shown(final.weights.of_client[client])}."


def _shown(weights: Weighed) -> str:
    ordered = sorted(weights.items(), key=lambda item: -item[1])
    return ", ".join(f"{weight:.0%} {name}" for name, weight in ordered)


def _clients(
    federation: TableFederation,
    encoded: EncodedFederation,
    final: Trial,
    learned: Mapping[str, Learned],
) -> dict[str, FittedClient]:
    found = {}
    for table, silo in zip(federation.tables, encoded.silos, strict=True):
        name = final.choices["kept"][table.name].candidate
        kept = (name, final.temperatures.get(name), learned[name].models[table.name])
        client = FittedClient.of(table, silo, kept, federation.task, federation.labels)
        found[table.name] = client
    return found
