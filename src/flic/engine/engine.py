"""One stack's work in one stage: the function that every runner calls.

A task names its clients and carries what they may know; the answer carries what they keep, what
they send and what they measured. In process or in a worker, the same code runs.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor

from flic.data.client_data import Split
from flic.engine.clients import Clients
from flic.engine.score import Score
from flic.errors import Diverged, NumericalError
from flic.methods.protocol import Algorithm, ServerState, Stack, Update, Visit
from flic.seeding import generator
from flic.shapes import Named

Stage = Literal["prepare", "update", "realign", "adapt", "evaluate"]

Work = Callable[..., Visit]
"""A stage of an algorithm: (server, stack, data, *, rngs) → visit."""

# Finite, but far beyond any use: the next step would overflow. NaN is not below it either.
HUGE = 1e12

KEPT = "What was finished before is kept."


@dataclass(frozen=True)
class Job:
    """Work for one stack; `states` holds None for clients not yet visited."""

    stage: Stage
    server: ServerState
    names: tuple[str, ...]
    states: Sequence[Named | None]


@dataclass(frozen=True)
class JobResult:
    """What came of a task."""

    states: Mapping[str, Named] = field(default_factory=dict)
    updates: Sequence[Update] = ()
    losses: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # client → term → value
    scores: Mapping[str, Score] = field(default_factory=dict)


@dataclass(frozen=True)
class Engine:
    """What is needed to do any task: the method, the clients and the seed."""

    algorithm: Algorithm
    roster: Clients
    seed: int

    def do(self, task: Job) -> JobResult:
        """Carry out one task."""
        if task.stage == "evaluate":
            return JobResult(scores=self._scores(task))
        work = {
            "prepare": self.algorithm.prepare,
            "update": self.algorithm.client_update,
            "realign": self.algorithm.realign,
            "adapt": self.algorithm.adapt,
        }[task.stage]
        visit = self._visit(task, work)
        losses = _per_client(task.names, visit)
        states = self.roster.unstack(task.names, visit.stack) if visit.stack.private else {}
        return JobResult(states, visit.updates, losses)

    def _stack(self, task: Job) -> Stack:
        states = [
            self._initial(name) if state is None else state
            for name, state in zip(task.names, task.states, strict=True)
        ]
        if not states[0]:
            return Stack(self.roster.architecture(task.names[0]), {})
        return self.roster.stack(task.names, states)

    def _initial(self, name: str) -> dict[str, Tensor]:
        return self.algorithm.init_client(self.roster[name], self.roster.architecture(name))

    def _scores(self, task: Job) -> dict[str, Score]:
        """Scores on validation and test rows, from one pass over both."""
        data, stack = self.roster.stacked_data(task.names), self._stack(task)
        both = [joined(c.validation, c.test) for c in data.clients]
        predicted = self.algorithm.predict(task.server, stack, data, both)
        return {
            client.name: Score.of(data.task, own, split.y, border=len(client.validation))
            for client, split, own in zip(data.clients, both, predicted, strict=True)
        }

    def _visit(self, task: Job, work: Work) -> Visit:
        """Do the work; where numbers break down, say at which client."""
        data, stack = self.roster.stacked_data(task.names), self._stack(task)
        rngs = [generator(self.seed, task.stage, task.server.round, n) for n in task.names]
        try:
            visit = work(task.server, stack, data, rngs=rngs)
        except NumericalError as error:
            if len(task.names) == 1:
                raise Diverged(f"{self._where(task, task.names)}: {error} {KEPT}") from error
            for name, state in zip(task.names, task.states, strict=True):
                self._visit(replace(task, names=(name,), states=[state]), work)
            raise
        self._refuse_diverged(task, visit)
        return visit

    def _refuse_diverged(self, task: Job, visit: Visit) -> None:
        """Numbers out of all bounds stop the run before anything is kept or counted."""
        # Sums over rows may be as large as the rows make them, as long as they are finite.
        most = math.inf if self.algorithm.closed_form else HUGE
        for update in visit.updates:
            if not update.magnitude < most:
                raise self._diverged(task, [update.client], "its version of the shared part")
        found = [(f"the {term!r} loss", values) for term, values in visit.losses.items()]
        found += [(f"the parameter {name!r}", v) for name, v in visit.stack.private.items()]
        for what, values in found:
            sound = (values.abs() < HUGE).view(len(task.names), -1).all(1)
            lost = [name for name, fine in zip(task.names, sound, strict=True) if not fine]
            if lost:
                raise self._diverged(task, lost, what)

    def _diverged(self, task: Job, names: Sequence[str], what: str) -> Diverged:
        return Diverged(
            f"{self._where(task, names)}: {what} is no longer finite or beyond 1e12. Lower "
            "training.optimiser.learning_rate or anchors.scale, or look at the client's "
            f"features. {KEPT}"
        )

    def _where(self, task: Job, names: Sequence[str]) -> str:
        who = ", ".join(repr(n) for n in names[:3]) + (" and others" if len(names) > 3 else "")
        return f"client {who}, round {task.server.round}, stage {task.stage!r}"


def joined(first: Split, second: Split) -> Split:
    """Rows of both splits, one after the other."""
    return Split(torch.cat([first.x, second.x]), torch.cat([first.y, second.y]))


def _per_client(names: Sequence[str], visit: Visit) -> dict[str, dict[str, float]]:
    return {
        name: {term: float(values[i]) for term, values in visit.losses.items()}
        for i, name in enumerate(names)
    }
