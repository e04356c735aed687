"""Settings of every method, by section; names are the paper's concepts.

Paper: append:models for the values, notation in docs/notation.md.
"""

import re
from typing import Annotated, Literal, Self

from pydantic import (
    BeforeValidator,
    Field,
    PlainSerializer,
    model_validator,
)

from flic.alignment.anchors import AnchorConfig
from flic.data.batches import Duration
from flic.descent import OptimiserConfig
from flic.embedding.build import EmbeddingConfig
from flic.settings import Section


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
    """The duration as it is written in a configuration."""
    return f"{getattr(duration, unit_of(duration))} {unit_of(duration)}"


Length = Annotated[
    Duration, BeforeValidator(parse_duration), PlainSerializer(format_duration, return_type=str)
]


class TrainingConfig(Section):
    """Rounds and local work.  Paper: algo:FLIC-FEDREP, append:models."""

    rounds: int = Field(default=50, ge=0)  # T
    participation: float = Field(default=0.1, gt=0, le=1)  # r
    local: Length = Duration(epochs=10)  # M
    shared: Length = Duration(epochs=1)  # steps 13-14; "one epoch for representation learning"
    shared_schedule: Literal["after", "last"] = "after"  # "last": taken out of the local epochs
    shared_from_round: int = Field(default=0, ge=0)  # rounds before the shared phase starts
    batch_size: int = Field(default=100, ge=1)  # n_i'
    optimiser: OptimiserConfig = OptimiserConfig()
    model_weight_decay: float = Field(default=0.0, ge=0)  # on g_θ, not on φ
    personalisation: str = "fedrep"  # table:perso_algo
    client_weight: Literal["equal", "rows"] = "equal"  # ω_i
    normalise: Literal["active", "literal"] = "active"  # "literal": (b/|A|) Σ ω_i
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


class ModelConfig(Section):
    """g_θ.  Paper: append:models."""

    hidden_dim: int = Field(default=64, ge=1)
    hidden_layer: bool = True  # for methods that leave the choice open
    predict_by: Literal["head", "nearest-anchor"] = "head"


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

    weight: float = Field(default=1.0, ge=0)  # η; of 0.001 to 10, this served it best
    probe_rows: int = Field(default=100, ge=2)  # rows of the RAD


class EstimatorsConfig(Section):
    """The baselines that fit a scikit-learn model to each client."""

    logistic_c: float = Field(default=1.0, gt=0)  # inverse strength of its penalty
    boosting_rate: float = Field(default=0.1, gt=0, le=1)  # learning rate


Scatter = Literal["off", "diagonal", "projected", "full"]
"""What a client tells of how its linked features vary: nothing, each by itself, products of two
fixed random features of them, or products of every two of themselves as well."""


class LinkedConfig(Section):
    """Linked features, in closed form."""

    random_features: int = Field(default=512, ge=1)  # of the map beside the features themselves
    folds: int = Field(default=3, ge=2)  # of each client's own cross-validation
    min_rows_per_class: int = Field(default=1, ge=1)  # a class with fewer rows is in no sum
    scatter: Scatter = "full"  # what clients send of it
    # Numbers that a client sends per value of its rows, at most; None: as many as there are.
    told_per_value: float | None = Field(default=None, gt=0)


class MethodSettings(Section):
    """All settings a method may look at."""

    training: TrainingConfig = TrainingConfig()
    embedding: EmbeddingConfig = EmbeddingConfig()
    model: ModelConfig = ModelConfig()
    anchors: AnchorConfig = AnchorConfig()
    alignment: AlignmentConfig = AlignmentConfig()
    pretraining: PretrainingConfig = PretrainingConfig()
    fedhenn: FedHeNNConfig = FedHeNNConfig()
    estimators: EstimatorsConfig = EstimatorsConfig()
    linked: LinkedConfig = LinkedConfig()
