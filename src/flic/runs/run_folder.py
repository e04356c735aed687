"""Run folder: does one run, and writes its files.

DIR/
  config.json      the resolved configuration; `flic run --resume DIR` reads it
  run.json         versions and machine
  checkpoints/     state after every step (flic.engine.checkpoint)
  rounds.json      per round: active clients, loss terms, bytes sent, mean accuracies or R²
  clients.parquet  per measured round and client: rows and right predictions, or sums of errors
  timings.json     seconds per step; the only thing that differs between equal runs
  summary.json     scores at the last round and at the round validation chooses
  .lock            held by the process that works on the run

Every checkpoint records its settings, data and code; a run resumes only from its own.
"""

from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import AbstractContextManager
from dataclasses import dataclass
from io import BytesIO
from itertools import chain
from pathlib import Path
from statistics import fmean
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from flic.config import RunConfig, validate
from flic.data.client_data import FederatedData
from flic.digests import digest_of, digest_of_code, environment
from flic.engine.checkpoint import CHECKPOINTS, DiskJournal
from flic.engine.cluster import Cluster
from flic.engine.cluster_jobs import open_cluster_jobs
from flic.engine.engine import Engine
from flic.engine.journal import Journal, MemoryJournal
from flic.engine.rounds import Schedule
from flic.engine.runners import Jobs, local_rounds, open_jobs
from flic.engine.score import is_score
from flic.engine.soundness import refuse_wrong, wrong_in_shared, wrong_in_state
from flic.errors import RunFolderError
from flic.files import alone_in, make_folder, refuse_occupied, write_atomically, write_json
from flic.methods.protocol import Step
from flic.runs.loaded import Loaded, refuse_impossible
from flic.runs.metrics import Outcome, Record, round_scores
from flic.settings import differences, read_object
from flic.shapes import Named

OnStep = Callable[[Record, int, int], None]
"""Called after every step with its record, the number of all steps, and of those done."""

TIMINGS = ("seconds", "cpu_seconds")

STATES_AT_ONCE = 64  # clients whose private states are looked at together


@dataclass(frozen=True)
class Finished:
    """A finished run."""

    folder: Path
    outcome: Outcome
    records: Sequence[Record]
    notices: Sequence[str]
    ceiling: float | None  # mean Bayes score of the clients, where it is known

    @property
    def seconds(self) -> float:
        """Wall seconds of all steps, over all resumptions."""
        return sum(record["seconds"] for record in self.records)

    @property
    def cpu_seconds(self) -> tuple[float, float]:
        """CPU seconds of this process before the last step, and in it."""
        *before, last = [record["cpu_seconds"] for record in self.records]
        return sum(before), last

    @property
    def bytes_sent(self) -> int:
        """Bytes that clients sent in the whole run."""
        return sum(record.get("bytes_sent", 0) for record in self.records)


def create(folder: Path, config: RunConfig) -> Loaded:
    """Make a folder for a new run, and return the run.

    Raises:
        RunFolderError: the folder holds files.
        ConfigError: the run cannot start.
    """
    _refuse_occupied(folder)
    loaded = Loaded.of(config)
    _make(folder, loaded)
    return loaded


def begin(folder: Path, loaded: Loaded) -> None:
    """Make a folder for a run, or accept one that already has the same run."""
    if not (folder / "config.json").exists():
        _refuse_occupied(folder)
        _make(folder, loaded)
    elif (held := read_config(folder)) != loaded.config:
        changes = differences(held.model_dump(mode="json"), loaded.config.model_dump(mode="json"))
        raise RunFolderError(
            f"{folder} holds a run with other settings ({changes}); expected the same or "
            "an empty folder. Choose another folder with --out."
        )


def _refuse_occupied(folder: Path) -> None:
    refuse_occupied(
        folder,
        holds="a run" if (folder / "config.json").exists() else "other files",
        remedy=f"Choose another with --out, or resume it with: flic run --resume {folder}",
        ignored=".*.tmp",  # of an interrupted write
    )


def _make(folder: Path, loaded: Loaded) -> None:
    refuse_impossible([loaded])
    make_folder(folder)
    folder.chmod(0o700)  # also if the folder existed, empty
    write_json(folder / "config.json", loaded.config.model_dump(mode="json"))


def read_config(folder: Path) -> RunConfig:
    """Configuration of a run folder."""
    path = folder / "config.json"
    if not path.exists():
        raise RunFolderError(
            f"{folder} holds no run: {path} is missing; expected a folder that flic run made."
        )
    remedy = "Restore it from a copy, or start a new run in another folder."
    return validate(read_object(path, remedy=remedy), source=str(path))


def resume(
    folder: Path,
    *,
    loaded: Loaded | None = None,
    workers: int = 1,
    cluster: Cluster | None = None,
    on_step: OnStep = lambda record, total, done: None,
    on_damage: Callable[[str], None] = lambda message: None,
) -> Finished:
    """Do the remaining steps of the folder's run, then write its results.

    `loaded` is the folder's run where it is at hand already. A cluster takes the place of workers.
    """
    loaded = loaded or Loaded.of(read_config(folder))
    with alone_in(folder):
        journal = open_journal(folder, loaded.config, loaded.data)
        if not (folder / "run.json").exists():
            write_json(folder / "run.json", environment())
        for message in journal.notices:
            on_damage(message)
        refuse_damaged(folder, loaded.config, loaded.engine, journal)
        jobs = _jobs_of(loaded, workers=workers, cluster=cluster)
        told = _advance(loaded, journal, jobs, on_step=on_step)
        notices = [*told, *loaded.notices]
        outcome = write_results(folder, journal.records, notices)
    return Finished(folder, outcome, journal.records, notices, _mean_ceiling(loaded.data))


def refuse_damaged(folder: Path, config: RunConfig, engine: Engine, journal: Journal) -> None:
    """Refuse checkpoints that are not those of the run, though their checksums are right."""
    if journal.server is not None:
        programme, schedule = programme_of(config, engine), _schedule_of(config)
        known = {*engine.clients.names}
        wrong = _wrong_records(journal.records, programme, schedule, known)
        refuse_wrong(folder, chain(wrong, _wrong_tensors(engine, journal, journal.server.shared)))


def _wrong_records(
    records: Sequence[Record], programme: Sequence[Step], schedule: Schedule, known: Set[str]
) -> Iterator[str]:
    """Sentences on records that no step of a run writes, in the order of its programme."""
    for number, record in enumerate(records):
        step = programme[number] if number < len(programme) else None
        if step is None or (record.get("stage"), record.get("round")) != (step.name, step.round):
            yield f"step {number} is none of the run's steps"
            return
        scores = record.get("scores", {})
        if strange := sorted({*record.get("active", ()), *scores} - known):
            yield f"step {number} names {strange[0]!r}, which is no client of the run"
        lacking = [key for key in TIMINGS if key not in record]
        lacking += ["scores"] * (schedule.is_due(step) and not scores)
        lacking += [f"scores of {name}" for name, own in scores.items() if not is_score(own)]
        yield from (f"step {number} has no {what}" for what in lacking)


def _wrong_tensors(engine: Engine, journal: Journal, shared: Named) -> Iterator[str]:
    """Sentences on tensors that no step of a run writes."""
    method, clients = engine.method, engine.clients
    yield from wrong_in_shared(method.unsound(shared), shared)
    for names in clients.split(clients.names, stack_width=STATES_AT_ONCE):
        for name, state in zip(names, journal.states(names), strict=True):
            if state is not None:
                own = method.init_client(clients[name], clients.architecture(name))
                yield from wrong_in_state(name, own, state)


def open_journal(
    folder: Path, config: RunConfig, data: FederatedData, *, any_code: bool = False
) -> DiskJournal:
    """Journal of a run; steps of other settings, data or code are refused.

    The width of stacks is no part of the settings: it changes no figure.
    """
    engine = config.engine.model_copy(update={"stack_width": 1})
    settings = config.model_copy(update={"engine": engine}).model_dump(mode="json")
    origin = {"settings": digest_of(settings), "data": data.digest}
    if not any_code:
        origin["code"] = digest_of_code()
    return DiskJournal(folder / CHECKPOINTS, origin, settings)


def simulate(config: RunConfig, data: FederatedData | None = None) -> Outcome:
    """Outcome of a run in memory, on the configuration's data or on your own."""
    loaded = Loaded.of(config, data)
    journal = MemoryJournal()
    jobs = _jobs_of(loaded, workers=1, cluster=None)
    _advance(loaded, journal, jobs, on_step=lambda record, total, done: None)
    return Outcome.of(journal.records)


def _jobs_of(
    loaded: Loaded, *, workers: int, cluster: Cluster | None
) -> AbstractContextManager[Jobs]:
    """Processes of this machine, or a cluster, that do the jobs of a run."""
    if cluster is None:
        return open_jobs(loaded.engine, workers=workers)
    return open_cluster_jobs(loaded.engine, loaded.recipe, cluster)


def _advance(
    loaded: Loaded, journal: Journal, opened: AbstractContextManager[Jobs], *, on_step: OnStep
) -> Sequence[str]:
    """Do all steps that are not in the journal yet; returns the method's notices."""
    config, engine = loaded.config, loaded.engine
    schedule = _schedule_of(config)
    with opened as jobs:
        rounds = local_rounds(jobs, schedule, journal, stack_width=config.engine.stack_width)
        for record in rounds.steps():
            on_step(record, len(rounds.programme), len(journal.records))
    return explained(engine, journal)


def explained(engine: Engine, journal: Journal) -> Sequence[str]:
    """The method's notices on what was learnt; none before the first step."""
    return engine.method.explain(journal.server) if journal.server is not None else ()


def programme_of(config: RunConfig, engine: Engine) -> list[Step]:
    """The steps of a whole run."""
    schedule = _schedule_of(config)
    return engine.method.programme(schedule.rounds, final_round=schedule.final_round)


def _schedule_of(config: RunConfig) -> Schedule:
    return Schedule.of(config.training, evaluate_every=config.evaluation.every)


def write_results(folder: Path, records: Sequence[Record], notices: Sequence[str]) -> Outcome:
    """Write the results of a finished run, and return its outcome."""
    outcome = Outcome.of(records)
    write_json(folder / "rounds.json", [_round(record) for record in records])
    write_json(folder / "timings.json", [{k: r[k] for k in TIMINGS} for r in records])
    write_atomically(folder / "clients.parquet", _clients_table(records))
    write_json(folder / "summary.json", outcome.summary() | {"notices": list(notices)})
    return outcome


def _mean_ceiling(data: FederatedData) -> float | None:
    known = [client.ceiling for client in data.clients if client.ceiling is not None]
    return fmean(known) if len(known) == len(data.clients) else None


def _round(record: Record) -> dict[str, Any]:
    own = {k: v for k, v in record.items() if k not in ("scores", *TIMINGS)}
    return own | (round_scores(record) if "scores" in record else {})


def _clients_table(records: Sequence[Record]) -> bytes:
    rows = [
        {"round": record["round"], "client": name, **score}
        for record in records
        if "scores" in record
        for name, score in record["scores"].items()
    ]
    buffer = BytesIO()
    try:
        pq.write_table(pa.Table.from_pylist(rows), buffer)
    except (OverflowError, pa.ArrowException) as error:
        raise RunFolderError(
            f"scores of the run cannot be written as a table ({error}); expected them as flic "
            "wrote them. Restore the folder from a copy."
        ) from error
    return buffer.getvalue()
