"""A federation with telling sizes, and every way to run it.

No number of rows or features equals any size of the networks below, so that a tensor with such
a dimension gives itself away. Nobody holds the last class.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from flic.algorithms import METHODS, Algorithm, MethodSettings, ServerState, Stack, build_algorithm
from flic.config import merge
from flic.data import ClientData, FeatureSchema, FederatedData, Split
from flic.data.stacked import StackedData
from flic.federation.journal import MemoryJournal, Record
from flic.federation.loop import Schedule, Simulation
from flic.federation.roster import Roster
from flic.federation.runners import open_runner
from flic.federation.work import Workshop
from flic.seeding import generator

CLASSES = 8
DIMS = (7, 11, 13, 17, 140)  # the last one is wide enough for a stack of its own
ROWS = (23, 41, 29, 37, 31)

TINY: dict[str, Any] = {
    "training": {"local": "2 epochs", "batch_size": 10, "optimiser": {"learning_rate": 0.01}},
    "embedding": {"latent_dim": 8, "hidden": [16], "dropout": 0.25},
    "model": {"hidden_dim": 24},
    "alignment": {"weight": 0.1, "calibration_weight": 0.1, "anchor_samples": 3},
    "pretraining": {"epochs": 1},
    "fedhenn": {"probe_rows": 32},
}

NETWORKS = [name for name, method in METHODS.items() if method.has_rounds]


def _client(i: int) -> ClientData:
    name = f"client-{i}"
    rng = generator(1, "contract", name)
    rows, dim = ROWS[i], DIMS[i]
    held = torch.tensor([i, i + 1, i + 3])[: 2 + i % 2]
    y = held[torch.arange(rows + 6) % len(held)]
    x = torch.randn(rows + 6, dim, generator=rng) + 0.3 * y[:, None]
    return ClientData(
        name,
        _schema(i, dim),
        Split(x[:rows], y[:rows]),
        Split.empty(dim),
        Split(x[rows:], y[rows:]),
    )


def _schema(i: int, dim: int) -> FeatureSchema:
    """Clients 0-2 read one space, whose features they know in part and in orders of their own."""
    names = [f"f{j}" for j in range(dim)]
    if i == 0:
        names = [f"f{j}" for j in range(12, 12 - dim, -1)]
    return FeatureSchema("ward" if i < 3 else f"own-{i}", tuple(names))


@dataclass(frozen=True)
class Ran:
    """All that a run leaves behind."""

    records: list[Record]  # without timings
    server: ServerState
    states: dict[str, Mapping[str, Tensor]]

    def assert_equals(self, other: "Ran", *, atol: float = 0.0) -> None:
        assert _without_losses(self.records) == _without_losses(other.records)
        for own, others in zip(self.records, other.records, strict=True):
            assert own.get("losses", {}) == pytest.approx(others.get("losses", {}), abs=atol, rel=0)
        assert_same(self.server.shared, other.server.shared, atol=atol)
        assert self.states.keys() == other.states.keys()
        for name, state in self.states.items():
            assert_same(state, other.states[name], atol=atol)


def _without_losses(records: Sequence[Record]) -> list[Record]:
    return [{k: v for k, v in record.items() if k != "losses"} for record in records]


def assert_same(a: Mapping[str, Tensor], b: Mapping[str, Tensor], *, atol: float = 0.0) -> None:
    assert a.keys() == b.keys()
    for name in a:
        torch.testing.assert_close(a[name], b[name], atol=atol, rtol=0, msg=lambda m: m + name)


@dataclass(frozen=True)
class Visited:
    """A method and one stack of clients, ready for a stage."""

    algorithm: Algorithm
    server: ServerState
    stack: Stack
    data: StackedData
    seed: int = 0

    @property
    def rngs(self) -> list[torch.Generator]:
        return [generator(self.seed, "stage", name) for name in self.data.names]

    def do(self, stage: str, server: ServerState | None = None):
        work = getattr(self.algorithm, stage)
        return work(server or self.server, self.stack, self.data, rngs=self.rngs)


@pytest.fixture
def federation() -> Callable[..., FederatedData]:
    """federation(order=...): five clients, in that order."""

    def make(order: Sequence[int] = range(5)) -> FederatedData:
        data = FederatedData("contract", CLASSES, tuple(_client(i) for i in order))
        return data.with_validation(0.2, seed=0)

    return make


@pytest.fixture
def settings() -> Callable[..., MethodSettings]:
    """settings(section={...}): tiny networks and little work, with the given changes."""

    def make(**changes: Mapping[str, Any]) -> MethodSettings:
        return MethodSettings.model_validate(merge(TINY, changes))

    return make


@pytest.fixture
def workshop(federation, settings) -> Callable[..., Workshop]:
    """workshop(method, data, dtype=, section={...})."""

    def make(method, data=None, *, dtype=torch.float32, seed=0, **changes) -> Workshop:
        own = settings(**changes)
        roster = Roster(data or federation(), own.embedding, dtype=dtype)
        algorithm = build_algorithm(method, own, roster.population, seed=seed, dtype=dtype)
        return Workshop(algorithm, roster, seed)

    return make


@pytest.fixture
def run(workshop) -> Callable[..., Ran]:
    """run(method, data, stack_width=, workers=, rounds=, ...): a whole run in memory."""

    def make(method, data=None, *, stack_width=100, workers=1, rounds=2, final=True, **more) -> Ran:
        shop = workshop(method, data, **more)
        journal = MemoryJournal()
        schedule = Schedule(rounds, 0.6, final, 1, stack_width, workers)
        with open_runner(shop, workers=workers) as runner:
            steps = list(Simulation(shop, schedule, journal, runner).steps())
        for record in steps:
            del record["seconds"], record["cpu_seconds"]
        names = sorted(shop.roster.names)
        states = dict(zip(names, journal.states(names), strict=True))
        return Ran(steps, journal.server, {n: s for n, s in states.items() if s is not None})

    return make


@pytest.fixture
def visit(workshop) -> Callable[..., Visited]:
    """visit(method, names, round=, ...): those clients before the server, in one stack."""

    def make(method, names=("client-1", "client-3", "client-2", "client-0"), *, round=1, **more):
        shop = workshop(method, **more)
        [names] = shop.roster.split(names, stack_width=9)
        clients = [shop.roster[n] for n in names]
        states = [shop.algorithm.init_client(c, shop.roster.architecture(c.name)) for c in clients]
        server = replace(shop.algorithm.init_server(), round=round)
        stack = Stack(shop.roster.architecture(names[0]), {})
        if states[0]:
            stack = shop.roster.stack(names, states)
        return Visited(shop.algorithm, server, stack, shop.roster.stacked_data(names))

    return make
