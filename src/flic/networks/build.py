"""Networks for feature schemas; only this module chooses them by the kind of features."""

from collections.abc import Sequence

import torch
from torch import Tensor

from flic.data.schema import FeatureSchema
from flic.method_settings import EmbeddingConfig
from flic.networks.base import Embedding
from flic.networks.cnn import Cnn
from flic.networks.mlp import FIRST_LAYER, Mlp
from flic.shapes import Named

# Below this width, a wider first layer costs less than a second stack.
CHEAP_WIDTH = 128
# Up to this width, zeros at the end of a row do not change the order of summation.
SUMMED_AT_ONCE = 256


def build_embedding(
    schema: FeatureSchema, config: EmbeddingConfig, *, width: int | None = None
) -> Embedding:
    """Architecture of φ for a client's features; vectors are padded to `width`."""
    if schema.shape is not None:
        return Cnn(schema.shape, config.latent_dim, config.dropout)
    return Mlp(width or schema.dim, config.hidden, config.latent_dim, config.dropout)


def stack_widths(schemas: Sequence[FeatureSchema]) -> dict[int, int]:
    """Padded width for each number of features of a vector: few widths, little padding.

    The widths depend only on the whole federation, so that no result depends on which clients
    are stacked together. A wide client's width depends only on its own features: a product sums
    long rows in parts, and the width decides where these end.
    """
    widths: dict[int, int] = {}
    current = 0
    vectors = {schema.dim for schema in schemas if schema.shape is None}
    for dim in sorted(vectors, reverse=True):
        small = dim < current / 2 and current > CHEAP_WIDTH
        if not current or small or current > SUMMED_AT_ONCE:
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
