"""The report of a finished run: its checkpoints, and its rows embedded by φ.

Runs of other methods that `flic compare` put beside it give the method's gains over them.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from flic.engine.checkpoint import CHECKPOINTS, DiskJournal
from flic.engine.engine import Engine
from flic.engine.rounds import next_step
from flic.engine.traffic import ClientTraffic
from flic.errors import RunFolderError
from flic.files import alone_in, read_json
from flic.methods import METHODS
from flic.methods.network import NetworkMethod
from flic.page.contents import Gain, Gains, Measure, Report, Round
from flic.runs.latent import Reading, alignment, latent, read, traffic
from flic.runs.loaded import Loaded
from flic.runs.metrics import KEYS, Outcome, Scores, round_scores
from flic.runs.run_folder import (
    explained,
    open_journal,
    programme_of,
    read_config,
    refuse_damaged,
)
from flic.settings import damaged

REFERENCE = "local"
COMPARED = ("data", "evaluation", "seed")
"""Settings that runs have in common if their figures can be compared."""

RESULTS = "summary.json"  # written last
ROWS = "rows and labels"


def report_of_run(folder: Path) -> Report:
    """The report of a run folder; its figures are those of the checkpoints."""
    config = read_config(folder)
    run = Loaded.of(config)
    with alone_in(folder):
        journal = _finished(folder, run)
        seen = _seen(run.engine, journal, stack_width=config.engine.stack_width)
        notes = [*explained(run.engine, journal), *run.notices]
    records = journal.records
    scores = Outcome.of(records).last
    others, missing = _beside(folder, run)
    beside = {config.method: scores} | others
    return Report(
        title=f"{config.method} on {config.data.problem}, seed {config.seed}",
        kind="run",
        measure=Measure(scores.measure, percent=scores.measure == "accuracy"),
        group="range" if scores.measure == "R²" else "class",
        rounds=[_round(record, KEYS[scores.measure]) for record in records],
        gains=_gains(config.method, beside),
        latent=latent(seen, seed=config.seed) if seen is not None else None,
        alignment=alignment(seen) if seen is not None else (),
        traffic=(
            traffic(seen, records)
            if seen is not None
            else [ClientTraffic(name, ()) for name in scores.clients]
        ),
        never_left=[ROWS, *(seen.kept if seen is not None else ["the fitted model"])],
        candidates={method: found.clients for method, found in beside.items()},
        settings=config.model_dump(mode="json"),
        versions=_versions(folder / "run.json"),
        notes=[*notes, *missing],
    )


def _seen(engine: Engine, journal: DiskJournal, *, stack_width: int) -> Reading | None:
    """The last checkpoint's reading of all rows; None for a method without networks."""
    if not isinstance(engine.method, NetworkMethod) or journal.server is None:
        return None
    return read(engine.clients, engine.method, journal, stack_width=stack_width)


def _round(record: Mapping[str, Any], key: str) -> Round:
    scores = round_scores(record) if "scores" in record else {}
    return Round(
        record["round"],
        scores.get(f"test_{key}"),
        scores.get(f"validation_{key}"),
        record.get("losses", {}),
        record.get("bytes_sent", 0),
        record["stage"],
    )


# ---- runs side by side -------------------------------------------------------------------


def _beside(folder: Path, run: Loaded) -> tuple[dict[str, Scores], list[str]]:
    """Scores of the finished runs of other methods on the same data, with the same seed.

    Also a note on each whose checkpoints are gone or damaged, which is no reason for no report.
    """
    own, config = folder.resolve(), run.config
    found, notes = dict[str, Scores](), list[str]()
    for method in METHODS if own.name == _name_beside(config.method, config.seed) else ():
        other = own.with_name(_name_beside(method, config.seed))
        if method != config.method and (other / RESULTS).exists():
            theirs = read_config(other)
            if all(getattr(theirs, part) == getattr(config, part) for part in COMPARED):
                try:
                    with alone_in(other):
                        records = _finished(other, replace(run, config=theirs)).records
                    found[method] = Outcome.of(records).last
                except RunFolderError as error:
                    notes.append(f"{method} is not compared: {error}")
    return found, notes


def _name_beside(method: str, seed: int) -> str:
    """Folder of one run of a comparison."""
    return f"{method}-seed{seed}"


def _gains(method: str, beside: Mapping[str, Scores]) -> Gains | None:
    if method == REFERENCE or REFERENCE not in beside:
        return None
    own, other = beside[method], beside[REFERENCE]
    both = [name for name in own.clients if name in other.clients]
    return Gains("the client's local model", [_gain(name, own, other) for name in both])


def _gain(name: str, own: Scores, other: Scores) -> Gain:
    """Gain of one client, with an interval where scores are shares of rows.

    Agresti and Caffo: a right and a wrong row are added to either side. The same rows are scored
    twice, so the interval, which is for independent rows, tends to be too wide.
    """
    gain = own.clients[name] - other.clients[name]
    if own.measure != "accuracy":
        return Gain(name, gain)
    rows = own.weights[name]
    shares = [(scores.clients[name] * rows + 1) / (rows + 2) for scores in (own, other)]
    margin = 1.96 * sum(share * (1 - share) / (rows + 2) for share in shares) ** 0.5
    middle = shares[0] - shares[1]
    return Gain(name, gain, min(gain, middle - margin), max(gain, middle + margin))


# ---- files -------------------------------------------------------------------------------


def _finished(folder: Path, run: Loaded) -> DiskJournal:
    """Sound checkpoints of a finished run.

    The code may have changed since, but not the settings or the data. What the run wrote beside
    them is made from them, and may be another run's.
    """
    if not (folder / CHECKPOINTS).is_dir():
        raise _unfinished(folder)
    journal = open_journal(folder, run.config, run.data, any_code=True)
    if journal.notices:
        raise RunFolderError(
            f"{journal.notices[0]} Expected all steps of a finished run. Do what is lost again "
            f"with: flic run --resume {folder}"
        )
    refuse_damaged(folder, run.config, run.engine, journal)
    if next_step(programme_of(run.config, run.engine), journal.records) is not None:
        raise _unfinished(folder)
    return journal


def _versions(path: Path) -> dict[str, str]:
    try:
        return TypeAdapter(dict[str, str]).validate_python(read_json(path), strict=True)
    except (OSError, ValueError) as error:
        remedy = f"Remove it, and write it anew with: flic run --resume {path.parent}"
        raise damaged(path, error, remedy=remedy) from None


def _unfinished(folder: Path) -> RunFolderError:
    return RunFolderError(
        f"{folder} holds no finished run: steps are missing in {CHECKPOINTS}; expected a run that "
        f"came to its end. Resume it with: flic run --resume {folder}"
    )
