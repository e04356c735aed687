"""FLIC: Algorithm 1 on top of a personalisation rule.

Paper: algo:FLIC-FEDREP and algo:FLIC-FEDREP_supp; the objective is eq:PFL_ERM_reg.
FLIC-Class has no shared layer (α is empty), FLIC-HL has a shared hidden layer. With meta-classes
("Scalability"), these stand for classes wherever anchors are concerned.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from flic.data.batches import Batch, BatchPlan
from flic.data.client_data import ClientData
from flic.data.stacked import StackedData
from flic.data.task import Regression
from flic.gaussians import Gaussian, bures_barycentre, sqrtm
from flic.method_settings import Duration, MethodSettings
from flic.methods.flic.anchors import Anchors, factor_name, initial_anchors, mean_name
from flic.methods.flic.losses import alignment_loss, calibration_loss
from flic.methods.flic.meta import (
    DISTANCES,
    MAP,
    TOGETHER,
    ByMetaClass,
    class_distances,
    cluster,
    meta_scores,
    pairs_to_send,
)
from flic.methods.flic.refusals import (
    refuse_class_settings,
    refuse_impossible_meta_classes,
    refuse_trimmed_barycentre,
)
from flic.methods.flic.response import (
    even_responses,
    nearest_response,
    response_calibration_loss,
    response_means,
    response_targets,
)
from flic.methods.flic.targets import Target, Targets, transport_targets
from flic.methods.network import NetworkMethod
from flic.methods.protocol import (
    Entry,
    Population,
    ServerState,
    Stack,
    Stage,
    Step,
    Update,
    Visit,
    VisitContext,
    weighted_mean,
)
from flic.networks.descent import Losses, descend
from flic.networks.sharing.rule import under
from flic.seeding import generator
from flic.shapes import Named

MEAN, FACTOR = "anchors.mean", "anchors.factor"
"""A stack's own copies of v_1:C and L_1:C, [clients, classes, …], in each client's class order.

With meta-classes, these are the classes meant. In a regression the mean holds b and a,
[clients, 2, k], in each client's order of the ends.
"""


class Flic(NetworkMethod):
    """Embeddings aligned with shared anchors; α, the anchors and counts are all that travels."""

    fixed = frozenset({MAP})  # all must mean the same by an anchor

    def __init__(
        self, settings: MethodSettings, population: Population, *, seed: int, dtype: torch.dtype
    ) -> None:
        super().__init__(settings, population, seed=seed, dtype=dtype)
        refuse_trimmed_barycentre(settings)
        self.is_regression = isinstance(population.task, Regression)
        if self.is_regression:
            refuse_class_settings(settings)
        else:
            refuse_impossible_meta_classes(settings, population.task.num_outputs)
        self.num_anchors = settings.anchors.num_meta or population.task.num_anchors

    # ---- the server half -----------------------------------------------------------------

    def init_server(self) -> ServerState:
        server = super().init_server()
        anchors = initial_anchors(
            self.settings.anchors,
            self.num_anchors,
            self.settings.embedding.latent_dim,
            rng=generator(self.seed, "server", "anchors"),
            dtype=self.dtype,
        )
        return ServerState(0, {**server.shared, **anchors, **self._initial_meta_classes()})

    def _initial_meta_classes(self) -> dict[str, Tensor]:
        """The map that was given, or room for the answers from which it will be found."""
        given = self.settings.anchors.meta_classes
        if given is None:
            return {}
        if isinstance(given, tuple):
            return {MAP: torch.tensor(given)}
        classes = self.population.task.num_outputs
        nothing = torch.zeros(classes * (classes - 1) // 2, dtype=self.dtype)
        return {DISTANCES: nothing, TOGETHER: nothing.clone()}

    def find_meta_classes(self, server: ServerState, updates: Sequence[Update]) -> ServerState:
        """Server half of `distances`: answers become the map of classes, and are dropped."""
        server = self.aggregate(server, updates)
        shared = dict(server.shared)
        found = cluster(shared.pop(DISTANCES), shared.pop(TOGETHER), self.num_anchors)
        return ServerState(server.round, {**shared, MAP: torch.tensor(found)})

    def average(self, name: str, entries: Sequence[Entry], *, active: int) -> Tensor:
        """WassersteinBarycenter over the holders of an anchor.  Paper: steps 19-20."""
        anchors = self.settings.anchors
        if name in (DISTANCES, TOGETHER):
            return weighted_mean(entries)
        if not name.startswith("anchor."):
            return super().average(name, entries, active=active)
        if anchors.average_covariance == "barycentre" and entries[0].value.ndim == 2:
            return _barycentre_factor(entries)
        if anchors.average_over == "holders":
            return self.mean(entries)
        return super().average(name, entries, active=active)

    # ---- the client half -----------------------------------------------------------------

    @property
    def stages(self) -> tuple[Stage, ...]:
        asked = Stage("distances", self.tell_distances, self.find_meta_classes)
        return (*super().stages, *([asked] if self._asks_for_distances else []))

    @property
    def _asks_for_distances(self) -> bool:
        return isinstance(self.settings.anchors.meta_classes, int)

    def steps_before(self) -> list[Step]:
        """Where meta-classes are to be found, clients are asked for the distances first."""
        before = super().steps_before()
        if not self._asks_for_distances:
            return before
        asked = Step("prepare", before[0].round - 1, (self.stage("distances"),), "never")
        return [asked, *before]

    def prepare(self, context: VisitContext) -> Visit:
        """φ_i fitted to the initial anchors.  Paper: sec:alignment, append:models."""
        return self._align(context, self.settings.pretraining.epochs)

    def tell_distances(self, context: VisitContext) -> Visit:
        """Client half of `distances`."""
        told = [self._tell_distances(client) for client in context.data.clients]
        return Visit(context.stack, told, {})

    def _tell_distances(self, client: ClientData) -> Update:
        """How far apart the client's classes are; it depends on no common space."""
        distances = class_distances(client.train, self.population.task.num_outputs)
        told = pairs_to_send(distances, dtype=self.dtype)
        return Update(client.name, {name: Entry(value, 1.0) for name, value in told.items()})

    def seen_by_anchors(self, context: VisitContext) -> StackedData:
        """The stack with a slot for each of its anchors: meta-classes, or classes."""
        if MAP not in context.server.shared:
            return context.data
        return ByMetaClass.view(context.data, context.server.shared[MAP])

    def plan(self, context: VisitContext, duration: Duration, batch_size: int) -> BatchPlan:
        """Batches of one phase, rows that share an anchor together."""
        seen = replace(context, data=self.seen_by_anchors(context))
        return super().plan(seen, duration, batch_size)

    def realign(self, context: VisitContext) -> Visit:
        """φ_i fitted to the averaged anchors, as the authors' program does after every round."""
        return self._align(context, self.settings.alignment.realign_epochs)

    @property
    def _warms_up(self) -> bool:
        return True

    def _align(self, context: VisitContext, epochs: int) -> Visit:
        """φ_i after descent on Σ_c W2²(μ_c, ν_φi^(c)) alone."""
        stack = context.stack
        plan = self.plan(context, Duration(epochs=epochs), self.settings.pretraining.batch_size)
        shared = self.each_shared(context)

        def losses(phi: Named, step: int, count: int) -> Losses:
            batch = plan.batch(step)
            masks = self.masks(context, batch)
            latent = stack.embedding.apply(phi, batch.x, masks=masks, rows=batch.row_counts)
            own = {name: value[:count] for name, value in shared.items()}
            targets = self._targets(context, own, latent, batch)
            return {"alignment": alignment_loss(latent, batch, targets)}

        phi, terms = descend(
            under("embedding.", stack.private),
            losses,
            plan.working,
            optimiser=self.settings.training.optimiser,
        )
        return Visit(Stack(stack.embedding, {**stack.private, **phi}), [], terms)

    def each_shared(self, context: VisitContext) -> dict[str, Tensor]:
        """Copies of α and of the anchors, one per client."""
        anchors = Anchors.of(context.server.shared, self.settings.anchors, self.num_anchors)
        anchors = anchors.copies(self.anchor_of(self.seen_by_anchors(context)))
        copies = {MEAN: anchors.mean}
        if anchors.factor is not None:
            copies[FACTOR] = anchors.factor
        return super().each_shared(context) | copies

    def anchor_of(self, data: StackedData) -> Int[Tensor, "clients classes"]:
        """Which anchor stands for each class or meta-class, at each client."""
        return torch.arange(data.task.num_anchors).expand(len(data), -1)

    def joint_names(self) -> set[str]:
        """The authors' program moves the anchor means after every batch."""
        return {MEAN} if self.settings.anchors.learn == "every-batch" else set()

    def apart_names(self) -> set[str]:
        """α, and the anchors where something pulls at them.  Paper: steps 13-14."""
        alignment = self.settings.alignment
        pulled = alignment.weight > 0 or alignment.calibration_weight > 0
        if self.settings.anchors.learn != "after" or not pulled:
            return super().apart_names()
        learnt = {MEAN} if self.settings.anchors.covariance == "identity" else {MEAN, FACTOR}
        return super().apart_names() | learnt

    def extra_terms(
        self,
        context: VisitContext,
        private: Named,
        shared: Named,
        theta: Named,
        latent: Float[Tensor, "clients rows k"],
        batch: Batch,
    ) -> Losses:
        """λ₁ and λ₂ terms of eq:PFL_ERM_reg."""
        if self.settings.anchors.learn == "every-batch":
            return self._terms_every_batch(context, shared, theta, latent, batch)
        return self._terms(context, shared, theta, latent, batch)

    def _terms(
        self, context: VisitContext, shared: Named, theta: Named, latent: Tensor, batch: Batch
    ) -> Losses:
        settings = self.settings.alignment
        terms: Losses = {}
        if settings.weight:
            targets = self._targets(context, shared, latent, batch)
            terms["alignment"] = settings.weight * alignment_loss(latent, batch, targets)
        if settings.calibration_weight:
            loss = self._calibration(context, shared, theta, batch)
            terms["calibration"] = settings.calibration_weight * loss
        return terms

    def _targets(
        self, context: VisitContext, shared: Named, latent: Tensor, batch: Batch
    ) -> Targets:
        """Where the batch's rows are pulled to."""
        if self.is_regression:
            return response_targets(batch, shared[MEAN])
        anchors = self._slot_anchors(context, shared)
        return transport_targets(latent, batch, self._target(context, batch, anchors))

    def _calibration(
        self, context: VisitContext, shared: Named, theta: Named, batch: Batch
    ) -> Tensor:
        """The λ₂ term: J samples of each class, or J samples along the responses."""
        num, clients = self.settings.alignment.anchor_samples, len(batch.x)
        noise = self._noise(context, batch, [num] * clients)
        if self.is_regression:
            y = even_responses(num, dtype=self.dtype)
            means = response_means(shared[MEAN], y.expand(clients, -1))
            samples = means + self.settings.anchors.variance**0.5 * noise[:, 0]
            return response_calibration_loss(self.model.apply(theta, samples), y)
        samples = self._slot_anchors(context, shared).reparameterise(noise)
        scores = self._anchor_scores(context, self.model.apply(theta, samples.flatten(1, 2)))
        return calibration_loss(scores, self.seen_by_anchors(context).classes[:clients])

    def _anchor_scores(self, context: VisitContext, scores: Tensor) -> Tensor:
        """Scores of what anchors stand for, from those of the classes."""
        meta_of = context.server.shared.get(MAP)
        return scores if meta_of is None else meta_scores(scores, meta_of)

    def _terms_every_batch(
        self, context: VisitContext, shared: Named, theta: Named, latent: Tensor, batch: Batch
    ) -> Losses:
        """The same terms with the anchors fixed, and the authors' own loss of the anchors.

        Departs: they step the anchors after the batch's step of φ and β; here both steps are
        taken from the same point, which differs by one learning rate.
        """
        fixed = {name: value.detach() for name, value in shared.items()}
        terms = self._terms(context, fixed, theta, latent, batch)
        if not shared[MEAN].requires_grad:
            return terms
        theta = {name: value.detach() for name, value in theta.items()}
        scores = self._anchor_scores(context, self.model.apply(theta, shared[MEAN]))
        every_class = torch.arange(self.num_anchors).expand(scores.shape[:2])
        latent = latent.detach()
        pulled = alignment_loss(latent, batch, self._targets(context, shared, latent, batch))
        terms["anchors"] = calibration_loss(scores, every_class) + pulled
        return terms

    def _slot_anchors(self, context: VisitContext, shared: Named) -> Gaussian:
        """Anchors of each client's own classes, slot by slot; unused slots hold any anchor."""
        clients = torch.arange(len(shared[MEAN]))[:, None]
        slots = self.seen_by_anchors(context).classes[: len(clients)].clamp_min(0)
        return self._all_anchors(shared)[clients, slots]

    def _all_anchors(self, shared: Named) -> Gaussian:
        """Each client's own copies of all anchors."""
        return Anchors(shared[MEAN], shared.get(FACTOR)).gaussian(self.settings.anchors)

    def _target(self, context: VisitContext, batch: Batch, anchors: Gaussian) -> Target:
        """What the batch is transported to: the anchors, or as many samples of them as rows."""
        if self.settings.alignment.target == "closed-form":
            return Target.of(anchors)
        noise = self._noise(context, batch, batch.row_counts)
        return Target.of_samples(anchors.reparameterise(noise), batch.counts)

    def _noise(
        self, context: VisitContext, batch: Batch, nums: Sequence[int]
    ) -> Float[Tensor, "clients slots num k"]:
        """Standard normal ξ: `nums` of each working client for each of its anchors.

        Drawn from the client's own generator, and never for padding: what a client draws must not
        depend on whom it is stacked with.
        """
        clients, slots = batch.counts.shape
        shape = (clients, slots, max(nums), self.settings.embedding.latent_dim)
        noise = torch.zeros(shape, dtype=self.dtype)
        held = self.seen_by_anchors(context).holds.sum(1).tolist()
        for own, used, num, rng in zip(noise, held, nums, context.rngs, strict=False):
            own[:used, :num].normal_(generator=rng)
        return noise

    def score(self, context: VisitContext, private: Named, shared: Named, latent: Tensor) -> Tensor:
        """Class scores by the head, or by the likelihood of each anchor; or the response."""
        if self.settings.model.predict_by == "head":
            return super().score(context, private, shared, latent)
        if self.is_regression:
            return nearest_response(latent, shared[MEAN])
        anchors = self._all_anchors(shared)
        each = [anchors[:, c].log_density(latent) for c in range(self.num_anchors)]
        scores = torch.stack(each, dim=-1)
        meta_of = context.server.shared.get(MAP)
        return scores if meta_of is None else scores[..., meta_of]

    def entries(
        self, context: VisitContext, client: int, private: Named, shared: Named
    ) -> dict[str, Entry]:
        """The client's versions of α and of the anchors: those of its own classes, or all."""
        entries = super().entries(context, client, private, shared)
        data = context.data.clients[client]
        anchor_of = self.anchor_of(self.seen_by_anchors(context))[client].tolist()
        by_rows = self.settings.training.client_weight == "rows"
        # In a regression every client holds both ends.
        if self.is_regression or self.settings.anchors.average_over == "participants":
            weights = dict.fromkeys(range(len(anchor_of)), self.client_weight(len(data.train)))
        else:
            counts = self._rows_of_anchors(context, data)
            weights = {c: float(n) if by_rows else 1.0 for c, n in counts.items()}
        for c, weight in weights.items():
            entries[mean_name(anchor_of[c])] = Entry(shared[MEAN][client, c].clone(), weight)
            if FACTOR in shared:
                factor = shared[FACTOR][client, c].clone()
                entries[factor_name(anchor_of[c])] = Entry(factor, weight)
        return entries

    def _rows_of_anchors(self, context: VisitContext, client: ClientData) -> Mapping[int, int]:
        """Training rows of each class or meta-class that a client holds."""
        meta_of = context.server.shared.get(MAP)
        if meta_of is None:
            return client.class_counts
        rows: Counter[int] = Counter()
        for c, count in client.class_counts.items():
            rows[int(meta_of[c])] += count
        return rows


def _barycentre_factor(entries: Sequence[Entry]) -> Tensor:
    """A root of the Bures barycentre of the holders' covariances."""
    factors = torch.stack([e.value.to(torch.float64) for e in entries])
    weights = torch.tensor([e.weight for e in entries], dtype=torch.float64)
    covariance = bures_barycentre(factors @ factors.mT, weights)
    return sqrtm(covariance).to(entries[0].value.dtype)


class FlicClass(Flic):
    """FLIC without a shared layer: α is empty, β_i is the classifier or regressor."""

    name = "flic-class"
    hidden_layer = False


class FlicHL(Flic):
    """FLIC with a shared hidden layer α under the personal heads β_i."""

    name = "flic-hl"
    hidden_layer = True
