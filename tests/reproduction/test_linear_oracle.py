"""The oracle of the theory meets the assumptions of the paper (ass)."""

import pytest
import torch

from flic.errors import ConfigError
from flic.seeding import generator
from flic_paper.linear.oracle import LinearOracleConfig, make_linear_oracle

CONFIG = LinearOracleConfig(num_clients=12, latent_dim=4, rank=2, dims=(4, 9))


@pytest.fixture(scope="module")
def oracle():
    return make_linear_oracle(CONFIG, seed=1)


def test_representation_is_orthonormal_and_heads_have_length_sqrt_d(oracle):
    A = oracle.representation
    torch.testing.assert_close(A.mT @ A, torch.eye(2, dtype=torch.float64))
    lengths = torch.stack([client.head.norm() for client in oracle.clients])
    torch.testing.assert_close(lengths, torch.full_like(lengths, 2**0.5))


def test_feature_spaces_differ(oracle):
    dims = {client.moments.dim for client in oracle.clients}
    assert len(dims) > 2
    assert dims <= set(range(4, 10))


def test_oracle_features_are_standard_normal(oracle):
    for client in oracle.clients:
        matrix = client.embedding.matrix
        pushed = matrix @ client.moments.covariance @ matrix.mT
        torch.testing.assert_close(pushed, torch.eye(4, dtype=torch.float64))


def test_labels_are_those_of_the_linear_model(oracle):
    client = oracle.clients[3]
    rows = oracle.draw(client, 10, rng=generator(0, "rows"))
    for x, y in zip(rows.x, rows.y, strict=True):
        latent = client.embedding.matrix @ (x - client.moments.mean)
        assert y == pytest.approx(float((oracle.representation @ client.head) @ latent))


def test_a_client_does_not_depend_on_how_many_there_are(oracle):
    fewer = make_linear_oracle(LinearOracleConfig(3, 4, 2, (4, 9)), seed=1)
    assert torch.equal(fewer.clients[2].moments.factor, oracle.clients[2].moments.factor)


def test_heads_are_found_by_name(oracle):
    heads = oracle.heads_of(["client-007", "client-002"])
    assert torch.equal(heads[1], oracle.clients[2].head)


def test_too_small_a_feature_space_is_named():
    with pytest.raises(ConfigError, match=r"latent_dim 8 and dims \(5, 9\); expected 1 ≤ rank"):
        LinearOracleConfig(latent_dim=8, dims=(5, 9))
