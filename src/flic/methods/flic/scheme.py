"""Anchor schemes: the part of FLIC that depends on the meaning of anchors.

Paper: sec:methodo. `ByClass` is Algorithm 1's own: one anchor per class. Meta-classes (meta.py)
and responses (response.py) are schemes beside it. The anchors of any scheme may have learnt
covariances (covariance.py).
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from flic.data.batches import Batch
from flic.data.client_data import ClientData
from flic.data.stacked import StackedData
from flic.data.task import Task
from flic.errors import ConfigError
from flic.gaussians import Gaussian
from flic.method_settings import MethodSettings
from flic.methods.flic.anchors import MEAN, Anchors
from flic.methods.flic.covariance import STRETCH, LearntCovariances, stretches
from flic.methods.flic.targets import Target, Targets, transport_targets
from flic.methods.protocol import Population, Stage, VisitContext
from flic.networks.head import cross_entropy
from flic.shapes import Named, unlike_forms

Apply = Callable[[Tensor], Tensor]
"""g_θ of the working clients: from latent rows to scores or responses."""


class AnchorScheme(ABC):
    """One meaning of anchors: its targets, calibration and predictions."""

    #: Shared tensors that the server alone decides.
    fixed: frozenset[str] = frozenset()

    def __init__(
        self, settings: MethodSettings, population: Population, *, dtype: torch.dtype
    ) -> None:
        self.settings, self.population, self.dtype = settings, population, dtype
        is_fixed = settings.anchors.covariance == "identity"
        self.anchors = (Anchors if is_fixed else LearntCovariances)(settings.anchors)
        is_whole = settings.anchors.average_covariance == "barycentre"
        if settings.training.average == "trimmed" and is_whole:
            raise ConfigError(
                "training.average is 'trimmed' and anchors.average_covariance is 'barycentre', "
                "which counts every covariance whole; expected 'factors'. Change one of them."
            )

    @classmethod
    def fits(cls, settings: MethodSettings, task: Task) -> bool:
        """Return whether the scheme is the one for these settings and labels."""
        del settings, task
        return True

    @property
    def num_anchors(self) -> int:
        """Number of shared anchors."""
        return self.population.task.num_anchors

    @property
    def labels(self) -> list[str]:
        """Names of the anchors where they are shown."""
        return [str(c) for c in range(self.num_anchors)]

    def initial(self) -> dict[str, Tensor]:
        """Shared tensors beside the anchors, before the first step."""
        return {}

    def unsound(self, beside: Named) -> list[str]:
        """Names of tensors beside the anchors that no finished step leaves as they are."""
        return unlike_forms(self.initial(), beside)

    def stages(self) -> Sequence[Stage]:
        """Work of all clients before training."""
        return ()

    def seen(self, context: VisitContext) -> StackedData:
        """The stack with a slot for each anchor of its clients."""
        return context.data

    @abstractmethod
    def targets(
        self, context: VisitContext, shared: Named, latent: Tensor, batch: Batch
    ) -> Targets:
        """Points that the batch's embedded rows are pulled to."""

    @abstractmethod
    def calibration(
        self, context: VisitContext, shared: Named, apply: Apply, batch: Batch
    ) -> Tensor:
        """The λ₂ term: the loss of g_θ at samples of the anchors.  Paper: eq:PFL_ERM_reg."""

    @abstractmethod
    def predict(self, context: VisitContext, shared: Named, latent: Tensor) -> Tensor:
        """Scores of classes by the likelihood of each anchor, or the likeliest response."""

    @abstractmethod
    def anchors_of_classes(self, shared: Named, classes: Sequence[int]) -> Mapping[int, int]:
        """The anchor that stands for each class; none where anchors do not stand for classes."""

    @abstractmethod
    def rows_of_anchors(self, context: VisitContext, client: ClientData) -> Mapping[int, int]:
        """Training rows of a client behind each of its anchors."""

    def before_anchors(
        self, context: VisitContext, shared: Named, latent: Tensor, batch: Batch
    ) -> dict[str, Tensor]:
        """Tensors that the loss needs beside the shared ones to train learnt covariances."""
        del context, shared, latent, batch
        return {}

    def noise(
        self, context: VisitContext, batch: Batch, nums: Sequence[int]
    ) -> Float[Tensor, "clients slots num k"]:
        """Standard normal ξ: `nums` of each working client for each of its anchors.

        Drawn from the client's own generator, and never for padding: a client's numbers must not
        depend on the clients stacked with it.
        """
        clients, slots = batch.counts.shape
        shape = (clients, slots, max(nums), self.settings.embedding.latent_dim)
        noise = torch.zeros(shape, dtype=self.dtype)
        held = self.seen(context).holds.sum(1).tolist()
        for own, used, num, rng in zip(noise, held, nums, context.rngs, strict=False):
            own[:used, :num].normal_(generator=rng)
        return noise


class ByClass(AnchorScheme):
    """An anchor per class."""

    def targets(
        self, context: VisitContext, shared: Named, latent: Tensor, batch: Batch
    ) -> Targets:
        anchors, stretch = self.slot_anchors(context, shared), shared.get(STRETCH)
        if self.settings.alignment.target == "closed-form":
            return transport_targets(latent, batch, Target.of(anchors), stretch)
        # As the authors' program does: as many samples of the anchor as there are rows.
        samples = anchors.reparameterise(self.noise(context, batch, batch.row_counts))
        return transport_targets(latent, batch, Target.of_samples(samples, batch.counts), stretch)

    def before_anchors(
        self, context: VisitContext, shared: Named, latent: Tensor, batch: Batch
    ) -> dict[str, Tensor]:
        return {STRETCH: stretches(latent, batch, self.slot_anchors(context, shared))}

    def calibration(
        self, context: VisitContext, shared: Named, apply: Apply, batch: Batch
    ) -> Tensor:
        clients = len(batch.x)
        noise = self.noise(context, batch, [self.settings.alignment.anchor_samples] * clients)
        samples = self.slot_anchors(context, shared).reparameterise(noise)
        scores = self.anchor_scores(context, apply(samples.flatten(1, 2)))
        return calibration_loss(scores, self.seen(context).classes[:clients])

    def anchor_scores(self, context: VisitContext, scores: Tensor) -> Tensor:
        """Scores of the classes or meta-classes that anchors stand for, from scores of classes."""
        del context
        return scores

    def predict(self, context: VisitContext, shared: Named, latent: Tensor) -> Tensor:
        del context
        anchors = self.anchors.gaussian(shared)
        each = [anchors[:, c].log_density(latent) for c in range(self.num_anchors)]
        return torch.stack(each, dim=-1)

    def anchors_of_classes(self, shared: Named, classes: Sequence[int]) -> Mapping[int, int]:
        del shared
        return {c: c for c in classes}

    def rows_of_anchors(self, context: VisitContext, client: ClientData) -> Mapping[int, int]:
        rows: Counter[int] = Counter()
        for c, anchor in self.anchors_of_classes(context.server.shared, client.classes).items():
            rows[anchor] += client.class_counts[c]
        return rows

    def slot_anchors(self, context: VisitContext, shared: Named) -> Gaussian:
        """Anchors of each client's own classes, slot by slot; unused slots hold any anchor."""
        clients = torch.arange(len(shared[MEAN]))[:, None]
        slots = self.seen(context).classes[: len(clients)].clamp_min(0)
        return self.anchors.gaussian(shared)[clients, slots]


def calibration_loss(
    scores: Float[Tensor, "clients samples classes"],
    classes: Int[Tensor, "clients slots"],
) -> Float[Tensor, " clients"]:
    """Σ_c (1/J) Σ_j ℓ(c, g(Z_c^(j))) over a client's classes.  Paper: eq:PFL_ERM_reg.

    Samples come slot by slot, J of each; samples of unused slots (class −1) count nothing.
    """
    per_class = scores.shape[1] // classes.shape[1]
    labels = classes.repeat_interleave(per_class, dim=1)
    loss = cross_entropy(scores, labels.clamp_min(0))
    return (loss * (labels >= 0)).sum(1) / per_class
