"""Factories of the contract tests: the telling federation, and every way to run it."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
import torch
from telling import ON_RESPONSES, Ran, Visited, make_federation, make_settings

from flic.data.client_data import FederatedData
from flic.engine.engine import Engine
from flic.engine.journal import MemoryJournal
from flic.engine.rounds import Schedule
from flic.engine.runners import local_rounds, open_jobs
from flic.method_settings import MethodSettings
from flic.methods.protocol import Stack


@pytest.fixture
def federation() -> Callable[..., FederatedData]:
    """federation(order=..., responses=...): five clients, in that order."""

    return make_federation


@pytest.fixture
def settings() -> Callable[..., MethodSettings]:
    """settings(section={...}): tiny networks and little work, with the given changes."""

    return make_settings


@pytest.fixture
def make_engine(federation, settings) -> Callable[..., Engine]:
    """make_engine(method, data, dtype=, section={...}); the method may be "NAME on responses"."""

    def make(method, data=None, *, dtype=torch.float32, seed=0, **changes) -> Engine:
        own = settings(**changes)
        data = data or federation(responses=method.endswith(ON_RESPONSES))
        method = method.removesuffix(ON_RESPONSES)
        return Engine.of(method, own, data, seed=seed, dtype=dtype)

    return make


@pytest.fixture
def run(make_engine) -> Callable[..., Ran]:
    """run(method, data, stack_width=, workers=, jobs=, rounds=, ...): a whole run in memory.

    `jobs` opens another way to do jobs for an engine.
    """

    def make(
        method, data=None, *, stack_width=100, workers=1, jobs=None, rounds=2, final=True, **more
    ) -> Ran:
        engine = make_engine(method, data, **more)
        journal = MemoryJournal()
        schedule = Schedule(rounds, 0.6, final, 1)
        with (jobs or partial(open_jobs, workers=workers))(engine) as opened:
            steps = list(local_rounds(opened, schedule, journal, stack_width=stack_width).steps())
        for record in steps:
            del record["seconds"], record["cpu_seconds"]
        names = sorted(engine.clients.names)
        states = dict(zip(names, journal.states(names), strict=True))
        return Ran(steps, journal.server, {n: s for n, s in states.items() if s is not None})

    return make


@pytest.fixture
def visit(make_engine) -> Callable[..., Visited]:
    """visit(method, names, round=, ...): those clients before the server, in one stack."""

    def make(method, names=("client-1", "client-3", "client-2", "client-0"), *, round=1, **more):
        engine = make_engine(method, **more)
        [names] = engine.clients.split(names, stack_width=9)
        clients = [engine.clients[n] for n in names]
        states = [
            engine.method.init_client(c, engine.clients.architecture(c.name)) for c in clients
        ]
        server = replace(engine.method.init_server(), round=round)
        stack = Stack(engine.clients.architecture(names[0]), {})
        if states[0]:
            stack = engine.clients.stack(names, states)
        return Visited(engine.method, server, stack, engine.clients.stacked_data(names))

    return make
