"""Jobs on a cluster: stacks of clients work on the machines of one owner.

A worker makes the engine, with the clients' rows, once and keeps it. A job brings the server's
state and the clients' own, and takes their new states and updates back, so any worker can do it.
"""

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache

import torch

from flic.engine.cluster import Cluster
from flic.engine.engine import Engine, Job, JobResult
from flic.engine.job_bytes import Packed, pack_job, pack_result, read_job, read_result
from flic.engine.runners import Jobs, in_order


@dataclass(frozen=True)
class Recipe:
    """The making of an engine on a worker: a function, which travels by its name, and its text."""

    make: Callable[[str], Engine]
    text: str


class OnCluster:
    """Does jobs on the workers of a cluster."""

    def __init__(self, engine: Engine, recipe: Recipe, cluster: Cluster) -> None:
        self.engine, self.workers = engine, cluster.workers
        self._recipe, self._cluster = recipe, cluster

    def run(self, jobs: Iterable[Job]) -> Iterator[JobResult]:
        """Results in the order of the jobs."""
        tasks = (
            self._cluster.submit(do_job, self._recipe.make, self._recipe.text, pack_job(job))
            for job in jobs
        )
        return map(read_result, in_order(tasks, in_flight=self._cluster.in_flight))


@contextmanager
def open_cluster_jobs(engine: Engine, recipe: Recipe, cluster: Cluster) -> Iterator[Jobs]:
    """Do an engine's jobs on a cluster."""
    torch.set_num_threads(1)  # of what the server does here
    yield OnCluster(engine, recipe, cluster)


def do_job(make: Callable[[str], Engine], text: str, job: Packed) -> Packed:
    """On a worker: the result of a job."""
    with _making:  # threads of one worker share the engine
        engine = _engine(make, text)
    return pack_result(engine.do(read_job(job)))


_making = threading.Lock()


@lru_cache(maxsize=2)  # two commands may share a cluster
def _engine(make: Callable[[str], Engine], text: str) -> Engine:
    return make(text)
