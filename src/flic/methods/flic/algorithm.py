"""FLIC: Algorithm 1 on top of a personalisation rule.

Paper: algo:FLIC-FEDREP, algo:FLIC-FEDREP_supp; the objective is eq:PFL_ERM_reg. The scheme
(scheme.py) decides what anchors stand for; `NetworkMethod` does the plain training of g_θ ∘ φ.
"""

from collections.abc import Sequence
from functools import partial

import torch
from jaxtyping import Int
from torch import Tensor

from flic.data.batches import BatchPlan
from flic.data.stacked import StackedData
from flic.method_settings import Duration, MethodSettings
from flic.methods.flic.covariance import FACTOR
from flic.methods.flic.meta import ByMetaClass
from flic.methods.flic.response import ByResponse
from flic.methods.flic.scheme import AnchorScheme, ByClass
from flic.methods.flic.targets import alignment_loss
from flic.methods.network import NetworkMethod
from flic.methods.protocol import Entry, Population, ServerState, Stack, Visit, VisitContext
from flic.methods.training import LossInputs
from flic.networks.descent import Losses, descend
from flic.seeding import generator
from flic.shapes import Named, under, unlike_forms

SCHEMES: tuple[type[AnchorScheme], ...] = (
    ByResponse,
    ByMetaClass,
    ByClass,
)
"""Anchor schemes, of which the first that fits is taken; a new one is a file and an entry here."""


class Flic(NetworkMethod):
    """Embeddings aligned with shared anchors; only α, the anchors and counts are sent."""

    between_machines = True

    def __init__(
        self, settings: MethodSettings, population: Population, *, seed: int, dtype: torch.dtype
    ) -> None:
        super().__init__(settings, population, seed=seed, dtype=dtype)
        kind = next(kind for kind in SCHEMES if kind.fits(settings, population.task))
        self.scheme = kind(settings, population, dtype=dtype)
        self.fixed, self.first_stages = self.scheme.fixed, self.scheme.stages()

    # ---- the server half -----------------------------------------------------------------

    def init_server(self) -> ServerState:
        """α^(0), the anchors μ_c^(0), and further tensors that the scheme shares."""
        anchors = self.scheme.anchors.initial(
            self.scheme.num_anchors,
            self.settings.embedding.latent_dim,
            rng=generator(self.seed, "server", "anchors"),
            dtype=self.dtype,
        )
        return ServerState(0, {**super().init_server().shared, **anchors, **self.scheme.initial()})

    def unsound(self, shared: Named) -> list[str]:
        known, beside = dict(self.init_server().shared), dict(shared)
        for name in self.scheme.initial():
            del known[name]
        own = {name: beside.pop(name) for name in known if name in beside}
        return unlike_forms(known, own) + self.scheme.unsound(beside)

    def average(self, name: str, entries: Sequence[Entry], *, active: int) -> Tensor:
        """WassersteinBarycenter over the holders of an anchor.  Paper: steps 19-20."""
        found = self.scheme.anchors.barycentre(name, entries)
        if found is not None:
            return found
        if name.startswith("anchor.") and self.settings.anchors.average_over == "holders":
            return self.mean(entries)
        return super().average(name, entries, active=active)

    # ---- the client half -----------------------------------------------------------------

    always_warms_up = True

    def warm_up(self, context: VisitContext, epochs: int) -> Visit:
        """φ_i after descent on Σ_c W2²(μ_c, ν_φi^(c)).  Paper: sec:alignment, append:models."""
        stack, shared = context.stack, self.each_shared(context)
        plan = self.plan(context, Duration(epochs=epochs), self.settings.pretraining.batch_size)

        def losses(phi: Named, step: int, count: int) -> Losses:
            batch = plan.batch(step)
            masks = self.masks(context, batch)
            latent = stack.embedding.apply(phi, batch.x, masks=masks, rows=batch.row_counts)
            own = {name: value[:count] for name, value in shared.items()}
            targets = self.scheme.targets(context, own, latent, batch)
            return {"alignment": alignment_loss(latent, batch, targets)}

        phi, optimiser = under("embedding.", stack.private), self.settings.training.optimiser
        phi, terms = descend(phi, losses, plan.working, optimiser=optimiser)
        return Visit(Stack(stack.embedding, {**stack.private, **phi}), [], terms)

    def batched(self, context: VisitContext) -> StackedData:
        """The stack for drawing batches: rows that share an anchor are together."""
        return self.scheme.seen(context)

    @property
    def anchors_see_all_rows(self) -> bool:
        """True for learnt covariances: those of few rows are too small.  Paper: Algorithm S1."""
        return FACTOR in self.apart_names()

    def train_shared(
        self, context: VisitContext, plan: BatchPlan, private: Named, shared: Named
    ) -> dict[str, Tensor]:
        """Each client's version of α and of the anchors.  Paper: steps 13-14."""
        if self.anchors_see_all_rows and len(plan):
            batch = plan.batch(0)
            phi = self.phi(context, private, shared)
            latent = context.stack.embedding.apply(phi, batch.x, rows=batch.row_counts)
            shared = {**shared, **self.scheme.before_anchors(context, shared, latent, batch)}
        return super().train_shared(context, plan, private, shared)

    def each_shared(self, context: VisitContext) -> dict[str, Tensor]:
        """Copies of α and of the anchors, one per client."""
        order = self.anchor_of(self.scheme.seen(context))
        anchors = self.scheme.anchors.copies(context.server.shared, order)
        return {**super().each_shared(context), **anchors}

    def anchor_of(self, data: StackedData) -> Int[Tensor, "clients classes"]:
        """Number of the anchor that stands for each class or meta-class, at each client."""
        return torch.arange(data.task.num_anchors).expand(len(data), -1)

    def apart_names(self) -> set[str]:
        """α, and the anchors if a loss term trains them.  Paper: steps 13-14."""
        alignment = self.settings.alignment
        if not (alignment.weight > 0 or alignment.calibration_weight > 0):
            return super().apart_names()
        return super().apart_names() | self.scheme.anchors.parts.keys()

    def extra_terms(self, inputs: LossInputs) -> Losses:
        """λ₁ and λ₂ terms of eq:PFL_ERM_reg."""
        alignment, terms = self.settings.alignment, {}
        context, shared, batch = inputs.context, inputs.shared, inputs.batch
        if alignment.weight:
            targets = self.scheme.targets(context, shared, inputs.latent, batch)
            terms["alignment"] = alignment.weight * alignment_loss(inputs.latent, batch, targets)
        if alignment.calibration_weight:
            apply = partial(self.model.apply, inputs.theta)
            loss = self.scheme.calibration(context, shared, apply, batch)
            terms["calibration"] = alignment.calibration_weight * loss
        return terms

    def entries(
        self, context: VisitContext, client: int, private: Named, shared: Named
    ) -> dict[str, Entry]:
        """The client's versions of α and of the anchors: all, or those with rows of its own."""
        entries = super().entries(context, client, private, shared)
        data, everyone = context.data.clients[client], self.settings.anchors.average_over
        anchor_of = self.anchor_of(self.scheme.seen(context))[client].tolist()
        rows = self.scheme.rows_of_anchors(context, data)
        if everyone == "participants":
            rows = dict.fromkeys(range(len(anchor_of)), len(data.train))
        for c, count in rows.items():
            for own, name in self.scheme.anchors.parts.items():
                version = shared[own][client, c].clone()
                entries[name(anchor_of[c])] = Entry(version, self.client_weight(count))
        return entries

    def rows_behind(self, context: VisitContext, client: int) -> dict[str, int]:
        """Rows of the class, or the like, that each anchor of a client stands for."""
        anchor_of = self.anchor_of(self.scheme.seen(context))[client].tolist()
        rows = self.scheme.rows_of_anchors(context, context.data.clients[client])
        names = self.scheme.anchors.parts.values()
        return {name(anchor_of[c]): count for c, count in rows.items() for name in names}

    def score(self, context: VisitContext, private: Named, shared: Named, latent: Tensor) -> Tensor:
        """Class scores or responses, by the head or by the likeliest anchor."""
        if self.settings.model.predict_by == "head":
            return super().score(context, private, shared, latent)
        return self.scheme.predict(context, shared, latent)


class FlicClass(Flic):
    """FLIC without a shared layer: α is empty, β_i is the classifier or regressor."""

    name = "flic-class"
    hidden_layer = False


class FlicHL(Flic):
    """FLIC with a shared hidden layer α under the personal heads β_i."""

    name = "flic-hl"
    hidden_layer = True
