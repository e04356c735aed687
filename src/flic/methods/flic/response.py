"""Anchors indexed by a real response: μ_y = N(y a + (1 − y) b, I).

Paper: "Reference Distribution for Regression". Responses are encoded, so that the declared range
is [0, 1]; the two vectors are sent as the anchors at its ends, b as anchor 0 and a as anchor 1.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from flic.data.batches import Batch
from flic.data.client_data import ClientData
from flic.data.task import Regression, Task
from flic.errors import ConfigError
from flic.method_settings import MethodSettings
from flic.methods.flic.anchors import MEAN
from flic.methods.flic.scheme import AnchorScheme, Apply
from flic.methods.flic.targets import Targets
from flic.methods.protocol import Population, VisitContext
from flic.shapes import Named


class ByResponse(AnchorScheme):
    """An anchor at each end of the range of responses; the rest lie between them."""

    def __init__(
        self, settings: MethodSettings, population: Population, *, dtype: torch.dtype
    ) -> None:
        super().__init__(settings, population, dtype=dtype)
        _refuse_class_settings(settings)

    @classmethod
    def fits(cls, settings: MethodSettings, task: Task) -> bool:
        return isinstance(task, Regression)

    def targets(
        self, context: VisitContext, shared: Named, latent: Tensor, batch: Batch
    ) -> Targets:
        del context, latent
        return response_targets(batch, shared[MEAN])

    def calibration(
        self, context: VisitContext, shared: Named, apply: Apply, batch: Batch
    ) -> Tensor:
        num, clients = self.settings.alignment.anchor_samples, len(batch.x)
        noise = self.noise(context, batch, [num] * clients)
        y = even_responses(num, dtype=self.dtype)
        means = response_means(shared[MEAN], y.expand(clients, -1))
        samples = means + self.settings.anchors.variance**0.5 * noise[:, 0]
        return response_calibration_loss(apply(samples), y)

    def predict(self, context: VisitContext, shared: Named, latent: Tensor) -> Tensor:
        del context
        return nearest_response(latent, shared[MEAN])

    def anchors_of_classes(self, shared: Named, classes: Sequence[int]) -> dict[int, int]:
        del shared, classes
        return {}

    def rows_of_anchors(self, context: VisitContext, client: ClientData) -> dict[int, int]:
        """All rows pull at both ends."""
        del context
        return dict.fromkeys(range(self.num_anchors), len(client.train))


def response_means(
    ends: Float[Tensor, "clients 2 k"], y: Float[Tensor, "clients rows"]
) -> Float[Tensor, "clients rows k"]:
    """m(y) = y a + (1 − y) b of each response."""
    b, a = ends[:, :1], ends[:, 1:]
    return y[..., None] * a + (1 - y)[..., None] * b


def response_targets(batch: Batch, ends: Float[Tensor, "clients 2 k"]) -> Targets:
    """Target of each row: the mean of its own response's anchor.

    A response belongs to a single row, so W2² is ‖φ(x) − m(y)‖² and the trace of the anchor's
    fixed covariance, a constant that the paper leaves out.
    """
    rows = response_means(ends, batch.y)
    return Targets(rows, rows.new_zeros(len(rows)))


def even_responses(num: int, *, dtype: torch.dtype) -> Float[Tensor, " num"]:
    """Responses spread evenly over [0, 1], where the anchors are sampled for calibration."""
    return (torch.arange(num, dtype=dtype) + 0.5) / num


def response_calibration_loss(
    outputs: Float[Tensor, "clients samples 1"], y: Float[Tensor, " samples"]
) -> Float[Tensor, " clients"]:
    """Mean squared error of g at samples Z ~ μ_y.  Paper: eq:PFL_ERM_reg, the λ₂ term."""
    return (outputs[..., 0] - y).square().mean(1)


def nearest_response(
    latent: Float[Tensor, "clients rows k"], ends: Float[Tensor, "clients 2 k"]
) -> Float[Tensor, "clients rows 1"]:
    """Response whose anchor is nearest, and likeliest: the projection on the line from b to a."""
    b, a = ends[:, :1], ends[:, 1:]
    tiny = torch.finfo(latent.dtype).tiny
    length_sq = (a - b).square().sum(-1, keepdim=True).clamp_min(tiny)
    return ((latent - b) * (a - b)).sum(-1, keepdim=True) / length_sq


def _refuse_class_settings(settings: MethodSettings) -> None:
    """Refuse settings that apply only to anchors of classes."""
    found = {
        "anchors.covariance": (settings.anchors.covariance, "identity"),
        "alignment.target": (settings.alignment.target, "closed-form"),
    }
    for key, (got, expected) in found.items():
        if got != expected:
            raise ConfigError(
                f"{key} is {got!r} on data with real responses; expected {expected!r}, since "
                "regression anchors are N(y a + (1 − y) b, I). Change the key, or a preset "
                "such as 'authors' that sets it."
            )
    if settings.anchors.meta_classes is not None:
        raise ConfigError(
            "anchors.meta_classes is set on data with real responses; expected classes, which a "
            "regression does not have. Leave the key out."
        )
