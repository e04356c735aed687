"""Cells that are runs: one, or one for each setting of a search.

A cell's result holds every client's score at the last round and at the round that validation
chooses, so that all tables can be made from it.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from flic.config import RunConfig
from flic.report import run_folder
from flic.report.metrics import Accuracy, Outcome, accuracy_at, validation_accuracy
from flic.report.run_folder import Finished
from flic.reproduction.arms import Arm, Changes, configure
from flic.reproduction.study import Cell, Desk


def run_cell(key: str, config: RunConfig) -> Cell:
    """Cell of a single run."""
    return Cell(key, partial(_run, [({}, config)]))


def searched_cell(key: str, experiment: str, arm: Arm, seed: int, *changes: Changes) -> Cell:
    """Cell of an arm: its own settings, and those that validation chooses from its search."""
    tried = [(own, configure(experiment, arm, seed, own, *changes)) for own in arm.search]
    plain = configure(experiment, arm, seed, *changes)
    # The plain settings are among those tried, where the search has any.
    known = [({}, plain)] if all(config != plain for _, config in tried) else []
    return Cell(key, partial(_run, [*known, *tried]))


def _run(tried: Sequence[tuple[Changes, RunConfig]], desk: Desk) -> dict[str, Any]:
    """Scores of every setting; the first one's in full, and those of the one validation chooses."""
    outcomes = [
        _summary(_one(config, desk.folder / str(i), desk)) for i, (_, config) in enumerate(tried)
    ]
    own = _plain(tried)
    best = max(range(len(tried)), key=lambda i: outcomes[i]["validation"] or 0.0)
    return {**outcomes[own], "searched": _searched(tried, outcomes, best)}


def _plain(tried: Sequence[tuple[Changes, RunConfig]]) -> int:
    """Place of the arm's own settings among those tried."""
    rates = [config.training.optimiser.learning_rate for _, config in tried]
    return rates.index(1e-3) if 1e-3 in rates else 0


def _searched(
    tried: Sequence[tuple[Changes, RunConfig]], outcomes: Sequence[Mapping[str, Any]], best: int
) -> dict[str, Any]:
    scores = [outcome["validation"] for outcome in outcomes]
    chosen = outcomes[best]["chosen"] or outcomes[best]["last"]
    return {"settings": dict(tried[best][0]), "validation": scores, "chosen": chosen}


def _one(config: RunConfig, folder: Path, desk: Desk) -> Finished:
    if not (folder / "config.json").exists():
        run_folder.create(folder, config)

    def on_step(record: Mapping[str, Any], total: int, done: int) -> None:
        desk.tell(f"step {done} of {total}")

    return run_folder.carry_on(folder, on_step=on_step, on_damage=desk.tell)


def _summary(done: Finished) -> dict[str, Any]:
    measured = [record for record in done.records if "scores" in record]
    validation = [validation_accuracy(record) for record in measured]
    known = [value for value in validation if value is not None]
    before, last = done.cpu_seconds
    return {
        "last": _accuracy(done.outcome.last),
        "chosen": None if done.outcome.chosen is None else _accuracy(done.outcome.chosen),
        "rounds": [record["round"] for record in measured],
        "test": [accuracy_at(record).mean for record in measured],
        "validation": max(known) if known else None,
        "ceiling": done.ceiling,
        "seconds": done.seconds,
        "cpu_seconds": before + last,
        "bytes_sent": done.bytes_sent,
    }


def _accuracy(accuracy: Accuracy) -> dict[str, Any]:
    return {"round": accuracy.round, "clients": dict(accuracy.clients), "rows": dict(accuracy.rows)}


def outcome_of(result: Mapping[str, Any], *, searched: bool = False) -> Outcome:
    """A cell's outcome; with `searched`, that of the settings and round validation chose."""
    if searched:
        accuracy = Accuracy(**result["searched"]["chosen"])
        return Outcome(accuracy, accuracy)
    chosen = result["chosen"]
    return Outcome(Accuracy(**result["last"]), None if chosen is None else Accuracy(**chosen))
