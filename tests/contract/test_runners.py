"""Runners of one loop: in workers, on a cluster and over Flower, a run is what it is in process.

Workers and a cluster do the same jobs as this process, in other stacks. Silos encode tables of
their own, so Flower is compared on tables. All agree but for rounding, on any processor.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache

import numpy as np
import pandas as pd
import pytest
from small_federation import (
    DOUBLE,
    DOUBLE_TOL,
    METHODS_ON_BOTH,
    PLAIN_DESCENT,
    Ran,
    assert_same,
    run_of,
    small_engine,
    three_of,
)

from flic.engine.cluster import open_cluster
from flic.engine.cluster_jobs import Recipe, open_cluster_jobs
from flic.engine.engine import Engine, Job, JobResult
from flic.engine.runners import InWorkers, Jobs, Workers, open_workers
from flic.flower.ops.benchmark import simulated
from flic.settings import merge
from hospitals import (
    BETWEEN_MACHINES,
    NODES,
    PLAIN,
    SALT,
    WIDE_OPEN,
    assert_told,
    in_a_run,
    linked_frames,
    make_here,
    opened,
    rows_of,
)

# ---- jobs ----------------------------------------------------------------------------------


@cache
def in_process(method: str) -> Ran:
    """The run to compare with."""
    return run_of(method, three_of(method), **DOUBLE)


def same_as_in_process(method: str, jobs: Callable[[Engine], AbstractContextManager[Jobs]]) -> None:
    found = run_of(method, three_of(method), jobs=jobs, **DOUBLE)
    found.assert_agrees(in_process(method), rtol=DOUBLE_TOL)


class InPool(InWorkers):
    """Does jobs in processes that hold the engine of every method."""

    def __init__(self, engine: Engine, pool: Workers, method: str) -> None:
        super().__init__(engine, pool, workers=2)
        self._method = method

    def run(self, jobs: Iterable[Job]) -> Iterator[JobResult]:
        return self._opened.do(_do, ((self._method, job) for job in jobs))


def _do(engines: dict[str, Engine], method: str, job: Job) -> JobResult:
    return engines[method].do(job)


@pytest.fixture(scope="session")
def pool() -> Iterator[Workers]:
    """Two processes for all methods, since each takes seconds to start."""
    engines = {method: small_engine(method) for method in METHODS_ON_BOTH}
    with open_workers(engines, workers=2, advice="try again") as workers:
        yield workers


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.parametrize("method", METHODS_ON_BOTH)
def test_in_workers(pool, method):
    same_as_in_process(method, lambda engine: nullcontext(InPool(engine, pool, method)))


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS_ON_BOTH)
def test_on_a_cluster(cluster, method):
    @contextmanager
    def on_cluster(engine):
        with (
            open_cluster(cluster.address) as found,
            open_cluster_jobs(engine, Recipe(small_engine, method), found) as jobs,
        ):
            yield jobs

    same_as_in_process(method, on_cluster)


# ---- messages ------------------------------------------------------------------------------

ROUNDED = 1e-5

USUAL = {
    "network": {**PLAIN_DESCENT, "fedhenn": {"probe_rows": 9}, "linked": WIDE_OPEN},
    **PLAIN,
    **{"rounds": 2, "salt": SALT, "max_features": 7},  # as wide as the widest silo
}
ON_RESPONSES = {"task": "regression", "range": (0.0, 10.0), "label": "stay"}

FEDERATIONS = {
    **{name: {"method": name} for name in BETWEEN_MACHINES},
    **{f"{name} on responses": {"method": name, **ON_RESPONSES} for name in BETWEEN_MACHINES},
    "by rows": {"method": "flic-hl", "weights": "rows", "seed": 3},
    "diagonal": {"network": {"anchors": {"covariance": "diagonal"}}},
    "meta-classes": {"network": {"anchors": {"meta_classes": [0, 0]}}},
    "all rows": {"network": {"training": {"batch_size": 500, "final_round": False}}},
}


@pytest.fixture
def compare(tmp_path):
    """compare(**settings): run a federation over Flower, and compare it with the simulator."""

    def run(**changes):
        with in_a_run():
            place = opened(make_here(tmp_path, **changes))
            coordinator = place.go()
        silos = [place.silo(name) for name in NODES]
        there, here = coordinator.journal, simulated(coordinator.settings, silos)
        assert_same(coordinator.server.shared, here.server.shared, rtol=ROUNDED)
        for silo, state in zip(silos, here.states([*NODES]), strict=True):
            own = silo.model().model
            assert_same(getattr(own, "private", {}), state or {}, rtol=ROUNDED)
        # Figures leave silos rounded, so that they are no row's, and agree no further than that.
        expected = here.records[-1]["scores"]
        if coordinator.settings.masks_sums:
            [figures] = there.records[-1]["scores"].values()
            whole = {name: sum(own[name] for own in expected.values()) for name in figures}
            assert_told(figures, whole, silos=len(silos))
            return
        for name, figures in there.records[-1]["scores"].items():
            assert_told(figures, expected[name])

    return run


@pytest.mark.slow
@pytest.mark.parametrize("changes", FEDERATIONS.values(), ids=FEDERATIONS)
def test_over_flower(compare, changes):
    compare(frames=linked_frames(), **merge(USUAL, changes))


@pytest.mark.slow
@pytest.mark.parametrize("method", BETWEEN_MACHINES)
def test_over_flower_under_masks(compare, method):
    masked = {"secure_sums": True, "min_holders": 3, "deadline_s": 5.0}
    frames = {**linked_frames(), "north": rows_of("north")}  # no column is of two silos alone
    compare(frames=frames, **merge(USUAL, {"method": method, **masked}))


def wide(name: str, columns: int, rows: int = 48) -> pd.DataFrame:
    """Rows of a silo with many columns."""
    rng = np.random.default_rng(columns)
    label = np.arange(rows) % 2
    made = {f"{name}{i}": (rng.normal(size=rows) + 0.2 * label).round(3) for i in range(columns)}
    return pd.DataFrame({**made, "num": np.where(label, "ill", "well"), "stay": 1.0})


@pytest.mark.slow
def test_over_flower_with_hundreds_of_columns(compare):
    widths = {"north": 300, "south": 411, "east": 640}
    frames = {name: wide(name, width) for name, width in widths.items()}
    compare(frames=frames, network=PLAIN_DESCENT)
