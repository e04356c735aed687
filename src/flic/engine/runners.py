"""Who does the tasks: this process, or worker processes. Results agree but for rounding.

The same task gives the same bits in either; more workers make narrower stacks, whose products
may round otherwise. With stack width 1, clients work one after another.
"""

import multiprocessing
import os
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

import torch

from flic.engine.engine import Engine, Job, JobResult
from flic.errors import FederationError

Done = TypeVar("Done")


class Runner(Protocol):
    """Does tasks, in order."""

    def run(self, tasks: Iterable[Job]) -> Iterator[JobResult]:
        """Answers in the order of the tasks."""
        ...


class InProcess:
    """One task after another, here."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def run(self, tasks: Iterable[Job]) -> Iterator[JobResult]:
        """Answers in the order of the tasks."""
        return map(self._engine.do, tasks)


class Workers:
    """Processes that each hold the same thing, and do with it what they are told."""

    def __init__(self, pool: ProcessPoolExecutor, *, workers: int, advice: str) -> None:
        self._pool, self._advice = pool, advice
        self._in_flight = 2 * workers

    def do(self, function: Callable[..., Done], items: Iterable[tuple[Any, ...]]) -> Iterator[Done]:
        """function(held, *item) of every item, in order; few are under way, to bound memory."""
        pending: deque[Future[Done]] = deque()
        try:
            for item in items:
                pending.append(self._pool.submit(_do, function, item))
                if len(pending) >= self._in_flight:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        except BrokenProcessPool as error:
            raise FederationError(
                "a worker process died before its work was done; expected an answer. It may have "
                f"run out of memory: {self._advice}."
            ) from error


@contextmanager
def open_workers(held: object, *, workers: int, advice: str) -> Generator[Workers]:
    """That many processes; `advice` is what to do if one of them dies."""
    spawn, before = multiprocessing.get_context("spawn"), {*multiprocessing.active_children()}
    with ProcessPoolExecutor(workers, spawn, _equip, (held,)) as pool:
        try:
            yield Workers(pool, workers=workers, advice=advice)
        except FederationError:
            # The pool waits for ever for one that was being started when another died.
            for process in {*multiprocessing.active_children()} - before:
                process.kill()
            raise


class InWorkers:
    """Tasks dealt to processes that each hold the engine."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers

    def run(self, tasks: Iterable[Job]) -> Iterator[JobResult]:
        """Answers in the order of the tasks."""
        return self._workers.do(Engine.do, ((task,) for task in tasks))


@contextmanager
def one_thread() -> Generator[None]:
    """One thread for as long as it takes, so that results do not depend on how many there are."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def open_runner(engine: Engine, *, workers: int) -> Iterator[Runner]:
    """A runner with that many processes; 1 means this process."""
    # Several threads in several processes on few cores slow each other down many times over.
    torch.set_num_threads(1)
    if workers == 1:
        yield InProcess(engine)
        return
    advice = "go on with --resume and fewer --workers"
    with open_workers(engine, workers=workers, advice=advice) as opened:
        yield InWorkers(opened)


_held: object = None


def _equip(held: object) -> None:
    global _held
    threading.Thread(target=leave_with_parent, daemon=True).start()
    torch.set_num_threads(1)
    _held = held


def leave_with_parent() -> None:
    """End this worker when the run that started it is gone, also after `kill -9`."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _do(function: Callable[..., Done], item: tuple[Any, ...]) -> Done:
    return function(_held, *item)
