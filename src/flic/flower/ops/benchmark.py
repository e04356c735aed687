"""Flower's overhead: seconds and bytes of a round, beside the same rounds in the simulator."""

import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from sklearn.datasets import load_breast_cancer

from flic.data.client_data import FederatedData
from flic.engine.checkpoint import finished_records
from flic.engine.engine import Engine
from flic.engine.journal import MemoryJournal, Record
from flic.engine.rounds import Schedule
from flic.engine.runners import local_rounds, open_jobs
from flic.flower.federation_settings import FederationSettings
from flic.flower.ops.loopback import on_loopback
from flic.flower.ops.run_follower import OnRound
from flic.flower.silo_folder import SiloFolder, held_out
from flic.flower.silo_run import rows_of
from flic.silos.encoding import encode
from flic.tables import Client

ROUNDS = 3
FEWEST_COLUMNS, MOST_COLUMNS = 5, 12


@dataclass(frozen=True)
class Overhead:
    """Means over the rounds that update the shared part."""

    silos: int
    flower_seconds: float
    simulator_seconds: float
    flower_bytes: float  # a silo and round: tensors, weights, loss terms; or all that masks take
    simulator_bytes: float  # the tensors alone
    start_seconds: float  # until every process runs and every silo is let in


def measure(
    counts: Iterable[int],
    on_round: OnRound = lambda record, total, done: None,
    *,
    secure_sums: bool = False,
) -> list[Overhead]:
    """Overhead of federations of these sizes, one after the other."""
    return [_measured(count, on_round, secure_sums=secure_sums) for count in counts]


def simulated(settings: FederationSettings, silos: Sequence[SiloFolder]) -> MemoryJournal:
    """The same federation in the simulator: its rounds, shared part and private parameters."""
    tables = [silo.read(settings)[0] for silo in silos]
    rows = {
        table.name: held_out(table, silo.file.test_share)
        for table, silo in zip(tables, silos, strict=True)
    }
    own, seed = settings.method_settings, settings.seed
    encoded = encode(tables, settings.common_task, rows).silos
    clients = tuple(rows_of(silo, settings, least=settings.min_rows) for silo in encoded)
    data = FederatedData("silos", settings.common_task, clients)
    engine, journal = Engine.of(settings.method, own, data, seed=seed), MemoryJournal()
    schedule = Schedule.of(own.training, evaluate_every=settings.evaluate_every)
    with open_jobs(engine, workers=1) as jobs:
        for _ in local_rounds(jobs, schedule, journal, stack_width=len(silos)).steps():
            pass
    return journal


def _measured(count: int, on_round: OnRound, *, secure_sums: bool) -> Overhead:
    settings = FederationSettings(
        classes=("malignant", "benign"), rounds=ROUNDS, evaluate_every=0, secure_sums=secure_sums
    )
    with tempfile.TemporaryDirectory(prefix="flic-bench-") as root:
        tables = clients(Path(root), count)
        began = time.perf_counter()
        with on_loopback(Path(root), settings, tables) as running:
            started = time.perf_counter() - began
            running.deployment.train(on_round)
            records = _updates(finished_records(running.deployment.folder))
            silos = [member.silo for member in running.members.values()]
            alone = _updates(simulated(settings, silos).records)
    return Overhead(
        silos=count,
        flower_seconds=fmean(record["seconds"] for record in records),
        simulator_seconds=fmean(record["seconds"] for record in alone),
        flower_bytes=fmean(record["bytes_sent"] / count for record in records),
        simulator_bytes=fmean(record["bytes_sent"] / count for record in alone),
        start_seconds=started,
    )


def _updates(records: Sequence[Record]) -> list[Record]:
    return [record for record in records if record["stage"] == "update"]


def clients(root: Path, count: int, *, columns: int | None = None) -> dict[str, Client]:
    """Silos that share the rows of a table on tumours, each with some columns of its own.

    With `columns`, all have the same ones, so many.
    """
    table: Any = load_breast_cancer(as_frame=True)
    rng = np.random.default_rng(0)
    parts = np.array_split(rng.permutation(len(table.data)), count)
    made: dict[str, Client] = {}
    for number, rows in enumerate(parts):
        name = f"silo-{number}"
        if columns is None:
            width = rng.integers(FEWEST_COLUMNS, MOST_COLUMNS + 1)
            chosen = rng.choice(table.data.columns, width, False)
        else:
            chosen = table.data.columns[:columns]
        frame = table.data.loc[rows, chosen].assign(
            label=[("malignant", "benign")[y] for y in table.target[rows]]
        )
        frame.to_csv(root / f"{name}.csv", index=False)
        made[name] = Client(name=name, data=f"../{name}.csv", label="label")
    return made
