"""The round loop: who works when, what is averaged, what is measured.

Paper: algo:FLIC-FEDREP, the outer loop. Only the clients of one stack are in memory at once, and
the cost of a round depends on the active clients alone.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from flic.engine.engine import Engine, Job, JobResult, Stage
from flic.engine.journal import Journal, Record
from flic.engine.runners import Runner
from flic.engine.sampling import active_clients, num_active
from flic.engine.score import Score
from flic.methods.protocol import ServerState, Update


@dataclass(frozen=True)
class Schedule:
    """When a run works, measures and ends."""

    rounds: int
    participation: float
    final_round: bool
    evaluate_every: int  # rounds between evaluations of all clients; 0 means at the end only
    stack_width: int
    workers: int = 1


class Simulation:
    """A federation in one place, step by step; a fresh one goes on where the journal ends."""

    def __init__(
        self, engine: Engine, schedule: Schedule, journal: Journal, runner: Runner
    ) -> None:
        self.engine = engine
        self.schedule = schedule
        self.journal = journal
        self.runner = runner
        num_active(len(engine.roster.names), schedule.participation)  # refuse before work starts

    def steps(self) -> Iterator[Record]:
        """Records of the steps still to be done, each committed before it is yielded."""
        done = len(self.journal.records)
        for position, (stage, round) in enumerate(self._programme()):
            if position >= done:
                yield self._step(stage, round)

    def num_steps(self) -> int:
        """Number of steps of the whole run."""
        return len(self._programme())

    def _programme(self) -> list[tuple[Stage, int]]:
        if not self.engine.algorithm.has_rounds:
            return [("evaluate", 0)]
        closed = self.engine.algorithm.closed_form
        rounds = 0 if closed else self.schedule.rounds
        updates: list[tuple[Stage, int]] = [("update", t) for t in range(1, rounds + 1)]
        last: Stage = "adapt" if self.schedule.final_round and not closed else "evaluate"
        first = 1 - max(1, self.engine.algorithm.preparations)
        before: list[tuple[Stage, int]] = [("prepare", t) for t in range(first, 1)]
        return [*before, *updates, (last, rounds + 1)]

    def _step(self, stage: Stage, round: int) -> Record:
        started = time.perf_counter(), time.process_time()
        algorithm, everyone = self.engine.algorithm, self.engine.roster.names
        server = replace(self.journal.server or algorithm.init_server(), round=round)
        record: Record = {"stage": stage, "round": round}
        if stage == "update":
            record["active"] = self._draw(round)
        if stage in ("update", "adapt") or (stage == "prepare" and algorithm.preparations):
            server, work = self._work(stage, server, record.get("active", everyone))
            record |= work
        if stage in ("update", "adapt") and algorithm.realigns:
            server, again = self._work("realign", server, everyone)
            record["bytes_sent"] += again["bytes_sent"]
        if self._is_measured(stage, round):
            record["scores"] = self._measure(server)
        record["seconds"] = time.perf_counter() - started[0]
        record["cpu_seconds"] = time.process_time() - started[1]
        self.journal.commit(server, record)
        return record

    def _draw(self, round: int) -> list[str]:
        roster, seed = self.engine.roster, self.engine.seed
        return active_clients(roster.names, self.schedule.participation, seed=seed, round=round)

    def _work(
        self, stage: Stage, server: ServerState, names: Sequence[str]
    ) -> tuple[ServerState, Record]:
        """Server state and losses after the named clients did their work."""
        updates: list[Update] = []
        losses: dict[str, Mapping[str, float]] = {}
        for answer in self._answers(stage, server, names):
            self.journal.put(answer.states)
            updates += answer.updates
            losses |= answer.losses
        sent = sum(update.num_bytes for update in updates)
        if updates:
            # A fixed order: sums of floating-point numbers depend on it, results must not.
            updates.sort(key=lambda update: update.client)
            server = self.engine.algorithm.aggregate(server, updates)
        return server, {"losses": _mean_terms(losses), "bytes_sent": sent}

    def _measure(self, server: ServerState) -> dict[str, dict[str, float]]:
        """Scores of every client on its own held-out rows."""
        scores: dict[str, Score] = {}
        for answer in self._answers("evaluate", server, self.engine.roster.names):
            scores |= answer.scores
        return {name: scores[name].figures() for name in sorted(scores)}

    def _is_measured(self, stage: Stage, round: int) -> bool:
        if stage in ("adapt", "evaluate"):
            return True
        # Nothing comes between the preparations of a closed form and its end.
        every = 0 if self.engine.algorithm.closed_form else self.schedule.evaluate_every
        return every > 0 and round >= 0 and round % every == 0

    def _answers(
        self, stage: Stage, server: ServerState, names: Sequence[str]
    ) -> Iterator[JobResult]:
        # Every worker gets a share; no result depends on how clients are stacked.
        width = min(self.schedule.stack_width, -(-len(names) // self.schedule.workers))
        stacks = self.engine.roster.split(names, stack_width=width)
        return self.runner.run(
            Job(stage, server, stack, self.journal.states(stack)) for stack in stacks
        )


def _mean_terms(losses: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Mean of each loss term over the clients that have it."""
    terms: dict[str, list[float]] = {}
    for name in sorted(losses):
        for term, value in losses[name].items():
            terms.setdefault(term, []).append(value)
    return {term: sum(values) / len(values) for term, values in terms.items()}
