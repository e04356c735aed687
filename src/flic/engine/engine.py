"""Engine: does the jobs of a run; every runner calls it.

A job has the names of its clients and the data that they may know. The result has their new
states, their updates and their scores. The same code runs in this process and in a worker.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from flic.data.client_data import FederatedData, Split
from flic.engine.clients import Clients
from flic.engine.score import Score
from flic.errors import Diverged, NumericalError
from flic.method_settings import MethodSettings
from flic.methods import build_method
from flic.methods.protocol import Method, ServerState, Stack, Stage, Update, Visit, VisitContext
from flic.seeding import generator
from flic.shapes import Named

EVALUATE = "evaluate"
"""Name of a job that measures instead of doing the work of a stage."""

# Finite, but so large that the next step would overflow. NaN is not below it either.
HUGE = 1e12

KEPT = "What was finished before is kept."


@dataclass(frozen=True)
class Job:
    """Work for one stack; `states` has None for clients not yet visited."""

    stage: str  # of the method, by name; or EVALUATE
    server: ServerState
    names: tuple[str, ...]
    states: Sequence[Named | None]


@dataclass(frozen=True)
class JobResult:
    """Result of a job."""

    states: Mapping[str, Named] = field(default_factory=dict)
    updates: Sequence[Update] = ()
    losses: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # client → term → value
    scores: Mapping[str, Score] = field(default_factory=dict)
    rows_drawn: Mapping[str, Sequence[int]] = field(default_factory=dict)  # client → by class


@dataclass(frozen=True)
class Engine:
    """Does any job, with the method, the clients and the seed."""

    method: Method
    clients: Clients
    seed: int

    @classmethod
    def of(
        cls,
        method: str,
        settings: MethodSettings,
        data: FederatedData,
        *,
        seed: int,
        dtype: torch.dtype = torch.float32,
    ) -> "Engine":
        """Engine for a method, by its name, and the clients of a federation."""
        clients = Clients(data, settings.embedding, dtype=dtype)
        built = build_method(method, settings, clients.population, seed=seed, dtype=dtype)
        return cls(built, clients, seed)

    def do(self, job: Job) -> JobResult:
        """Do one job."""
        if job.stage == EVALUATE:
            return JobResult(scores=self._scores(job))
        visit = self._visit(job, self.method.stages[job.stage])
        losses = _per_client(job.names, visit)
        states = self.clients.unstack(job.names, visit.stack) if visit.stack.private else {}
        drawn = visit.rows_drawn
        rows = {} if drawn is None else dict(zip(job.names, drawn.tolist(), strict=True))
        return JobResult(states, visit.updates, losses, rows_drawn=rows)

    def _scores(self, job: Job) -> dict[str, Score]:
        """Scores on validation and test rows, from one pass over both."""
        borders = {name: len(self.clients[name].validation) for name in job.names}
        return {
            name: Score.of(self.clients.data.task, own, y, border=borders[name])
            for name, (own, y) in self.predicted(job).items()
        }

    def predicted(self, job: Job) -> dict[str, tuple[Tensor, Tensor]]:
        """By client, predictions and labels of its validation rows and then its test rows."""
        data = self.clients.stacked_data(job.names)
        stack = stack_of(self.clients, self.method, job.names, job.states)
        both = [joined(c.validation, c.test) for c in data.clients]
        predicted = self.method.predict(job.server, stack, data, both)
        return {
            client.name: (own, split.y)
            for client, split, own in zip(data.clients, both, predicted, strict=True)
        }

    def _visit(self, job: Job, stage: Stage) -> Visit:
        """Do the work of a stage; a numerical error names the client."""
        data = self.clients.stacked_data(job.names)
        stack = stack_of(self.clients, self.method, job.names, job.states)
        rngs = [generator(self.seed, job.stage, job.server.round, n) for n in job.names]
        try:
            visit = stage.client_half(VisitContext(job.server, stack, data, rngs))
        except NumericalError as error:
            if len(job.names) == 1:
                raise Diverged(f"{self._where(job, job.names)}: {error} {KEPT}") from error
            for name, state in zip(job.names, job.states, strict=True):
                self._visit(replace(job, names=(name,), states=[state]), stage)
            raise
        self._refuse_diverged(job, stage, visit)
        return visit

    def _refuse_diverged(self, job: Job, stage: Stage, visit: Visit) -> None:
        """Refuse numbers out of bounds, before anything is kept or counted."""
        # Sums over rows may be of any finite size.
        most = math.inf if stage.sums else HUGE
        for update in visit.updates:
            if not update.magnitude < most:
                raise self._diverged(job, [update.client], "its version of the shared part")
        found = [(f"the {term!r} loss", values) for term, values in visit.losses.items()]
        found += [(f"the parameter {name!r}", v) for name, v in visit.stack.private.items()]
        for what, values in found:
            sound = (values.abs() < HUGE).view(len(job.names), -1).all(1)
            lost = [name for name, fine in zip(job.names, sound, strict=True) if not fine]
            if lost:
                raise self._diverged(job, lost, what)

    def _diverged(self, job: Job, names: Sequence[str], what: str) -> Diverged:
        return Diverged(
            f"{self._where(job, names)}: {what} is no longer finite or beyond 1e12. Lower "
            "training.optimiser.learning_rate or anchors.scale, or look at the client's "
            f"features. {KEPT}"
        )

    def _where(self, job: Job, names: Sequence[str]) -> str:
        who = ", ".join(repr(n) for n in names[:3]) + (" and others" if len(names) > 3 else "")
        return f"client {who}, round {job.server.round}, stage {job.stage!r}"


def stack_of(
    clients: Clients, method: Method, names: Sequence[str], states: Sequence[Named | None]
) -> Stack:
    """Private state of some clients; that of a client not yet visited is new."""
    known = [
        method.init_client(clients[name], clients.architecture(name)) if state is None else state
        for name, state in zip(names, states, strict=True)
    ]
    return clients.stack(names, known) if known[0] else Stack(clients.architecture(names[0]), {})


def joined(first: Split, second: Split) -> Split:
    """Rows of both splits, one after the other."""
    return Split(torch.cat([first.x, second.x]), torch.cat([first.y, second.y]))


def _per_client(names: Sequence[str], visit: Visit) -> dict[str, dict[str, float]]:
    return {
        name: {term: float(values[i]) for term, values in visit.losses.items()}
        for i, name in enumerate(names)
    }
