"""Factories of small federations in double precision, one stage at a time."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from flic.data.client_data import ClientData, FederatedData, Split
from flic.data.schema import FeatureSchema
from flic.data.stacked import StackedData
from flic.data.task import Classification
from flic.engine.engine import Engine, stack_of
from flic.method_settings import MethodSettings
from flic.methods.protocol import ServerState, Stack, Visit, VisitContext
from flic.seeding import generator
from flic.settings import merge

SMALL: dict[str, Any] = {
    "training": {
        "batch_size": 1000,
        "optimiser": {"kind": "sgd", "learning_rate": 0.1},
    },
    "embedding": {"latent_dim": 4, "hidden": [6]},
    "model": {"hidden_dim": 3},
    "pretraining": {"epochs": 0},
}


@dataclass(frozen=True)
class Place:
    """A method, the server, and all clients of a federation in one stack."""

    method: Any
    server: ServerState
    stack: Stack
    data: StackedData

    def do(self, stage: str, round: int = 1) -> Visit:
        rngs = [generator(0, stage, name) for name in self.data.names]
        server = replace(self.server, round=round)
        context = VisitContext(server, self.stack, self.data, rngs)
        return self.method.stages[stage].client_half(context)

    def after(self, visit: Visit, stage: str = "update") -> "Place":
        """The same place once the visit is over and its updates are averaged."""
        server = self.method.stages[stage].server_half(self.server, visit.updates)
        return replace(self, server=server, stack=visit.stack)

    def latent(self, client: int) -> torch.Tensor:
        """φ_i of all training rows of one client."""
        count = self.data.train.counts[client]
        return self.stack.embedding.apply(self.stack.private, self.data.train.x)[client, :count]


@pytest.fixture
def client() -> Callable[..., ClientData]:
    """client(name, classes=, dim=, rows=, features=, space=): rows around class means."""

    def make(
        name: str,
        classes: Sequence[int] = (0, 1),
        *,
        dim: int = 5,
        rows: int = 40,
        features: Sequence[str] | None = None,
        space: str | None = None,
    ) -> ClientData:
        rng = generator(0, "paper", name)
        names = tuple(features or (f"x{j}" for j in range(dim)))
        y = torch.tensor(classes)[torch.arange(rows) % len(classes)]
        x = torch.randn(rows, len(names), generator=rng) + y[:, None]
        split = Split(x, y)
        schema = FeatureSchema(space or name, names)
        return ClientData(name, schema, split, Split.empty(len(names)), split)

    return make


@pytest.fixture
def federation(client) -> Callable[..., tuple[ClientData, ...]]:
    """federation(): three clients of different widths, sizes and classes; each class has two."""

    def make() -> tuple[ClientData, ...]:
        return (
            client("a", (0, 1), dim=5, rows=60),
            client("b", (1, 2), dim=9, rows=50),
            client("c", (0, 2), dim=20, rows=40),
        )

    return make


@pytest.fixture
def place(federation) -> Callable[..., Place]:
    """place(method, clients, section={...}): those clients at their first visit."""

    def make(
        method: str, clients: Sequence[ClientData] | None = None, *, num_classes=3, **changes: Any
    ) -> Place:
        settings = MethodSettings.model_validate(merge(SMALL, changes))
        data = FederatedData("paper", Classification(num_classes), tuple(clients or federation()))
        engine = Engine.of(method, settings, data, seed=0, dtype=torch.float64)
        [names] = engine.clients.split(engine.clients.names, stack_width=9)
        stack = stack_of(engine.clients, engine.method, names, [None] * len(names))
        server, rows = engine.method.init_server(), engine.clients.stacked_data(names)
        return Place(engine.method, server, stack, rows)

    return make
