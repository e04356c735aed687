"""Settings of all methods, by section; named after the paper's concepts.

Paper: append:models for the values, notation in docs/notation.md.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Literal, Self

from pydantic import (
    AliasChoices,
    BeforeValidator,
    Field,
    PlainSerializer,
    PositiveInt,
    model_validator,
)

from flic.errors import ConfigError
from flic.settings import Section, refuse_beyond_memory

MIN_ROWS = 5
"""Least rows behind each number that a silo tells, unless its owner says otherwise."""

RECORD_BYTES = 1000
"""Least memory that a run keeps per round."""

STEP_SECONDS = 1e-4
"""Least time of a step of descent; a run of a day by that count would take weeks."""


@dataclass(frozen=True)
class Duration:
    """Length of local work, in epochs or in steps, never both."""

    epochs: int | None = None
    steps: int | None = None

    def __post_init__(self) -> None:
        assert (self.epochs is None) != (self.steps is None)

    def plus(self, other: "Duration") -> "Duration":
        """Sum of both durations."""
        return self._changed(other, 1)

    def less(self, other: "Duration") -> "Duration":
        """This duration minus the other, at least 0."""
        return self._changed(other, -1)

    def _changed(self, other: "Duration", sign: int) -> "Duration":
        if self.epochs is not None and other.epochs is not None:
            return Duration(epochs=max(self.epochs + sign * other.epochs, 0))
        assert self.steps is not None, "settings refuse mixed units"
        assert other.steps is not None, "settings refuse mixed units"
        return Duration(steps=max(self.steps + sign * other.steps, 0))

    def steps_for(self, rows: int, batch_size: int, *, least: int = 1) -> int:
        """Number of batches of a client with `rows` rows; an epoch has at least `least`."""
        per_epoch = max(-(-rows // batch_size), least)
        return self.steps if self.steps is not None else (self.epochs or 0) * per_epoch


def parse_duration(text: object) -> Duration:
    """Duration from "10 epochs" or "25 steps"."""
    if isinstance(text, Duration):
        return text
    match = re.fullmatch(r"\s*(\d+)\s+(epoch|step)s?\s*", str(text))
    if match is None:
        raise ValueError('expected a length such as "10 epochs" or "25 steps"')
    number = int(match[1])
    return Duration(epochs=number) if match[2] == "epoch" else Duration(steps=number)


def unit_of(duration: Duration) -> str:
    """The unit of a duration."""
    return "epochs" if duration.epochs is not None else "steps"


def format_duration(duration: Duration) -> str:
    """The duration as written in a configuration."""
    return f"{getattr(duration, unit_of(duration))} {unit_of(duration)}"


Length = Annotated[
    Duration, BeforeValidator(parse_duration), PlainSerializer(format_duration, return_type=str)
]


class OptimiserConfig(Section):
    """Settings of DescStep.  Paper: append:models (Adam, 0.001)."""

    kind: Literal["adam", "sgd"] = "adam"
    learning_rate: float = Field(default=1e-3, gt=0)


class TrainingConfig(Section):
    """Rounds and local work.  Paper: algo:FLIC-FEDREP, append:models."""

    rounds: int = Field(default=50, ge=0)  # T
    participation: float = Field(default=0.1, gt=0, le=1)  # r
    local: Length = Duration(epochs=10)  # M
    shared: Length = Duration(epochs=1)  # steps 13-14; "one epoch for representation learning"
    shared_schedule: Literal["after", "last"] = "after"  # "last": taken out of the local epochs
    shared_from_round: int = Field(default=0, ge=0)  # rounds before the shared phase starts
    shared_sees_all_rows: bool = False  # every step of the shared phase; over Flower always
    batch_size: int = Field(default=100, ge=1)  # n_i'
    min_steps_per_epoch: int = Field(default=1, ge=1)  # small clients pass over their rows again
    optimiser: OptimiserConfig = OptimiserConfig()
    model_weight_decay: float = Field(default=0.0, ge=0)  # on g_θ, not on φ
    personalisation: str = "fedrep"  # table:perso_algo
    l2gd_mix: float = Field(default=0.5, ge=0, le=1)  # ω of L2GD, the share of the global model
    client_weight: Literal["equal", "rows"] = "equal"  # ω_i
    normalise: Literal["active", "literal"] = "active"  # "literal": (b/|A|) Σ ω_i
    average: Literal["mean", "trimmed", "auto"] = "mean"  # "auto": trimmed from five clients on
    final_round: bool = True  # all clients train once more before the last evaluation
    baseline_budget: Literal["equal", "rounds"] = "equal"  # "rounds": no warm-up for baselines

    @model_validator(mode="after")
    def _same_unit(self) -> Self:
        if unit_of(self.local) != unit_of(self.shared):
            raise ValueError(
                f"local is {format_duration(self.local)!r} and shared is "
                f"{format_duration(self.shared)!r}; methods without a shared phase have both as "
                "one budget, so give both in epochs, or both in steps"
            )
        return self

    @model_validator(mode="after")
    def _one_mean(self) -> Self:
        if self.average != "mean" and self.normalise == "literal":
            raise ValueError(
                f"average is {self.average!r} and normalise is 'literal'; expected 'active', since "
                "a trimmed mean divides by the weights that it counts"
            )
        return self


Drops = Literal["units", "channels"]
Activation = Literal["none", "leaky-relu"]


class EmbeddingConfig(Section):
    """Settings of φ.  Paper: append:models."""

    latent_dim: int = Field(default=64, ge=1)
    hidden: tuple[PositiveInt, ...] = (64, 64)  # of vectors; images have a fixed trunk
    dropout: float = Field(default=0.0, ge=0.0, lt=1.0)
    drops: Drops = "units"  # of images: after the trunk, or in its second convolution
    activation: Activation = "none"  # of the latent
    frozen: bool = False  # whether φ stays as pre-training left it.  Paper: sec:alignment


class ModelConfig(Section):
    """g_θ.  Paper: append:models."""

    hidden_dim: int = Field(default=64, ge=1)
    hidden_layer: bool = True  # for methods that leave the choice open
    predict_by: Literal["head", "nearest-anchor"] = "head"
    predict_among: Literal["held", "all"] = "held"  # classes of the client, or of everyone


def parse_meta_classes(value: object) -> int | tuple[int, ...] | None:
    """Number of meta-classes to find, or the meta-class of each class; None for no meta-classes."""
    if value is None or (type(value) is int and value >= 1):
        return value
    if not isinstance(value, list | tuple) or not value or any(type(m) is not int for m in value):
        raise ValueError(
            "expected how many meta-classes to find, at least 1, or a list with one for each class"
        )
    if min(value) != 0 or max(value) + 1 != len(set(value)):
        raise ValueError("expected meta-classes 0, 1, … with no number left out")
    return tuple(value)


MetaClasses = Annotated[int | tuple[int, ...] | None, BeforeValidator(parse_meta_classes)]


class AnchorConfig(Section):
    """Settings of anchors: their start, their learnt parts, and their average at the server."""

    scale: float = Field(default=1.0, gt=0, description="standard deviation of the initial means")
    layout: Literal["random", "equidistant"] = "random"
    covariance: Literal["identity", "diagonal", "full"] = "identity"
    variance: float = Field(
        default=1.0, gt=0, description="initial (or fixed) variance of an anchor"
    )
    eps: float = Field(default=1e-6, ge=0, description="ε of Σ = LLᵀ + εI where L is learnt")
    average_over: Literal["holders", "participants"] = "holders"
    average_covariance: Literal["factors", "barycentre"] = "factors"
    meta_classes: MetaClasses = None

    @property
    def num_meta(self) -> int | None:
        """C_meta, the number of meta-classes, if classes share anchors."""
        given = self.meta_classes
        return max(given) + 1 if isinstance(given, tuple) else given


class AlignmentConfig(Section):
    """The λ₁ and λ₂ terms.  Paper: eq:PFL_ERM_reg."""

    weight: float = Field(default=1e-3, ge=0)  # λ₁
    calibration_weight: float = Field(default=1e-3, ge=0)  # λ₂
    anchor_samples: int = Field(default=100, ge=1)  # J
    target: Literal["closed-form", "samples"] = "closed-form"
    realign_epochs: int = Field(default=0, ge=0)  # of all clients, after every round


class PretrainingConfig(Section):
    """Fit of φ_i to the initial anchors.  Paper: sec:alignment, append:models."""

    epochs: int = Field(default=100, ge=0)
    batch_size: int = Field(default=10, ge=1)


class FedHeNNConfig(Section):
    """The FedHeNN baseline (Makhija et al. 2022), with the pruned RAD of the paper."""

    weight: float = Field(default=1.0, ge=0)  # η; the best of 0.001 to 10
    probe_rows: int = Field(default=100, ge=2)  # rows of the RAD


class EstimatorsConfig(Section):
    """The baselines that fit a scikit-learn model to each client."""

    logistic_c: float = Field(default=1.0, gt=0)  # inverse strength of its penalty
    boosting_rate: float = Field(default=0.1, gt=0, le=1)  # learning rate


Scatter = Literal["off", "diagonal", "directions", "projected", "full"]
"""Scatter of its linked features that a client sends: none, each by itself, products with the
directions between classes, products of two fixed random features of them, or products of every two
of themselves as well."""


MAX_NUMBERS_PER_VALUE = AliasChoices("max_numbers_per_value", "told_per_value")
"""The key, and the name that it had before."""


class LinkedConfig(Section):
    """Linked features, in closed form."""

    random_features: int = Field(default=512, ge=1)  # of the map beside the features themselves
    folds: int = Field(default=3, ge=2)  # of each client's own cross-validation
    min_rows: int = Field(default=1, ge=1)  # least rows behind each number that is sent
    scatter: Scatter = "full"  # part of it that clients send
    # Most numbers that a client sends per value of its rows; None: no limit.
    max_numbers_per_value: float | None = Field(
        default=None, gt=0, validation_alias=MAX_NUMBERS_PER_VALUE
    )


class MethodSettings(Section):
    """All settings that a method may use."""

    training: TrainingConfig = TrainingConfig()
    embedding: EmbeddingConfig = EmbeddingConfig()
    model: ModelConfig = ModelConfig()
    anchors: AnchorConfig = AnchorConfig()
    alignment: AlignmentConfig = AlignmentConfig()
    pretraining: PretrainingConfig = PretrainingConfig()
    fedhenn: FedHeNNConfig = FedHeNNConfig()
    estimators: EstimatorsConfig = EstimatorsConfig()
    linked: LinkedConfig = LinkedConfig()


def refuse_endless(
    settings: MethodSettings, *, source: str, data: Mapping[str, int] | None = None
) -> None:
    """Refuse settings that this machine could not hold or finish.

    `data` has the least bytes of the rows.

    Raises:
        ConfigError: with the memory or time that it would take.
    """
    training, d = settings.training, settings.embedding.latent_dim
    sizes = (1, *settings.embedding.hidden, d, settings.model.hidden_dim)
    anchor = d * (d if settings.anchors.covariance == "full" else 1)
    needed = {
        **(data or {}),
        "training.rounds": training.rounds * RECORD_BYTES,
        # Weights, their gradients and Adam's two moments.
        "embedding and model": 16 * sum(a * b for a, b in pairwise(sizes)) + 4 * anchor,
        "alignment.anchor_samples": 4 * settings.alignment.anchor_samples * d,
        "linked.random_features": 8 * settings.linked.random_features**2,
    }
    refuse_beyond_memory(needed, source=source)
    lengths = (training.local, training.shared)
    least = training.min_steps_per_epoch
    per_round = sum(length.steps_for(1, 1, least=least) for length in lengths)
    per_round += settings.alignment.realign_epochs * least
    steps = settings.pretraining.epochs * least + (training.rounds + 1) * per_round
    if steps > 86_400 / STEP_SECONDS:
        days = steps // int(86_400 / STEP_SECONDS)
        time = f"at least {days:,} days" if days < 10**6 else "thousands of years"
        raise ConfigError(
            f"{source}: training and pretraining take {time}; expected a day at most. "
            "Choose fewer rounds, epochs or steps."
        )
