"""`embedding.frozen`: rounds leave φ as pre-training made it.  Paper: sec:alignment."""

import pytest
import torch
from small_federation import NETWORKS

from flic.errors import ConfigError

FROZEN = {"embedding": {"latent_dim": 8, "hidden": [16], "frozen": True}}
PRIVATE_EMBEDDINGS = [name for name in NETWORKS if name not in ("within-space", "fedavg")]


@pytest.mark.parametrize("method", PRIVATE_EMBEDDINGS)
@pytest.mark.parametrize("realign_epochs", [0, 1])
def test_rounds_move_the_head_and_not_the_embedding(run, method, realign_epochs):
    alignment = {"realign_epochs": realign_epochs}
    before = run(method, rounds=0, final=False, alignment=alignment, **FROZEN).states
    after = run(method, rounds=2, alignment=alignment, **FROZEN).states
    assert len(before) == 5
    for name, start in before.items():
        for parameter, value in start.items():
            stays = torch.equal(value, after[name][parameter])
            assert stays == parameter.startswith("embedding."), (name, parameter)


@pytest.mark.parametrize("method", PRIVATE_EMBEDDINGS)
def test_pre_training_moves_the_embedding_all_the_same(run, method):
    short, long = (
        run(method, rounds=0, final=False, pretraining={"epochs": epochs}, **FROZEN).states
        for epochs in (1, 2)
    )
    for name, start in short.items():
        assert not torch.equal(start["embedding.0.weight"], long[name]["embedding.0.weight"])


def test_a_method_that_shares_the_embedding_refuses(run):
    with pytest.raises(ConfigError, match=r"embedding\.frozen = true"):
        run("within-space", **FROZEN)
