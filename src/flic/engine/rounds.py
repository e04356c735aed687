"""The round loop: draws clients, has them work, averages their updates, measures.

Paper: algo:FLIC-FEDREP, the outer loop. It runs the steps of any method on any runner: in this
process, in workers, or on silos over Flower. The runner reaches the clients, and handles those
that fail.
"""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch

from flic.engine.journal import Journal, Record
from flic.errors import ConfigError
from flic.method_settings import TrainingConfig
from flic.methods.protocol import ServerState, Stage, Step, Update
from flic.notation import counted
from flic.seeding import generator

Figures = Mapping[str, Mapping[str, float]]
"""Client → name → number."""


@dataclass(frozen=True)
class Schedule:
    """Schedule of a run: rounds, participation and evaluations."""

    rounds: int
    participation: float
    final_round: bool
    evaluate_every: int  # rounds between evaluations of all clients; 0 means at the end only

    @classmethod
    def of(cls, training: TrainingConfig, *, evaluate_every: int) -> "Schedule":
        """Schedule from the settings of training."""
        return cls(training.rounds, training.participation, training.final_round, evaluate_every)

    def is_due(self, step: Step) -> bool:
        """Return whether clients are measured after a step."""
        if step.measured == "when due":
            return self.evaluate_every > 0 and step.round % self.evaluate_every == 0
        return step.measured == "always"


@dataclass(frozen=True)
class Work:
    """Result of a stage: the clients' updates, their losses, and more for the record."""

    updates: Sequence[Update]
    losses: Figures
    bytes_sent: int
    facts: Record = field(default_factory=dict[str, object])


class Runner(Protocol):
    """Lets clients work: on this machine, or on silos."""

    def members(self, step: Step) -> Sequence[str]:
        """Names of the clients that can work in a step."""
        ...

    def work(self, stage: Stage, server: ServerState, names: Sequence[str]) -> Work | None:
        """Work of these clients; None if there is too little of it, and the step is repeated."""
        ...

    def count(self, stage: Stage, server: ServerState, updates: Sequence[Update]) -> ServerState:
        """The server's state after a stage with these updates."""
        ...

    def figures(self, server: ServerState) -> Figures:
        """Figures of all clients on their own held-out rows."""
        ...

    def committed(self, record: Record) -> None:
        """Called after a step is committed."""
        ...


class Rounds:
    """The steps of a run; resumes after the last step of the journal."""

    def __init__(
        self,
        programme: Sequence[Step],
        initial: ServerState,
        schedule: Schedule,
        journal: Journal,
        runner: Runner,
        *,
        seed: int,
    ) -> None:
        self.programme, self.schedule, self.seed = programme, schedule, seed
        self.journal, self.runner = journal, runner
        self._initial = initial

    def steps(self) -> Iterator[Record]:
        """Do the remaining steps; each record is committed before it is yielded."""
        while (step := next_step(self.programme, self.journal.records)) is not None:
            record = self._step(step)
            if record is not None:
                yield record

    def _step(self, step: Step) -> Record | None:
        """Do one step, from the draw to the commit; None if it must be repeated."""
        started = time.perf_counter(), time.process_time()
        server = replace(self.journal.server or self._initial, round=step.round)
        record: Record = {"stage": step.name, "round": step.round}
        members = self.runner.members(step)
        for stage in step.stages:
            names, share = members, self.schedule.participation
            if stage.who == "active":
                names = active_clients(members, share, seed=self.seed, round=step.round)
                record["active"] = names
            work = self.runner.work(stage, server, names)
            if work is None:
                return None
            record = _with_work(record, work)
            if work.updates:
                # Sorted, since sums of floating-point numbers depend on the order.
                updates = sorted(work.updates, key=lambda update: update.client)
                server = self.runner.count(stage, server, updates)
        # The count may have gone back, to start again without a client that failed.
        record["round"] = server.round
        if server.round == step.round and self.schedule.is_due(step):
            record["scores"] = self.runner.figures(server)
        record["seconds"] = time.perf_counter() - started[0]
        record["cpu_seconds"] = time.process_time() - started[1]
        self.journal.commit(server, record)
        self.runner.committed(record)
        return record


def num_active(num_clients: int, participation: float) -> int:
    """Number of active clients in a round, ⌊r b⌋.  Paper: ass."""
    # 0.29 · 100 is 28.999999999999996, but means 29.
    count = math.floor(participation * num_clients + 1e-9)
    if count < 1:
        raise ConfigError(
            f"training.participation = {participation} of {counted(num_clients, 'client')} rounds "
            f"to no client; expected at least {1 / num_clients:.3g}. Raise it or add clients."
        )
    return count


def active_clients(
    names: Sequence[str], participation: float, *, seed: int, round: int
) -> list[str]:
    """The active set A_t+1: names drawn without replacement.  Paper: algo:FLIC-FEDREP, step 2.

    The draw depends on the set of names, not on their order.
    """
    if not names:
        return []
    ordered = sorted(names)
    rng = generator(seed, "sampling", round)
    chosen = torch.randperm(len(ordered), generator=rng)[: num_active(len(names), participation)]
    return [ordered[i] for i in sorted(chosen.tolist())]


def next_step(programme: Sequence[Step], records: Sequence[Record]) -> Step | None:
    """The step after the last finished one; None at the end of the programme."""
    done = records[-1]["round"] if records else None
    return next((step for step in programme if done is None or step.round > done), None)


def _with_work(record: Record, work: Work) -> Record:
    """The record with the work of a stage; only the first stage's losses are kept."""
    if "losses" in record:
        return {**record, "bytes_sent": record["bytes_sent"] + work.bytes_sent}
    found = {"losses": _mean_terms(work.losses), "bytes_sent": work.bytes_sent}
    return record | found | work.facts


def _mean_terms(losses: Figures) -> dict[str, float]:
    """Mean of each loss term over the clients that have it."""
    terms: dict[str, list[float]] = {}
    for name in sorted(losses):
        for term, value in losses[name].items():
            terms.setdefault(term, []).append(value)
    return {term: sum(values) / len(values) for term, values in terms.items()}
