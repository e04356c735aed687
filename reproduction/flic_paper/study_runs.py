"""Cells that are runs: one, or one for each setting of a search.

A cell's result holds every client's score at the last round and at the round that validation
chooses, so that all tables can be made from it.
"""

import shutil
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from flic.config import RunConfig
from flic.errors import OtherRun
from flic.runs import run_folder
from flic.runs.loaded import Loaded
from flic.runs.metrics import Outcome, Scores, scores_at, validation_score
from flic.runs.run_folder import Finished
from flic_paper.arms import Arm, Changes, configure, revision
from flic_paper.study import Cell, CellContext


def run_cell(key: str, config: RunConfig) -> Cell:
    """Cell of a single run."""
    return _cell(key, [({}, config)])


def searched_cell(key: str, experiment: str, arm: Arm, seed: int, *changes: Changes) -> Cell:
    """Cell of an arm: its own settings, and those of its search."""
    tried: list[tuple[Changes, RunConfig]] = []
    for own in ({}, *arm.search):
        config = configure(experiment, arm, seed, own, *changes)
        if all(config != known for _, known in tried):
            tried.append((own, config))
    return _cell(key, tried)


def _cell(key: str, tried: Sequence[tuple[Changes, RunConfig]]) -> Cell:
    settings = [config.model_dump(mode="json") for _, config in tried]
    return Cell(key, partial(_run, tried), settings, revision(tried[0][1].method))


def _run(tried: Sequence[tuple[Changes, RunConfig]], context: CellContext) -> dict[str, Any]:
    """Scores of the arm's own settings, which come first, and of those that validation chooses."""
    outcomes = [
        _summary(_one(config, context.folder / str(i), context))
        for i, (_, config) in enumerate(tried)
    ]
    best = max(range(len(tried)), key=lambda i: outcomes[i]["validation"] or 0.0)
    return {**outcomes[0], "searched": _searched(tried, outcomes, best)}


def _searched(
    tried: Sequence[tuple[Changes, RunConfig]], outcomes: Sequence[Mapping[str, Any]], best: int
) -> dict[str, Any]:
    scores = [outcome["validation"] for outcome in outcomes]
    chosen = outcomes[best]["chosen"] or outcomes[best]["last"]
    return {"settings": dict(tried[best][0]), "validation": scores, "chosen": chosen}


def _one(config: RunConfig, folder: Path, context: CellContext) -> Finished:
    """A run of a cell; it starts anew if it was started with other code or data."""
    try:
        return _go_on(config, folder, context)
    except OtherRun as error:
        context.tell(f"begun anew: {error}")
        shutil.rmtree(folder)
        return _go_on(config, folder, context)


def _go_on(config: RunConfig, folder: Path, context: CellContext) -> Finished:
    loaded = Loaded.of(config)
    run_folder.begin(folder, loaded)

    def on_step(record: Mapping[str, Any], total: int, done: int) -> None:
        context.tell(f"step {done} of {total}")

    return run_folder.resume(folder, loaded=loaded, on_step=on_step, on_damage=context.tell)


def _summary(done: Finished) -> dict[str, Any]:
    measured = [record for record in done.records if "scores" in record]
    validation = [validation_score(record) for record in measured]
    known = [value for value in validation if value is not None]
    before, last = done.cpu_seconds
    return {
        "last": _scores(done.outcome.last),
        "chosen": None if done.outcome.chosen is None else _scores(done.outcome.chosen),
        "rounds": [record["round"] for record in measured],
        "test": [scores_at(record).mean for record in measured],
        "validation": max(known) if known else None,
        "ceiling": done.ceiling,
        "seconds": done.seconds,
        "cpu_seconds": before + last,
        "bytes_sent": done.bytes_sent,
    }


def _scores(scores: Scores) -> dict[str, Any]:
    return {**vars(scores), "clients": dict(scores.clients), "weights": dict(scores.weights)}


def outcome_of(result: Mapping[str, Any], *, tuned: bool) -> Outcome:
    """A cell's outcome after the last round, or at the setting and round that validation chose."""
    scores = Scores(**(result["searched"]["chosen"] if tuned else result["last"]))
    return Outcome(scores, scores)
