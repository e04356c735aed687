"""A visit of FLIC-HL on real responses is what plain PyTorch makes of it, one client at a time."""

import pytest
import torch
from torch.nn.functional import leaky_relu

from flic.data.batches import draw_batches
from flic.engine.engine import Engine, Job
from flic.method_settings import MethodSettings
from flic.seeding import generator
from flic_paper.problems.regression import MadeRegressionConfig, make_regression

SETTINGS = MethodSettings.model_validate(
    {
        "training": {"local": "2 epochs", "batch_size": 8},
        "pretraining": {"epochs": 2, "batch_size": 7},
        "alignment": {"weight": 0.1, "calibration_weight": 0.2, "anchor_samples": 6},
        "anchors": {"variance": 0.5},
        "embedding": {"latent_dim": 8, "hidden": [9]},
        "model": {"hidden_dim": 10},
    }
)


@pytest.fixture(scope="module")
def engine() -> Engine:
    config = MadeRegressionConfig(problem="made-regression", num_clients=5, test_rows=4)
    data = make_regression(config, seed=3)
    return Engine.of("flic-hl", SETTINGS, data, seed=3, dtype=torch.float64)


class Plain:
    """One client, no client axis: parameters by name and Adam."""

    def __init__(self, engine, name, server):
        client = engine.clients[name]
        initial = engine.method.init_client(client, engine.clients.architecture(name))
        self.p = {n: v.clone().requires_grad_() for n, v in (dict(server.shared) | initial).items()}
        task = engine.clients.data.task
        self.x = client.train.x.double()
        self.y = ((client.train.y.double() - task.low) / task.width).float().double()

    def embed(self, x):
        p = self.p
        inner = torch.relu(x @ p["embedding.0.weight"] + p["embedding.0.bias"])
        return inner @ p["embedding.1.weight"] + p["embedding.1.bias"]

    def mean(self, y):
        b, a = self.p["anchor.0.mean"], self.p["anchor.1.mean"]
        return y[:, None] * a + (1 - y[:, None]) * b

    def head(self, z):
        p = self.p
        hidden = leaky_relu(z @ p["hidden.weight"] + p["hidden.bias"])
        return (hidden @ p["head.weight"] + p["head.bias"])[:, 0]

    def alignment(self, z, y):
        return (z - self.mean(y)).square().sum(1).mean()

    def objective(self, z, y, rng):
        s = SETTINGS.alignment
        data = (self.head(z) - y).square().mean()
        even = (torch.arange(s.anchor_samples, dtype=torch.float64) + 0.5) / s.anchor_samples
        noise = torch.empty(1, s.anchor_samples, 8, dtype=torch.float64).normal_(generator=rng)[0]
        samples = self.mean(even) + 0.5**0.5 * noise
        calibration = (self.head(samples) - even).square().mean()
        pulled = self.alignment(z, y)
        return data + s.weight * pulled + s.calibration_weight * calibration

    def descend(self, names, epochs, batch_size, rng, loss):
        optimiser = torch.optim.Adam([self.p[n] for n in self.p if n.startswith(names)], lr=1e-3)
        n = len(self.y)
        slot = torch.cat([torch.zeros(n), torch.ones(1)])
        for rows in draw_batches(slot, epochs * -(-n // batch_size), batch_size, rng=rng):
            rows = rows[rows < n]
            optimiser.zero_grad()
            loss(self.embed(self.x[rows]), self.y[rows]).backward()
            optimiser.step()


@pytest.mark.parametrize("stage", ["prepare", "update"])
def test_a_visit_is_that_of_plain_pytorch(engine, stage):
    server, clients = engine.method.init_server(), engine.clients
    (stack,) = clients.split(clients.names, stack_width=100)
    answer = engine.do(Job(stage, server, stack, [None] * len(stack)))
    sent = {update.client: update.entries for update in answer.updates}
    for name in stack:
        client, rng = Plain(engine, name, server), generator(3, stage, 0, name)
        if stage == "prepare":
            client.descend("embedding.", 2, 7, rng, client.alignment)
        else:

            def loss(z, y, client=client, rng=rng):
                return client.objective(z, y, rng)

            client.descend(("embedding.", "head."), 2, 8, rng, loss)
            client.descend(("hidden.", "anchor."), 1, 8, rng, loss)
            assert sent[name].keys() == server.shared.keys()
            for key, entry in sent[name].items():
                torch.testing.assert_close(client.p[key].detach(), entry.value, rtol=0, atol=1e-9)
                assert not torch.equal(entry.value, server.shared[key])
        for key, value in answer.states[name].items():
            torch.testing.assert_close(client.p[key].detach(), value, rtol=0, atol=1e-9)


def test_losses_are_told_term_by_term(engine):
    server, clients = engine.method.init_server(), engine.clients
    (stack,) = clients.split(clients.names, stack_width=100)
    answer = engine.do(Job("update", server, stack, [None] * len(stack)))
    assert {frozenset(terms) for terms in answer.losses.values()} == {
        frozenset({"data", "alignment", "calibration"})
    }
