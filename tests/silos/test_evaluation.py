"""Candidates on splits: the same clients are compared on every one, whatever its rows have."""

import multiprocessing
import threading
import time

import numpy as np
import pandas as pd
import pytest
import torch

from flic.errors import ConfigError, FederationError
from flic.silos.candidates import CANDIDATES
from flic.silos.evaluator import Evaluator, _predict, work_through
from flic.silos.fit_settings import FitSettings
from flic.silos.fitting import fit
from flic.silos.splits import outer_splits
from flic.tables import Declared, tables_from_frames

LINKED = {"network": {"linked": {"random_features": 8}}}
RARE = "both have it"


def practice(name, seed, rows=30, rare=1):
    """Rows whose only link with others is a level that few of them have."""
    rng = np.random.default_rng(seed)
    y = np.arange(rows) % 2
    levels = np.array([f"{name} {i % 3}" for i in range(rows)], dtype=object)
    levels[:rare] = RARE
    own = {f"{name} {i}": y + rng.normal(size=rows) for i in range(2)}
    return pd.DataFrame({**own, "kind": levels, "ill": y, "stay": y + rng.normal(size=rows)})


def practices(task):
    label, other = ("ill", "stay") if task == "classification" else ("stay", "ill")
    frames = {name: practice(name, i).drop(columns=other) for i, name in enumerate("ab")}
    span = None if task == "classification" else (-5, 5)
    return tables_from_frames(frames, label=label, task=task, range=span)


ALONE = {"classification": "lda", "regression": "ridge"}


@pytest.mark.slow
@pytest.mark.parametrize(("task", "alone"), ALONE.items())
def test_a_link_through_a_rare_level_is_compared_on_every_split(task, alone):
    settings = FitSettings(repeats=2, folds=2, candidates=(alone, "linked"), **LINKED)
    found = fit(practices(task), settings).verdict
    assert {name: [*own] for name, own in found.candidates.items()} == {
        alone: ["a", "b"],
        "linked": ["a", "b"],
    }
    assert [line.federation for line in found.clients] == ["linked", "linked"]


@pytest.mark.parametrize(("task", "alone"), ALONE.items())
def test_without_the_link_a_client_has_its_own_linear_model(task, alone):
    tables = practices(task)
    evaluator = Evaluator(tables, FitSettings(candidates=("linked",), **LINKED))
    assert evaluator.served == {"linked": ["a", "b"]}
    without = {t.name: (np.arange(4, 30), np.arange(4)) for t in tables.tables}
    encoded = evaluator.encode(without)
    assert CANDIDATES["linked"].served(encoded) == []
    own = CANDIDATES[alone].learn(encoded, evaluator.settings, seed=0).models
    expected = _predict(own, {silo.name: silo for silo in encoded.silos})
    [found] = evaluator.predictions(without, seed=0).values()
    assert {n: p.tolist() for n, p in found.items()} == {n: p.tolist() for n, p in expected.items()}


@pytest.mark.slow
def test_a_link_of_some_rows_that_all_rows_have_not_is_not_used():
    """A category of more than twenty levels is read by letters, which nobody shares."""
    frames = {name: practice(name, i, rows=44, rare=20) for i, name in enumerate("abc")}
    frames["a"].loc[20:, "kind"] = [f"level {i}" for i in range(24)]
    own = {name: frame.drop(columns="stay") for name, frame in frames.items()}
    tables = tables_from_frames(own, label="ill", declared=Declared(categories=("kind",)))
    evaluator = Evaluator(tables, FitSettings(candidates=("lda", "linked"), **LINKED))
    assert evaluator.served["linked"] == ["b", "c"]
    rows = {t.name: (np.arange(30), np.arange(30, 44)) for t in tables.tables}
    assert CANDIDATES["linked"].served(evaluator.encode(rows)) == ["a", "b", "c"]
    assert [*evaluator.predictions(rows, seed=0)["linked"]] == ["b", "c"]


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.process
def test_a_fit_uses_one_thread_from_beginning_to_end_and_gives_the_others_back(
    two_threads, workers
):
    threads = []
    settings = FitSettings(repeats=2, folds=2, candidates=("lda",))
    fit(
        practices("classification"),
        settings,
        workers=workers,
        on_step=lambda *step: threads.append(torch.get_num_threads()),
    )
    assert {*threads} == {1}
    assert torch.get_num_threads() == 2


def test_a_fit_that_fails_gives_the_threads_back(two_threads):
    with pytest.raises(ConfigError):
        fit(practices("classification"), FitSettings(folds=99))
    assert torch.get_num_threads() == 2


@pytest.mark.process
def test_a_worker_that_dies_is_said():
    def kill_one():
        while not (children := multiprocessing.active_children()):
            time.sleep(0.01)
        children[0].kill()

    evaluator = Evaluator(practices("classification"), FitSettings(candidates=("lda",)))
    splits = outer_splits(evaluator.federation.tables, evaluator.settings)
    killer = threading.Thread(target=kill_one)
    killer.start()
    with pytest.raises(FederationError, match=r"a worker process died .* fewer --workers\.$"):
        list(work_through(evaluator, splits, workers=2))
    killer.join()
