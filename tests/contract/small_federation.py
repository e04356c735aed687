"""A small federation of sizes that are all different, and what tests compare of a run on it.

No number of rows or features equals any size of the networks below, so that a tensor with such
a dimension gives itself away. Nobody holds the last class. "METHOD on responses" stands for the
same clients with real responses in place of classes.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from flic.data.client_data import ClientData, FederatedData, Split
from flic.data.schema import FeatureSchema
from flic.data.stacked import StackedData
from flic.data.task import Classification, Regression
from flic.engine.engine import Engine
from flic.engine.journal import MemoryJournal, Record
from flic.engine.rounds import Schedule
from flic.engine.runners import Jobs, local_rounds, open_jobs
from flic.method_settings import MethodSettings
from flic.methods import METHODS
from flic.methods.network import NetworkMethod
from flic.methods.protocol import Method, ServerState, Stack, VisitContext
from flic.seeding import generator
from flic.settings import merge

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

#: Double precision, in which a run is the same however it is carried out, to a share of DOUBLE_TOL.
DOUBLE = {"dtype": torch.float64}
DOUBLE_TOL = 1e-9

#: In single precision Adam turns a rounding of a vanishing gradient into a whole step, so paths are
#: compared under plain descent, which follows gradients.
PLAIN_DESCENT = {"training": {"optimiser": {"kind": "sgd", "learning_rate": 0.01}}}
SINGLE_TOL = 1e-4

RESPONSES = Regression(-10.0, 30.0)
ON_RESPONSES = " on responses"

#: Of the paper's package, one method stands for its three, which differ in what FLIC's own do.
NAMES = [name for name in METHODS if not name.endswith("-authors")] + ["flic-hl-authors"]
NETWORKS = [name for name in NAMES if issubclass(METHODS[name], NetworkMethod)]
METHODS_ON_BOTH = [name for name in NAMES if "classification" in METHODS[name].tasks] + [
    name + ON_RESPONSES for name in NAMES if "regression" in METHODS[name].tasks
]
NETWORKS_ON_BOTH = [n for n in METHODS_ON_BOTH if n.removesuffix(ON_RESPONSES) in NETWORKS]


def make_client(i: int, *, responses: bool = False) -> ClientData:
    name = f"client-{i}"
    rng = generator(1, "contract", name)
    rows, dim = ROWS[i], DIMS[i]
    held = torch.tensor([i, i + 1, i + 3])[: 2 + i % 2]
    y = held[torch.arange(rows + 6) % len(held)]
    x = torch.randn(rows + 6, dim, generator=rng) + 0.3 * y[:, None]
    if responses:
        y = 10 + 4 * x[:, 0] + torch.randn(rows + 6, generator=rng)
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


def make_federation(order: Sequence[int] = range(5), *, responses: bool = False) -> FederatedData:
    task = RESPONSES if responses else Classification(CLASSES)
    clients = tuple(make_client(i, responses=responses) for i in order)
    return FederatedData("contract", task, clients).with_validation(0.2, seed=0)


def make_settings(**changes: Any) -> MethodSettings:
    return MethodSettings.model_validate(merge(TINY, changes))


def engine_of(
    method: str, data: FederatedData | None = None, *, seed: int = 0, dtype=torch.float32, **changes
) -> Engine:
    """The engine of a method, which may be "NAME on responses"."""
    data = data or make_federation(responses=method.endswith(ON_RESPONSES))
    own = make_settings(**changes)
    return Engine.of(method.removesuffix(ON_RESPONSES), own, data, seed=seed, dtype=dtype)


def three_of(method: str) -> FederatedData:
    """Three of the clients, two of them of one space, for what takes long."""
    return make_federation(order=(0, 1, 4), responses=method.endswith(ON_RESPONSES))


def small_engine(method: str) -> Engine:
    """The engine of a method among three clients, which other processes make too."""
    return engine_of(method, three_of(method), **DOUBLE)


@dataclass(frozen=True)
class Ran:
    """All that a run leaves behind."""

    records: list[Record]  # without timings
    server: ServerState
    states: dict[str, Mapping[str, Tensor]]

    def assert_equals(self, other: "Ran") -> None:
        """To the last bit: what the same machine gives where it does the same work."""
        assert self.records == other.records
        self._compare(other, rtol=0.0)

    def assert_agrees(self, other: "Ran", *, rtol: float) -> None:
        """But for rounding, which depends on how clients are stacked and on the processor."""
        assert len(self.records) == len(other.records)
        for own, others in zip(self.records, other.records, strict=True):
            assert own.keys() == others.keys()
            for key in own.keys() - {"losses", "scores"}:
                assert own[key] == others[key]
            for key in own.keys() & {"losses", "scores"}:
                assert _flat(own[key]) == pytest.approx(_flat(others[key]), rel=rtol)
        self._compare(other, rtol=rtol)

    def _compare(self, other: "Ran", *, rtol: float) -> None:
        assert_same(self.server.shared, other.server.shared, rtol=rtol)
        assert self.states.keys() == other.states.keys()
        for name, state in self.states.items():
            assert_same(state, other.states[name], rtol=rtol)


def run_of(
    method: str,
    data: FederatedData | None = None,
    *,
    jobs: Callable[[Engine], AbstractContextManager[Jobs]] | None = None,
    stack_width: int = 100,
    rounds: int = 2,
    final: bool = True,
    **more: Any,
) -> Ran:
    """A whole run in memory; `jobs` opens a way to do jobs that is not this process."""
    engine, journal = engine_of(method, data, **more), MemoryJournal()
    schedule = Schedule(rounds, 0.6, final, 1)
    with (jobs or partial(open_jobs, workers=1))(engine) as opened:
        steps = list(local_rounds(opened, schedule, journal, stack_width=stack_width).steps())
    for record in steps:
        del record["seconds"], record["cpu_seconds"]
    names = sorted(engine.clients.names)
    states = dict(zip(names, journal.states(names), strict=True))
    return Ran(steps, journal.server, {n: s for n, s in states.items() if s is not None})


def _flat(numbers: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """Numbers of nested tables under dotted names."""
    flat: dict[str, float] = {}
    for name, value in numbers.items():
        nested = isinstance(value, Mapping)
        flat |= _flat(value, f"{prefix}{name}.") if nested else {prefix + name: value}
    return flat


def assert_same(a: Mapping[str, Tensor], b: Mapping[str, Tensor], *, rtol: float = 0.0) -> None:
    """Each tensor to a share of its largest entry."""
    assert a.keys() == b.keys()
    for name in a:
        assert a[name].shape == b[name].shape, name
        apart = (a[name] - b[name]).abs().max() if a[name].numel() else 0.0
        size = a[name].abs().max() if a[name].numel() else 0.0
        assert apart <= rtol * size, f"{name}: {apart} apart"


@dataclass(frozen=True)
class Visited:
    """A method and one stack of clients, ready for a stage."""

    method: Method
    server: ServerState
    stack: Stack
    data: StackedData
    seed: int = 0

    @property
    def rngs(self) -> list[torch.Generator]:
        return [generator(self.seed, "stage", name) for name in self.data.names]

    def do(self, stage: str, server: ServerState | None = None):
        work = self.method.stages[stage].client_half
        return work(VisitContext(server or self.server, self.stack, self.data, self.rngs))
