"""Factories of tiny federations and of the parts that run them."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from flic.data.client_data import ClientData, FederatedData, Split
from flic.data.schema import FeatureSchema
from flic.data.task import Classification
from flic.engine.engine import Engine
from flic.engine.journal import Journal
from flic.engine.rounds import Rounds, Schedule
from flic.engine.runners import InProcess, local_rounds
from flic.method_settings import MethodSettings
from flic.seeding import generator
from flic.settings import merge

SMALL: dict[str, Any] = {
    "training": {"local": "1 epochs", "batch_size": 10},
    "embedding": {"latent_dim": 8, "hidden": [8]},
    "model": {"hidden_dim": 8},
    "alignment": {"anchor_samples": 2},
    "pretraining": {"epochs": 0},
}


@pytest.fixture
def federation() -> Callable[..., FederatedData]:
    """federation(num_clients, dims=, rows=): clients of two classes; sizes are repeated in turn."""

    def make(
        num_clients: int = 4, *, dims: Sequence[int] = (3, 5), rows: Sequence[int] = (6, 9)
    ) -> FederatedData:
        clients = []
        for i in range(num_clients):
            n, dim, name = rows[i % len(rows)], dims[i % len(dims)], f"client-{i:05d}"
            y = torch.arange(n) % 2
            x = torch.randn(n, dim, generator=generator(0, name)) + y[:, None]
            schema = FeatureSchema(name, tuple(f"x{j}" for j in range(dim)))
            split = Split(x, y)
            clients.append(ClientData(name, schema, split, Split.empty(dim), split))
        return FederatedData("tiny", Classification(2), tuple(clients))

    return make


@pytest.fixture
def simulation() -> Callable[..., Rounds]:
    """simulation(data, journal, rounds=, participation=, evaluate_every=, method=, section={…})."""

    def make(
        data: FederatedData,
        journal: Journal,
        *,
        method: str = "flic-hl",
        rounds: int = 3,
        participation: float = 0.5,
        evaluate_every: int = 1,
        final_round: bool = True,
        **changes: Any,
    ) -> Rounds:
        settings = MethodSettings.model_validate(merge(SMALL, changes))
        engine = Engine.of(method, settings, data, seed=0)
        schedule = Schedule(rounds, participation, final_round, evaluate_every)
        return local_rounds(InProcess(engine), schedule, journal, stack_width=100)

    return make
