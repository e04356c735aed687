"""From a feature schema to a network: the one place where the kind of features decides.

Images get their convolutional trunk here, beside the perceptron for vectors.
"""

from collections.abc import Sequence

import torch
from pydantic import BaseModel, ConfigDict, Field, PositiveInt
from torch import Tensor

from flic.data.schema import FeatureSchema
from flic.embedding.mlp import FIRST_LAYER, Mlp
from flic.errors import ConfigError
from flic.shapes import Named

# Below this width a wider first layer costs less than a second stack would.
CHEAP_WIDTH = 128


class EmbeddingConfig(BaseModel):
    """Settings of φ.  Paper: append:models."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    latent_dim: int = Field(default=64, ge=1)
    hidden: tuple[PositiveInt, ...] = (64, 64)
    dropout: float = Field(default=0.0, ge=0.0, lt=1.0)


def build_embedding(kind: str, width: int, config: EmbeddingConfig) -> Mlp:
    """φ's architecture for features of `kind`, padded to `width`."""
    if kind != "vector":
        raise ConfigError(f"features of kind {kind!r} have no embedding; expected 'vector'.")
    return Mlp(width, config.hidden, config.latent_dim, config.dropout)


def stack_widths(schemas: Sequence[FeatureSchema]) -> dict[int, int]:
    """Padded width for each number of features: few widths, little padding.

    The widths depend on the whole federation and on nothing else, so that no result depends
    on which clients happen to be stacked together.
    """
    widths: dict[int, int] = {}
    current = 0
    for dim in sorted({schema.dim for schema in schemas}, reverse=True):
        if not current or (dim < current / 2 and current > CHEAP_WIDTH):
            current = -(-dim // 16) * 16
        widths[dim] = current
    return widths


def pad_features(parameters: Named, width: int) -> dict[str, Tensor]:
    """Parameters of one client with zero weights for padded features."""
    if FIRST_LAYER not in parameters:
        return dict(parameters)
    weight = parameters[FIRST_LAYER]
    padded = torch.nn.functional.pad(weight, (0, 0, 0, width - len(weight)))
    return {**parameters, FIRST_LAYER: padded}


def trim_features(parameters: Named, features: int) -> dict[str, Tensor]:
    """Parameters of one client without the weights of padded features."""
    if FIRST_LAYER not in parameters:
        return dict(parameters)
    return {**parameters, FIRST_LAYER: parameters[FIRST_LAYER][:features]}
