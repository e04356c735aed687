"""Methods that train networks: the server half, the steps of a run, and predictions.

The client half, and the hooks for what a method adds to it, is `flic.methods.training`.
"""

from collections.abc import Iterable, Sequence
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from flic.data.client_data import ClientData, Split
from flic.data.schema import FeatureSchema
from flic.data.stacked import StackedData, StackedRows
from flic.methods.protocol import (
    Entry,
    Exported,
    ServerState,
    Stack,
    Stage,
    Step,
    Update,
    VisitContext,
    check_update,
    gather_entries,
    trimmed_mean,
    weighted_mean,
)
from flic.methods.training import NetworkTraining
from flic.networks.head import mask_to_own_classes
from flic.seeding import generator
from flic.shapes import Named

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
        training, everyone = self.settings.training, self.population.num_clients
        if training.normalise == "active":
            return self.mean(entries)
        # The divisor of the literal (b/|A|) Σ ω_i: the average weight of so many active clients.
        whole = self.population.total_rows if training.client_weight == "rows" else everyone
        return self.mean(entries, total_weight=whole * active / everyone)

    def mean(self, entries: Sequence[Entry], *, total_weight: float | None = None) -> Tensor:
        """Mean of the holders' versions; without the extremes if `training.average` asks for it."""
        how = self.settings.training.average
        if how == "trimmed" or (how == "auto" and len(entries) >= TRIMMED_FROM):
            return trimmed_mean(entries)
        return weighted_mean(entries, total_weight=total_weight)

    # ---- the programme -------------------------------------------------------------------

    #: Stages before the preparation, each once.
    first_stages: Sequence[Stage] = ()

    @property
    def stages(self) -> dict[str, Stage]:
        joint = bool(self.joint_names())
        own = (
            Stage("prepare", self.prepare, self.aggregate, sends=joint),
            Stage("update", self.client_update, self.aggregate, who="active"),
            Stage("realign", self.realign, self.aggregate, sends=joint),
            Stage("adapt", self.adapt, self.aggregate, sends=False),
        )
        return {stage.name: stage for stage in (*self.first_stages, *own)}

    def programme(self, rounds: int, *, final_round: bool) -> list[Step]:
        """Pre-training, rounds, and a last one in which nothing is sent."""
        again = (self.stages["realign"],) if self._has_realign_stage else ()
        training = (self.stages["update"], *again)
        before = self.steps_before()
        updates = [Step("update", t, training) for t in range(1, rounds + 1)]
        last = Step("evaluate", rounds + 1, measured="always")
        if final_round:
            last = Step("adapt", rounds + 1, (self.stages["adapt"], *again), "always")
        return [*before, *updates, last]

    def steps_before(self) -> list[Step]:
        """Steps before round 1: all clients prepare, and are measured for comparison."""
        prepares = self.warms_up and self.settings.pretraining.epochs
        parts = [(self.stages["prepare"],)] * self.warm_up_parts if prepares else [()]
        work = [*((stage,) for stage in self.first_stages), *parts]
        return [
            Step("prepare", t, own, "never" if t else "when due")
            for t, own in enumerate(work, 1 - len(work))
        ]

    #: Whether the method has the whole budget in any case, as FLIC has.
    always_warms_up: ClassVar[bool] = False

    @property
    def warms_up(self) -> bool:
        """True if the method has the whole budget."""
        return self.always_warms_up or self.settings.training.baseline_budget == "equal"

    @property
    def _has_realign_stage(self) -> bool:
        again = self.settings.alignment.realign_epochs > 0 and not self.settings.embedding.frozen
        return self.warms_up and again

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
            if self.settings.model.predict_among == "held":
                outputs = data.task.num_outputs
                held = torch.zeros(len(data), outputs + 1, dtype=torch.bool)
                held.scatter_(1, data.classes.where(data.holds, outputs), value=True)
                scores = mask_to_own_classes(scores, held[:, :-1])
            scores = data.task.decode(scores)
        return [scores[i, :n] for i, n in enumerate(rows.counts)]

    def export(self, server: ServerState, client: ClientData, state: Named | None) -> Exported:
        shared = self.shared_with(client.schema, server.shared)
        private = {f"private.{name}": value for name, value in (state or {}).items()}
        return Exported("network", {**private, **{f"shared.{n}": v for n, v in shared.items()}})

    def shared_with(self, schema: FeatureSchema, shared: Named) -> Named:
        """Shared tensors that a client predicts with: all."""
        del schema
        return shared
