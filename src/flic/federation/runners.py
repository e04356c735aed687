"""Who does the tasks: this process, or worker processes. Results are the same.

With stack width 1, clients work one after another.
"""

import multiprocessing
import os
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import Protocol

import torch

from flic.errors import FederationError
from flic.federation.work import Answer, Task, Workshop


class Runner(Protocol):
    """Does tasks, in order."""

    def run(self, tasks: Iterable[Task]) -> Iterator[Answer]:
        """Answers in the order of the tasks."""
        ...


class InProcess:
    """One task after another, here."""

    def __init__(self, workshop: Workshop) -> None:
        self._workshop = workshop

    def run(self, tasks: Iterable[Task]) -> Iterator[Answer]:
        """Answers in the order of the tasks."""
        return map(self._workshop.do, tasks)


class InWorkers:
    """Tasks dealt to processes that each hold the workshop."""

    def __init__(self, pool: ProcessPoolExecutor, *, workers: int) -> None:
        self._pool = pool
        self._in_flight = 2 * workers

    def run(self, tasks: Iterable[Task]) -> Iterator[Answer]:
        """Answers in the order of the tasks; few are under way at once, to bound memory."""
        pending: deque[Future[Answer]] = deque()
        try:
            for task in tasks:
                pending.append(self._pool.submit(_do, task))
                if len(pending) >= self._in_flight:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        except BrokenProcessPool as error:
            raise FederationError(
                "a worker process died before its work was done; expected an answer. It may have "
                "run out of memory: go on with --resume and fewer --workers."
            ) from error


@contextmanager
def open_runner(workshop: Workshop, *, workers: int) -> Iterator[Runner]:
    """A runner with that many processes; 1 means this process."""
    # Several threads in several processes on few cores slow each other down many times over.
    torch.set_num_threads(1)
    if workers == 1:
        yield InProcess(workshop)
        return
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, spawn, _equip, (workshop,)) as pool:
        yield InWorkers(pool, workers=workers)


_workshop: Workshop | None = None


def _equip(workshop: Workshop) -> None:
    global _workshop
    threading.Thread(target=leave_with_parent, daemon=True).start()
    torch.set_num_threads(1)
    _workshop = workshop


def leave_with_parent() -> None:
    """End this worker when the run that started it is gone, also after `kill -9`."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _do(task: Task) -> Answer:
    assert _workshop is not None
    return _workshop.do(task)
