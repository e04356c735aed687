"""The stacked engine does what plain PyTorch does, one client after another."""

import pytest
import torch

from flic.data.client_data import ClientData, FederatedData, Split
from flic.data.schema import FeatureSchema
from flic.data.task import Classification
from flic.data.toy import ToyConfig, make_toy
from flic.engine.engine import Engine, Job, Stage
from flic.method_settings import MethodSettings
from flic.methods.flic.anchors import MEAN
from flic.seeding import generator
from flic_paper.benchmark.sequential import SequentialClient

SETTINGS = MethodSettings.model_validate(
    {
        "training": {"local": "2 epochs", "batch_size": 20},
        "pretraining": {"epochs": 2, "batch_size": 7},
        "alignment": {"weight": 0.1, "calibration_weight": 0.1, "anchor_samples": 6},
        "embedding": {"latent_dim": 8, "hidden": [9]},
        "model": {"hidden_dim": 10},
    }
)


@pytest.fixture(scope="module")
def engine() -> Engine:
    config = ToyConfig(
        problem="linear-mapping",
        variant="appendix",
        num_clients=7,
        num_classes=5,
        train_rows_per_class=60,
        test_rows_per_class=5,
    )
    data = make_toy(config, seed=3)
    return Engine.of("flic-hl", SETTINGS, data, seed=3, dtype=torch.float64)


@pytest.mark.parametrize("stage", ["prepare", "update"])
def test_private_parameters_are_those_of_plain_pytorch(engine: Engine, stage: Stage) -> None:
    server, clients = engine.method.init_server(), engine.clients
    sizes = [len(clients[name].train) for name in clients.names]
    assert min(sizes) < 20 < max(sizes)
    (stack,) = clients.split(clients.names, stack_width=100)
    answer = engine.do(Job(stage, server, stack, [None] * len(stack)))
    for name in stack:
        initial = engine.method.init_client(clients[name], clients.architecture(name))
        client = SequentialClient(clients[name], initial, server, SETTINGS)
        rng = generator(3, stage, 0, name)
        client.update(rng) if stage == "update" else client.pretrain(rng)
        own = answer.states[name]
        for i in range(2):
            torch.testing.assert_close(
                client.phi[2 * i].weight.mT, own[f"embedding.{i}.weight"], rtol=0, atol=1e-10
            )
        torch.testing.assert_close(client.head.weight.mT, own["head.weight"], rtol=0, atol=1e-10)
        assert not torch.equal(own["embedding.0.weight"], initial["embedding.0.weight"])


def test_updates_are_those_of_plain_pytorch(engine: Engine) -> None:
    server, clients = engine.method.init_server(), engine.clients
    (stack,) = clients.split(clients.names, stack_width=100)
    answer = engine.do(Job("update", server, stack, [None] * len(stack)))
    for update in answer.updates:
        data = clients[update.client]
        initial = engine.method.init_client(data, clients.architecture(update.client))
        client = SequentialClient(data, initial, server, SETTINGS)
        client.update(generator(3, "update", 0, update.client))
        hidden = update.entries["hidden.weight"].value
        torch.testing.assert_close(client.hidden.weight.mT, hidden, rtol=0, atol=1e-10)
        for slot, c in enumerate(client.classes):
            mean = update.entries[f"anchor.{c}.mean"].value
            torch.testing.assert_close(client.means[slot], mean, rtol=0, atol=1e-10)
            assert not torch.equal(mean, server.shared[f"anchor.{c}.mean"]), MEAN


def test_images_train_as_in_plain_pytorch() -> None:
    schema = FeatureSchema.of_images("images", 17, 16)
    rng = generator(5)
    y = torch.arange(23) % 3
    x = torch.randn(23, schema.dim, generator=rng)
    rows, empty = Split(x, y), Split.empty(schema.dim)
    client = ClientData("one", schema, rows, empty, rows)
    data = FederatedData("images", Classification(3), (client,))
    engine = Engine.of("flic-hl", SETTINGS, data, seed=3, dtype=torch.float64)
    server = engine.method.init_server()
    answer = engine.do(Job("update", server, ("one",), [None]))
    initial = engine.method.init_client(client, engine.clients.architecture("one"))
    plain = SequentialClient(client, initial, server, SETTINGS)
    plain.update(generator(3, "update", 0, "one"))
    for place, name in ((1, "conv1"), (4, "conv2")):
        own = answer.states["one"][f"embedding.{name}.weight"]
        torch.testing.assert_close(plain.phi[place].weight, own, rtol=0, atol=1e-9)
        assert not torch.equal(own, initial[f"embedding.{name}.weight"])
