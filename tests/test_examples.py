"""The engine is held to Algorithm 1 by hand, and the script runs."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from flic.data.client_data import ClientData, FederatedData, Split
from flic.data.schema import FeatureSchema
from flic.data.task import Classification
from flic.engine.engine import Engine
from flic.engine.journal import MemoryJournal
from flic.engine.rounds import Rounds, Schedule
from flic.engine.runners import InProcess, local_rounds
from flic.method_settings import MethodSettings
from flic.seeding import generator

SCRIPT = Path(__file__).parents[1] / "examples" / "flic_by_hand.py"
SEED = 1

# features, and rows of each class: single rows, fewer rows than a batch, more rows than
# dimensions, two padded widths (160 and 48), numbers of classes from 2 to 4.
CLIENTS = {
    "a": (3, {0: 9, 2: 31}),
    "b": (40, {1: 4, 2: 3}),
    "c": (150, {0: 20, 1: 25, 3: 17, 4: 1}),
    "d": (7, {3: 30, 4: 27}),
    "e": (12, {0: 1, 1: 12, 4: 14}),
}


def by_hand():
    spec = importlib.util.spec_from_file_location("flic_by_hand", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def make_client(name: str, dim: int, rows: dict[int, int]) -> ClientData:
    rng = generator(SEED, "test", name)
    y = torch.cat([torch.full((n,), c) for c, n in rows.items()])
    y = y[torch.randperm(len(y), generator=rng)]
    split = Split(torch.randn(len(y), dim, generator=rng) + y[:, None] / 4, y)
    schema = FeatureSchema(name, tuple(f"x{j}" for j in range(dim)))
    return ClientData(name, schema, split, Split.empty(dim), split)


@pytest.fixture(scope="module")
def data() -> FederatedData:
    clients = [make_client(name, *holding) for name, holding in CLIENTS.items()]
    return FederatedData("test", Classification(5), tuple(reversed(clients)))


@pytest.fixture(scope="module")
def settings():
    return by_hand().Settings(
        rounds=3,
        participation=0.8,
        local_epochs=2,
        shared_epochs=2,
        batch_size=20,  # above 16: class blocks in groups
        pretraining_epochs=2,
        pretraining_batch_size=7,  # up to 16: one masked Gram matrix
        learning_rate=0.01,
        latent_dim=6,
        embedding_hidden=(9, 8),
        hidden_dim=5,
        alignment_weight=0.3,
        calibration_weight=0.2,
        anchor_samples=4,
    )


def engine(data: FederatedData, s, *, stack_width: int) -> tuple[Rounds, list]:
    method = MethodSettings.model_validate(
        {
            "training": {
                "local": f"{s.local_epochs} epochs",
                "shared": f"{s.shared_epochs} epochs",
                "batch_size": s.batch_size,
                "optimiser": {"learning_rate": s.learning_rate},
            },
            "embedding": {"latent_dim": s.latent_dim, "hidden": s.embedding_hidden},
            "model": {"hidden_dim": s.hidden_dim},
            "alignment": {
                "weight": s.alignment_weight,
                "calibration_weight": s.calibration_weight,
                "anchor_samples": s.anchor_samples,
            },
            "pretraining": {
                "epochs": s.pretraining_epochs,
                "batch_size": s.pretraining_batch_size,
            },
        }
    )
    engine = Engine.of("flic-hl", method, data, seed=SEED, dtype=torch.float64)
    schedule = Schedule(s.rounds, s.participation, False, 0)
    jobs = InProcess(engine)
    rounds = local_rounds(jobs, schedule, MemoryJournal(), stack_width=stack_width)
    return rounds, list(rounds.steps())


def close(got: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(got, expected.detach(), atol=1e-10, rtol=0)


@pytest.fixture(scope="module")
def hand_rounds(data, settings):
    return list(by_hand().flic(data, settings, seed=SEED))


@pytest.fixture(scope="module", params=[100, 2, 1])
def run(request, data, settings):
    return engine(data, settings, stack_width=request.param)


def test_server_state_equals_the_loops_by_hand(run, hand_rounds):
    shared, last = run[0].journal.server.shared, hand_rounds[-1]
    close(shared["hidden.weight"], last.alpha.weight.T)
    close(shared["hidden.bias"], last.alpha.bias)
    close(torch.stack([shared[f"anchor.{c}.mean"] for c in range(5)]), last.v)


def test_private_parameters_equal_the_loops_by_hand(run, hand_rounds):
    for client in hand_rounds[-1].clients:
        (private,) = run[0].journal.states([client.name])
        expected = {"head.weight": client.beta.weight.T, "head.bias": client.beta.bias}
        for layer, module in enumerate(client.phi[::2]):
            expected[f"embedding.{layer}.weight"] = module.weight.T
            expected[f"embedding.{layer}.bias"] = module.bias
        assert private.keys() == expected.keys()
        for name, value in expected.items():
            close(private[name], value)


def test_reported_losses_equal_the_loops_by_hand(run, hand_rounds):
    records = [record for record in run[1] if record["stage"] == "update"]
    for record, hand in zip(records, hand_rounds, strict=True):
        terms = record["losses"]
        got = [terms[term] for term in ("data", "alignment", "calibration")]
        close(torch.tensor(got, dtype=torch.float64), hand.losses)


@pytest.mark.process
def test_script_learns():
    done = subprocess.run([sys.executable, SCRIPT], capture_output=True, text=True, check=True)
    losses = [float(x) for x in re.findall(r"data ([\d.]+)", done.stdout)]
    assert losses[-1] < losses[0] / 2
    accuracy = float(re.search(r"mean accuracy: ([\d.]+)", done.stdout)[1])
    assert accuracy > 0.6  # clients hold 2 or 3 classes: chance is below 0.5
