"""Factories of the contract tests: the small federation, its engines and its runs."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from small_federation import Ran, Visited, engine_of, make_federation, make_settings, run_of

from flic.data.client_data import FederatedData
from flic.engine.engine import Engine
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
def make_engine() -> Callable[..., Engine]:
    """make_engine(method, data, dtype=, section={...}); the method may be "NAME on responses"."""
    return engine_of


@pytest.fixture(scope="session")
def run() -> Callable[..., Ran]:
    """run(method, data, stack_width=, rounds=, ...): a whole run in memory, for reading only.

    Those who ask for the same run on the small federation share one.
    """
    known: dict[str, Ran] = {}

    def shared(method: str, *data: FederatedData, **changes: Any) -> Ran:
        if data or "jobs" in changes:
            return run_of(method, *data, **changes)
        key = repr((method, sorted(changes.items())))
        return known.get(key) or known.setdefault(key, run_of(method, **changes))

    return shared


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
