"""Runners on this machine: this process, or worker processes. Results agree up to rounding.

The same job gives the same bits in either. More workers make narrower stacks, whose products
may round differently. With stack width 1, clients work one after another.
"""

import multiprocessing
import os
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

import torch

from flic.engine.engine import EVALUATE, Engine, Job, JobResult
from flic.engine.journal import Journal, Record
from flic.engine.rounds import Rounds, Schedule, Work, num_active
from flic.engine.score import Score
from flic.errors import FederationError
from flic.methods.protocol import ServerState, Stage, Step, Update

Done = TypeVar("Done")
Done_co = TypeVar("Done_co", covariant=True)


class Jobs(Protocol):
    """Does jobs, in order."""

    engine: Engine
    workers: int

    def run(self, jobs: Iterable[Job]) -> Iterator[JobResult]:
        """Results in the order of the jobs."""
        ...


class InProcess:
    """Does one job after another in this process."""

    workers = 1

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def run(self, jobs: Iterable[Job]) -> Iterator[JobResult]:
        """Results in the order of the jobs."""
        return map(self.engine.do, jobs)


class LocalRunner:
    """Runs clients on this machine, stack by stack, with one stack in memory at a time."""

    def __init__(self, jobs: Jobs, journal: Journal, *, stack_width: int) -> None:
        self._jobs, self._journal, self._stack_width = jobs, journal, stack_width
        self._clients = jobs.engine.clients

    def members(self, step: Step) -> list[str]:
        """All clients."""
        del step
        return self._clients.names

    def work(self, stage: Stage, server: ServerState, names: Sequence[str]) -> Work:
        """Work of these clients; puts their new states into the journal."""
        updates: list[Update] = []
        losses: dict[str, Mapping[str, float]] = {}
        for result in self._results(stage.name, server, names):
            self._journal.put(result.states)
            updates += result.updates
            losses |= result.losses
        return Work(updates, losses, sum(update.num_bytes for update in updates))

    def count(self, stage: Stage, server: ServerState, updates: Sequence[Update]) -> ServerState:
        """The server's state after a stage with these updates."""
        return stage.server_half(server, updates)

    def figures(self, server: ServerState) -> dict[str, dict[str, float]]:
        """Figures of all clients."""
        scores: dict[str, Score] = {}
        for result in self._results(EVALUATE, server, self._clients.names):
            scores |= result.scores
        return {name: scores[name].figures() for name in sorted(scores)}

    def committed(self, record: Record) -> None:
        """Do nothing."""

    def _results(
        self, stage: str, server: ServerState, names: Sequence[str]
    ) -> Iterator[JobResult]:
        # Every worker gets a share; stacking does not change results.
        width = min(self._stack_width, -(-len(names) // self._jobs.workers))
        stacks = self._clients.split(names, stack_width=width)
        return self._jobs.run(
            Job(stage, server, stack, self._journal.states(stack)) for stack in stacks
        )


def local_rounds(jobs: Jobs, schedule: Schedule, journal: Journal, *, stack_width: int) -> Rounds:
    """The rounds of a run on this machine.

    Raises:
        ConfigError: the clients are too few for the participation.
    """
    engine = jobs.engine
    num_active(len(engine.clients.names), schedule.participation)  # fails before work starts
    programme = engine.method.programme(schedule.rounds, final_round=schedule.final_round)
    runner = LocalRunner(jobs, journal, stack_width=stack_width)
    initial = engine.method.init_server()
    return Rounds(programme, initial, schedule, journal, runner, seed=engine.seed)


class Awaited(Protocol[Done_co]):
    """Work under way somewhere else."""

    def result(self) -> Done_co:
        """Wait for the result."""
        ...


def in_order(tasks: Iterable[Awaited[Done]], *, in_flight: int) -> Iterator[Done]:
    """Results of tasks in order; few are begun at a time, to bound memory."""
    pending: deque[Awaited[Done]] = deque()
    for task in tasks:
        pending.append(task)
        if len(pending) >= in_flight:
            yield pending.popleft().result()
    while pending:
        yield pending.popleft().result()


class Workers:
    """Processes that each hold the same object, and call functions with it."""

    def __init__(self, pool: ProcessPoolExecutor, *, workers: int, advice: str) -> None:
        self._pool, self._advice = pool, advice
        self._in_flight = 2 * workers

    def do(self, function: Callable[..., Done], items: Iterable[tuple[Any, ...]]) -> Iterator[Done]:
        """function(held, *item) of every item, in order."""
        tasks = (self._pool.submit(_do, function, item) for item in items)
        try:
            yield from in_order(tasks, in_flight=self._in_flight)
        except BrokenProcessPool as error:
            raise FederationError(
                "a worker process died before its work was done; expected an answer. It may have "
                f"run out of memory: {self._advice}."
            ) from error


@contextmanager
def open_workers(held: object, *, workers: int, advice: str) -> Generator[Workers]:
    """Start worker processes; `advice` is what to do if one of them dies."""
    spawn, before = multiprocessing.get_context("spawn"), {*multiprocessing.active_children()}
    with ProcessPoolExecutor(workers, spawn, _equip, (held,)) as pool:
        try:
            yield Workers(pool, workers=workers, advice=advice)
        except FederationError:
            # The pool would wait for ever for a process that was starting when another died.
            for process in {*multiprocessing.active_children()} - before:
                process.kill()
            raise


class InWorkers:
    """Does jobs in processes that each hold the engine."""

    def __init__(self, engine: Engine, opened: Workers, workers: int) -> None:
        self.engine, self.workers = engine, workers
        self._opened = opened

    def run(self, jobs: Iterable[Job]) -> Iterator[JobResult]:
        """Results in the order of the jobs."""
        return self._opened.do(Engine.do, ((job,) for job in jobs))


@contextmanager
def one_thread() -> Generator[None]:
    """Use one thread inside the block, so that results do not depend on the number of threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def open_jobs(engine: Engine, *, workers: int) -> Iterator[Jobs]:
    """Open a number of processes for an engine's jobs; 1 means this process."""
    # Several threads in several processes on few cores slow each other down a lot.
    torch.set_num_threads(1)
    if workers == 1:
        yield InProcess(engine)
        return
    advice = "go on with --resume and fewer --workers"
    with open_workers(engine, workers=workers, advice=advice) as opened:
        yield InWorkers(engine, opened, workers)


_held: object = None


def _equip(held: object) -> None:
    global _held
    threading.Thread(target=leave_with_parent, daemon=True).start()
    torch.set_num_threads(1)
    _held = held


def leave_with_parent() -> None:
    """End this worker when the process that started it ends, even by `kill -9`."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _do(function: Callable[..., Done], item: tuple[Any, ...]) -> Done:
    return function(_held, *item)
