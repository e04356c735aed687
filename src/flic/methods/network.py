"""Common part of all methods that train networks, with the plain training of g_θ ∘ φ.

One visit: start from the shared part, descend on the private part, descend on the shared part,
send it. A method adds its own loss terms and shared tensors through the hooks at the end.
"""

from collections.abc import Iterable, Sequence
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from flic.data.client_data import ClientData, Split
from flic.data.stacked import StackedData, StackedRows
from flic.method_settings import Duration
from flic.methods.protocol import (
    Entry,
    ServerState,
    Stack,
    Stage,
    Step,
    Update,
    Visit,
    VisitContext,
    check_update,
    gather_entries,
    trimmed_mean,
    weighted_mean,
)
from flic.methods.training import NetworkTraining
from flic.networks.base import Embedding
from flic.networks.head import mask_to_own_classes
from flic.seeding import generator

TRIMMED_FROM = 5
"""Least number of holders for which `training.average = "auto"` leaves out extremes."""


class NetworkMethod(NetworkTraining):
    """Training of g_θ ∘ φ with a personalisation rule; subclasses add what else they share."""

    # ---- the server half -----------------------------------------------------------------

    def init_server(self) -> ServerState:
        theta = self.model.init(rng=generator(self.seed, "server", "model"), dtype=self.dtype)
        return ServerState(0, {n: theta[n] for n in theta if n in self.shared_names})

    def aggregate(self, server: ServerState, updates: Iterable[Update]) -> ServerState:
        """Each name averaged over its holders.  Paper: algo:FLIC-FEDREP, steps 19-20."""
        updates = list(updates)
        for update in updates:
            check_update(server, update, self.fixed)
        shared = dict(server.shared)
        for name, entries in gather_entries(updates).items():
            shared[name] = self.average(name, entries, active=len(updates))
        return ServerState(server.round, shared)

    def average(self, name: str, entries: Sequence[Entry], *, active: int) -> Tensor:
        """New shared value of one name from its holders' versions."""
        del name
        return self.mean(entries, total_weight=self._total_weight(active))

    def mean(self, entries: Sequence[Entry], *, total_weight: float | None = None) -> Tensor:
        """Mean of the holders' versions; without the extremes if `training.average` asks for it."""
        how = self.settings.training.average
        if how == "trimmed" or (how == "auto" and len(entries) >= TRIMMED_FROM):
            return trimmed_mean(entries)
        return weighted_mean(entries, total_weight=total_weight)

    def _total_weight(self, active: int) -> float | None:
        """Average weight of so many active clients, the divisor in the literal (b/|A|) Σ ω_i."""
        if self.settings.training.normalise == "active":
            return None
        everyone = self.population.num_clients
        by_rows = self.settings.training.client_weight == "rows"
        return (self.population.total_rows if by_rows else everyone) * active / everyone

    # ---- the client half -----------------------------------------------------------------

    def init_client(self, client: ClientData, embedding: Embedding) -> dict[str, Tensor]:
        rng = generator(self.seed, "client", client.name, "init")
        phi = embedding.init(client.schema.dim, rng=rng, dtype=self.dtype)
        theta = self.model.init(rng=rng, dtype=self.dtype)
        return phi | {n: theta[n] for n in theta if n in self.personal_names}

    @property
    def stages(self) -> tuple[Stage, ...]:
        joint = bool(self.joint_names())
        return (
            Stage("prepare", self.prepare, self.aggregate, sends=joint),
            Stage("update", self.client_update, self.aggregate, who="active"),
            Stage("realign", self.realign, self.aggregate, sends=joint),
            Stage("adapt", self.adapt, self.aggregate, sends=False),
        )

    def programme(self, rounds: int, *, final_round: bool) -> list[Step]:
        """Pre-training, rounds, and a last one in which nothing is sent."""
        again = (self.stage("realign"),) if self._realigns else ()
        training = (self.stage("update"), *again)
        before = self.steps_before()
        updates = [Step("update", t, training) for t in range(1, rounds + 1)]
        last = Step("evaluate", rounds + 1, measured="always")
        if final_round:
            last = Step("adapt", rounds + 1, (self.stage("adapt"), *again), "always")
        return [*before, *updates, last]

    def steps_before(self) -> list[Step]:
        """Steps before round 1: all clients prepare, and are measured for comparison."""
        if not (self.warms_up and self.settings.pretraining.epochs):
            return [Step("prepare", 0)]
        numbers = range(1 - self.warm_up_parts, 1)
        prepare = (self.stage("prepare"),)
        return [Step("prepare", t, prepare, "never" if t else "when due") for t in numbers]

    #: Number of parts of the preparation, with an average after each.
    warm_up_parts = 1

    #: Whether the method has the whole budget in any case, as FLIC has.
    always_warms_up: ClassVar[bool] = False

    #: Whether every step of the shared phase sees all rows of a client.
    anchors_see_all_rows = False

    @property
    def warms_up(self) -> bool:
        """Whether the method has the whole budget."""
        return self.always_warms_up or self.settings.training.baseline_budget == "equal"

    @property
    def _realigns(self) -> bool:
        again = self.settings.alignment.realign_epochs > 0 and not self.settings.embedding.frozen
        return self.warms_up and again

    def prepare(self, context: VisitContext) -> Visit:
        """Plain training for the epochs FLIC spends on pre-training φ, for an equal budget."""
        epochs, parts = self.settings.pretraining.epochs, self.warm_up_parts
        done = context.server.round + parts - 1
        share = epochs * (done + 1) // parts - epochs * done // parts
        return self._warm_up(context, share)

    def realign(self, context: VisitContext) -> Visit:
        """Plain training for the epochs FLIC spends on re-alignment, for an equal budget."""
        return self._warm_up(context, self.settings.alignment.realign_epochs)

    def _warm_up(self, context: VisitContext, epochs: int) -> Visit:
        plan = self.plan(context, Duration(epochs=epochs), self.settings.pretraining.batch_size)
        shared = self.each_shared(context)
        private, shared, losses = self.train_private(context, plan, shared, frozen=False)
        updates = self.updates(context, private, shared) if self.joint_names() else []
        return Visit(Stack(context.stack.embedding, private), updates, losses)

    def client_update(self, context: VisitContext) -> Visit:
        """One round of an active client.  Paper: algo:FLIC-FEDREP, steps 4-16."""
        local, after = self.durations(context.server.round)
        plan = self.plan(context, local, self.settings.training.batch_size)
        private, shared, losses = self.train_private(context, plan, self.each_shared(context))
        plan = self.plan(
            context, after, self.settings.training.batch_size, whole=self.anchors_see_all_rows
        )
        shared = self.train_shared(context, plan, private, shared)
        updates = self.updates(context, private, shared)
        return Visit(Stack(context.stack.embedding, private), updates, losses)

    def adapt(self, context: VisitContext) -> Visit:
        """Local parameters trained once more from the final shared part; nothing leaves."""
        plan = self.plan(context, self.settings.training.local, self.settings.training.batch_size)
        shared = self.each_shared(context)
        private, _, losses = self.train_private(context, plan, shared, jointly=False)
        return Visit(Stack(context.stack.embedding, private), [], losses)

    def predict(
        self, server: ServerState, stack: Stack, data: StackedData, splits: Sequence[Split]
    ) -> list[Float[Tensor, "rows outputs"]]:
        context = VisitContext(server, stack, data, ())
        rows = StackedRows.of(splits, width=data.width, dtype=self.dtype)
        with torch.no_grad():
            shared = self.each_shared(context)
            phi = self.phi(context, stack.private, shared)
            latent = stack.embedding.apply(phi, rows.x, rows=rows.counts)
            scores = self.score(context, stack.private, shared, latent)
            outputs = data.task.num_outputs
            held = torch.zeros(len(data), outputs + 1, dtype=torch.bool)
            held.scatter_(1, data.classes.where(data.holds, outputs), value=True)
            scores = data.task.decode(mask_to_own_classes(scores, held[:, :-1]))
        return [scores[i, :n] for i, n in enumerate(rows.counts)]
