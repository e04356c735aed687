"""Client half of all methods that train networks: the plain training of g_θ ∘ φ in one visit.

Paper: algo:FLIC-FEDREP, steps 4-16. One visit: start from the shared part, descend on the private
part, descend on the shared part, send it. Methods add loss terms and shared tensors through the
hooks at the end; `flic.methods.network` has the server half.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from flic.data.batches import Batch, BatchPlan
from flic.data.client_data import ClientData
from flic.data.stacked import StackedData
from flic.method_settings import Duration, MethodSettings
from flic.methods.protocol import (
    Entry,
    Method,
    Population,
    Stack,
    Update,
    Visit,
    VisitContext,
)
from flic.networks.base import Embedding
from flic.networks.descent import Losses, LossFn, descend
from flic.networks.head import data_loss
from flic.networks.sharing import SplitModel, personalisation
from flic.seeding import generator
from flic.shapes import Named, under


@dataclass(frozen=True)
class LossInputs:
    """Everything that the loss of one batch can read, of the clients that still work."""

    context: VisitContext
    private: Named
    shared: Named
    theta: Named  # of g
    latent: Float[Tensor, "clients rows k"]  # φ of the batch
    batch: Batch


class NetworkTraining(Method):
    """Visits to clients that train networks with a personalisation rule."""

    #: Whether the network has a hidden layer; None leaves it to `model.hidden_layer`.
    hidden_layer: ClassVar[bool | None] = None

    #: The personalisation rule; None leaves it to `training.personalisation`.
    rule_name: ClassVar[str | None] = None

    #: Number of parts of the preparation, with an average after each.
    warm_up_parts = 1

    #: Whether every step of the shared phase sees all rows of a client.
    anchors_see_all_rows = False

    def __init__(
        self, settings: MethodSettings, population: Population, *, seed: int, dtype: torch.dtype
    ) -> None:
        self.settings = settings
        self.population = population
        self.seed = seed
        self.dtype = dtype
        rule = personalisation(self.rule_name or settings.training.personalisation)
        self.rule = rule.with_settings(settings.training)
        has_hidden = settings.model.hidden_layer if self.hidden_layer is None else self.hidden_layer
        self.model = SplitModel(
            settings.embedding.latent_dim,
            settings.model.hidden_dim if has_hidden else None,
            population.task.num_outputs,
        )
        names = self.model.init(rng=torch.Generator(), dtype=dtype).keys()
        self.shared_names = self.rule.shared_names(names)
        self.personal_names = self.rule.personal_names(names)

    # ---- the client half -----------------------------------------------------------------

    def init_client(self, client: ClientData, embedding: Embedding) -> dict[str, Tensor]:
        rng = generator(self.seed, "client", client.name, "init")
        phi = embedding.init(client.schema.dim, rng=rng, dtype=self.dtype)
        theta = self.model.init(rng=rng, dtype=self.dtype)
        return phi | {n: theta[n] for n in theta if n in self.personal_names}

    def prepare(self, context: VisitContext) -> Visit:
        """The warm-up before round 1, or this part of it."""
        epochs, parts = self.settings.pretraining.epochs, self.warm_up_parts
        done = context.server.round + parts - 1
        share = epochs * (done + 1) // parts - epochs * done // parts
        return self.warm_up(context, share)

    def realign(self, context: VisitContext) -> Visit:
        """The warm-up again after a round, as in the authors' program."""
        return self.warm_up(context, self.settings.alignment.realign_epochs)

    def warm_up(self, context: VisitContext, epochs: int) -> Visit:
        """Plain training for the epochs that FLIC spends on aligning φ, for an equal budget."""
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
        whole = self.settings.training.shared_sees_all_rows or self.anchors_see_all_rows
        last = self.plan(context, after, self.settings.training.batch_size, whole=whole)
        shared = self.train_shared(context, last, private, shared)
        updates = self.updates(context, private, shared)
        return Visit(Stack(context.stack.embedding, private), updates, losses, plan.rows_drawn)

    def adapt(self, context: VisitContext) -> Visit:
        """Local parameters trained once more from the final shared part; nothing leaves."""
        plan = self.plan(context, self.settings.training.local, self.settings.training.batch_size)
        shared = self.each_shared(context)
        private, _, losses = self.train_private(context, plan, shared, jointly=False)
        return Visit(Stack(context.stack.embedding, private), [], losses, plan.rows_drawn)

    # ---- parts of a visit ----------------------------------------------------------------

    def durations(self, round: int) -> tuple[Duration, Duration]:
        """Lengths of the local and of the shared phase in a round."""
        training = self.settings.training
        nothing = Duration(steps=0)
        if not self.apart_names() or 0 < round <= training.shared_from_round:
            return self._all_local(), nothing
        if training.shared_schedule == "after":
            return training.local, training.shared
        return training.local.less(training.shared), training.shared

    def _all_local(self) -> Duration:
        """Length of local work if nothing is trained apart: the shared phase's epochs are added."""
        training = self.settings.training
        local, shared = training.local, training.shared
        if training.shared_schedule == "last":
            return local
        return local.plus(shared)

    def plan(
        self, context: VisitContext, duration: Duration, batch_size: int, *, whole: bool = False
    ) -> BatchPlan:
        """Batches of one phase; with `whole`, each has all rows."""
        data, least = self.batched(context), self.settings.training.min_steps_per_epoch
        return BatchPlan(
            data, duration, batch_size=batch_size, rngs=context.rngs, least=least, whole=whole
        )

    def batched(self, context: VisitContext) -> StackedData:
        """The stack for drawing batches."""
        return context.data

    def each_shared(self, context: VisitContext) -> dict[str, Tensor]:
        """Shared part of θ, a copy per client."""
        return context.each({n: context.server.shared[n] for n in sorted(self.shared_names)})

    def start(self, context: VisitContext) -> dict[str, Tensor]:
        """Private parameters at the start of a visit."""
        private, shared = dict(context.stack.private), self.each_shared(context)
        personal = {n: private[n] for n in self.personal_names}
        alpha = {n: shared[n] for n in self.shared_names}
        return private | dict(self.rule.begin(alpha, personal))

    def theta(self, private: Named, shared: Named) -> dict[str, Tensor]:
        """θ_i of the local models.  Paper: table:perso_algo."""
        personal = {n: private[n] for n in self.personal_names}
        return self.rule.compose({n: shared[n] for n in self.shared_names}, personal)

    def phi(self, context: VisitContext, private: Named, shared: Named) -> Named:
        """Parameters of φ_i."""
        del context, shared
        return private

    def train_private(
        self,
        context: VisitContext,
        plan: BatchPlan,
        shared: Named,
        *,
        jointly: bool = True,
        frozen: bool | None = None,
    ) -> tuple[dict[str, Tensor], dict[str, Tensor], Losses]:
        """Private parameters after the local steps.  Paper: algo:FLIC-FEDREP, steps 6-11.

        Also returns the shared copies, since some methods train part of them jointly. With
        `frozen` φ stays as it is; None leaves that to `embedding.frozen`.
        """
        private = self.start(context)
        frozen = self.settings.embedding.frozen if frozen is None else frozen
        fixed = under("embedding.", private) if frozen else {}
        moving = {name: value for name, value in private.items() if name not in fixed}
        names = sorted(self.joint_names() & shared.keys()) if jointly else []
        joint = {name: shared[name] for name in names}

        def losses(parameters: Named, step: int, count: int) -> Losses:
            batch = plan.batch(step)
            own = {name: value[:count] for name, value in shared.items()}
            own |= {name: parameters[name] for name in joint}
            still = {name: value[:count] for name, value in fixed.items()}
            masks = self.masks(context, batch)
            return self.terms(context, {**still, **parameters}, own, batch, masks)

        if not len(plan):
            return private, dict(shared), {}
        trained, terms = self._descend({**moving, **joint}, losses, plan)
        joint = {name: trained.pop(name) for name in joint}
        return {**fixed, **trained}, {**shared, **joint}, terms

    def train_shared(
        self, context: VisitContext, plan: BatchPlan, private: Named, shared: Named
    ) -> dict[str, Tensor]:
        """Each client's version of the shared part.  Paper: algo:FLIC-FEDREP, steps 13-14."""
        apart = {name: shared[name] for name in sorted(self.apart_names())}

        def losses(parameters: Named, step: int, count: int) -> Losses:
            batch = plan.batch(step)
            own = {name: value[:count] for name, value in private.items()}
            copies = {name: value[:count] for name, value in shared.items()}
            return self.terms(context, own, copies | dict(parameters), batch, ())

        if not len(plan):
            return dict(shared)
        trained, _ = self._descend(apart, losses, plan)
        return {**shared, **trained}

    def terms(
        self,
        context: VisitContext,
        private: Named,
        shared: Named,
        batch: Batch,
        masks: Sequence[Tensor],
    ) -> Losses:
        """F_i term by term.  Paper: eq:PFL_ERM_reg."""
        phi = self.phi(context, private, shared)
        latent = context.stack.embedding.apply(phi, batch.x, masks=masks, rows=batch.row_counts)
        theta = self.theta(private, shared)
        terms = {"data": data_loss(self.model.apply(theta, latent), batch)}
        return terms | self.extra_terms(LossInputs(context, private, shared, theta, latent, batch))

    def masks(self, context: VisitContext, batch: Batch) -> Sequence[Tensor]:
        """Dropout factors of the working clients."""
        if not context.stack.embedding.dropout:
            return ()
        rows = batch.row_counts
        rngs = context.rngs[: len(rows)]
        masks = context.stack.embedding.draw_masks(rows, rngs, dtype=self.dtype)
        padding = batch.x.shape[1] - max(rows)
        return [torch.nn.functional.pad(mask, (0, 0, 0, padding)) for mask in masks]

    def _descend(
        self, parameters: Named, losses: LossFn, plan: BatchPlan
    ) -> tuple[dict[str, Tensor], Losses]:
        training = self.settings.training
        theta = self.shared_names | self.personal_names
        decay = {n: training.model_weight_decay for n in parameters if n in theta}
        return descend(
            parameters, losses, plan.working, optimiser=training.optimiser, weight_decay=decay
        )

    def updates(self, context: VisitContext, private: Named, shared: Named) -> list[Update]:
        """The update of each client of the stack.  Paper: algo:FLIC-FEDREP, step 16."""
        return [
            Update(client.name, self.entries(context, i, private, shared))
            for i, client in enumerate(context.data.clients)
        ]

    def client_weight(self, rows: int) -> float:
        """ω_i before it is normalised."""
        return float(rows) if self.settings.training.client_weight == "rows" else 1.0

    # ---- hooks ---------------------------------------------------------------------------

    def joint_names(self) -> set[str]:
        """Shared copies that are trained together with the private part."""
        return set()

    def apart_names(self) -> set[str]:
        """Shared copies that a phase of their own trains after the local steps."""
        return set(self.shared_names) if self.rule.has_shared_phase else set()

    def score(self, context: VisitContext, private: Named, shared: Named, latent: Tensor) -> Tensor:
        """Class scores, or encoded responses, of embedded rows."""
        del context
        return self.model.apply(self.theta(private, shared), latent)

    def extra_terms(self, inputs: LossInputs) -> Losses:
        """Loss terms beside the data loss."""
        del inputs
        return {}

    def entries(
        self, context: VisitContext, client: int, private: Named, shared: Named
    ) -> dict[str, Entry]:
        """Tensors that one client of the stack sends: its version of α."""
        personal = {n: private[n] for n in self.personal_names}
        theta = self.rule.upload({n: shared[n] for n in self.shared_names}, personal)
        weight = self.client_weight(len(context.data.clients[client].train))
        return {n: Entry(theta[n][client].clone(), weight) for n in sorted(self.shared_names)}
