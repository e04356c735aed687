"""The report of a finished run: its files, its last checkpoint, and its rows embedded by φ.

Runs of other methods that `flic compare` put beside it give the method's gains over them.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel, TypeAdapter

from flic.config import RunConfig
from flic.data.client_data import FederatedData
from flic.engine.checkpoint import CHECKPOINTS, DiskJournal
from flic.engine.engine import Engine
from flic.engine.traffic import ClientTraffic
from flic.errors import Damaged, RunFolderError
from flic.files import MOST_BYTES, BoundedFile, read_json
from flic.methods import METHODS
from flic.methods.network import NetworkMethod
from flic.page.contents import Gain, Gains, Measure, Report, Round
from flic.runs.latent import Reading, alignment, latent, read, traffic
from flic.runs.loaded import data_of, engine_of
from flic.runs.metrics import KEYS, Scores, scores_at
from flic.runs.run_folder import alone_in, open_journal, read_config, refuse_damaged
from flic.settings import damaged

REFERENCE = "local"
ROWS = "rows and labels"

T = TypeVar("T")


class _Record(BaseModel):
    """The values of a step in rounds.json that the page shows."""

    round: int
    stage: str
    losses: dict[str, float] = {}
    bytes_sent: int = 0
    active: list[str] = []
    test_accuracy: float | None = None
    validation_accuracy: float | None = None
    test_r2: float | None = None
    validation_r2: float | None = None


class _Timing(BaseModel):
    """The seconds of a step in timings.json."""

    seconds: float
    cpu_seconds: float


class _Summary(BaseModel):
    """The sentences in summary.json."""

    notices: list[str]


def report_of_run(folder: Path) -> Report:
    """The report of a run folder."""
    config = read_config(folder)
    rounds = _read(folder / "rounds.json", list[_Record])
    records = [record.model_dump(exclude_unset=True) for record in rounds]
    scores = _last_scores(folder)
    beside = {config.method: scores} | _beside(folder, config)
    data = data_of(config)
    engine = engine_of(config, data)
    with alone_in(folder):
        journal = _journal(folder, config, data)
        refuse_damaged(folder, config, engine, journal)
        seen = _seen(engine, journal, stack_width=config.engine.stack_width)
    if [own.round for own in rounds] != [record["round"] for record in journal.records]:
        raise _damaged(folder / "rounds.json", "its rounds are not those of the checkpoints")
    if len(_read(folder / "timings.json", list[_Timing])) != len(rounds):
        raise _damaged(folder / "timings.json", "it does not have as many steps as the run")
    if seen is not None and {name for own in rounds for name in own.active} - {*seen.sent}:
        raise _damaged(folder / "rounds.json", "it names clients that the run does not have")
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
        versions=_read(folder / "run.json", dict[str, str]),
        notes=_read(folder / "summary.json", _Summary).notices,
    )


def _seen(engine: Engine, journal: DiskJournal, *, stack_width: int) -> Reading | None:
    """The last checkpoint's reading of all rows; None for a method without networks."""
    if not isinstance(engine.method, NetworkMethod) or journal.server is None:
        return None
    return read(engine.clients, engine.method, journal, stack_width=stack_width)


def _round(record: Mapping[str, Any], key: str) -> Round:
    return Round(
        record["round"],
        record.get(f"test_{key}"),
        record.get(f"validation_{key}"),
        record.get("losses", {}),
        record.get("bytes_sent", 0),
        record["stage"],
    )


# ---- runs side by side -------------------------------------------------------------------


def _beside(folder: Path, config: RunConfig) -> dict[str, Scores]:
    """Scores of the finished runs of other methods on the same data, with the same seed."""
    own = folder.resolve()
    if own.name != _name_beside(config.method, config.seed):
        return {}
    found = {}
    for method in METHODS:
        other = own.with_name(_name_beside(method, config.seed))
        if method != config.method and (other / "clients.parquet").exists():
            theirs = read_config(other)
            if (theirs.data, theirs.evaluation) == (config.data, config.evaluation):
                found[method] = _last_scores(other)
    return found


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


def _last_scores(folder: Path) -> Scores:
    """Test scores of the clients at the last round."""
    path = folder / "clients.parquet"
    try:
        with BoundedFile(path, most=MOST_BYTES) as file:
            rows = pq.read_table(file).to_pylist()
        last = max(row["round"] for row in rows)
        return scores_at(
            {"round": last, "scores": {row["client"]: row for row in rows if row["round"] == last}}
        )
    except FileNotFoundError:
        raise _unfinished(folder, path) from None
    except (pa.ArrowException, OSError, KeyError, TypeError, ValueError) as error:
        raise _damaged(path, error) from None


def _read(path: Path, kind: type[T]) -> T:
    """Contents of a file of a finished run; an error if they are of the wrong kind."""
    try:
        return TypeAdapter(kind).validate_python(read_json(path), strict=True)
    except FileNotFoundError:
        raise _unfinished(path.parent, path) from None
    except (OSError, ValueError) as error:
        raise _damaged(path, error) from None


def _journal(folder: Path, config: RunConfig, data: FederatedData) -> DiskJournal:
    """The run's checkpoints; the code may have changed, but not the settings or the data."""
    if not (folder / CHECKPOINTS).is_dir():
        raise _unfinished(folder, folder / CHECKPOINTS)
    journal = open_journal(folder, config, data, any_code=True)
    if journal.notices:
        raise RunFolderError(
            f"{journal.notices[0]} Expected all steps of a finished run. Do what is lost again "
            f"with: flic run --resume {folder}"
        )
    return journal


def _unfinished(folder: Path, path: Path) -> RunFolderError:
    return RunFolderError(
        f"{folder} holds no finished run: {path.name} is missing; expected a run that came to its "
        f"end. Resume it with: flic run --resume {folder}"
    )


def _damaged(path: Path, why: object) -> Damaged:
    remedy = f"Write it anew from the checkpoints with: flic run --resume {path.parent}"
    return damaged(path, why, remedy=remedy)
