"""Silos with files of their own, and federations of them in this process."""

from collections.abc import Callable
from functools import partial

import pytest
from torch import Tensor

from flic.engine.checkpoint import DiskJournal
from flic.flower.silo_folder import SiloFolder
from hospitals import Here, in_a_run, make_here, make_silo


@pytest.fixture(autouse=True, scope="session")
def _in_a_run():
    with in_a_run():
        yield


@pytest.fixture
def silo(tmp_path) -> Callable[..., SiloFolder]:
    """silo(name, frame, label=…, …): a silo with a file of its own."""
    return lambda name, *own, **keys: make_silo(tmp_path / name, *own, **keys)


@pytest.fixture
def here(tmp_path) -> Callable[..., Here]:
    """here(names=…, frames={…}, label=…, **settings): a federation that has not begun."""
    return partial(make_here, tmp_path)


@pytest.fixture(scope="session")
def without_east(tmp_path_factory) -> dict[str, Tensor]:
    """The shared part after two rounds; the silo in the east was away in the second."""
    place = make_here(tmp_path_factory.mktemp("without-east"))
    place.go(1)
    place.grid.away = {"east"}
    return place.go(1).server.shared


@pytest.fixture(scope="session")
def never_east(tmp_path_factory) -> DiskJournal:
    """A whole run of four rounds among the two others."""
    root = tmp_path_factory.mktemp("never-east")
    return make_here(root, names=["north", "south"], rounds=4).go().journal


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory) -> DiskJournal:
    """A whole run in which nothing went wrong, measured after every round."""
    return make_here(tmp_path_factory.mktemp("undisturbed"), evaluate_every=1).go().journal
