from flic.data.schema import FeatureSchema
from flic.method_settings import EmbeddingConfig
from flic.networks.build import build_embedding
from flic.networks.cnn import Cnn


def test_vectors_get_a_perceptron_of_the_configured_size():
    config = EmbeddingConfig(latent_dim=7, hidden=(5, 6), dropout=0.5)
    mlp = build_embedding(FeatureSchema("s", tuple("abc")), config, width=16)
    assert mlp.sizes == (16, 5, 6, 7)
    assert mlp.dropout == 0.5


def test_defaults_are_the_papers():
    vector = FeatureSchema("s", tuple("abc"))
    assert build_embedding(vector, EmbeddingConfig(), width=16).sizes == (16, 64, 64, 64)


def test_images_get_a_convolutional_network_of_their_size():
    config = EmbeddingConfig(latent_dim=7, dropout=0.5)
    assert build_embedding(FeatureSchema.of_images("s", 9, 8), config) == Cnn((9, 8), 7, 0.5)
