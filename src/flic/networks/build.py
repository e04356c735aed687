"""Networks for feature schemas; only this module chooses them by the kind of features."""

from flic.data.schema import FeatureSchema
from flic.method_settings import EmbeddingConfig
from flic.networks.base import Embedding
from flic.networks.cnn import Cnn
from flic.networks.mlp import Mlp


def build_embedding(
    schema: FeatureSchema, config: EmbeddingConfig, *, width: int | None = None
) -> Embedding:
    """Architecture of φ for a client's features; vectors are padded to `width`."""
    if schema.shape is not None:
        return Cnn(schema.shape, config.latent_dim, config.dropout, config.drops, config.activation)
    width = width or schema.dim
    return Mlp(width, config.hidden, config.latent_dim, config.dropout, config.activation)
