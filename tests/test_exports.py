"""What `__all__` promises is there, and `flic` shows nothing that it does not promise."""

import importlib
import pkgutil
from types import ModuleType

import pytest

import flic

PACKAGES = ["flic"] + [m.name for m in pkgutil.walk_packages(flic.__path__, "flic.") if m.ispkg]


@pytest.mark.parametrize("name", PACKAGES)
def test_every_promised_name_exists_once(name: str) -> None:
    package = importlib.import_module(name)
    promised = list(getattr(package, "__all__", []))
    assert len(promised) == len(set(promised))
    assert [n for n in promised if not hasattr(package, n)] == []


def test_flic_shows_only_what_it_promises() -> None:
    promised = set(getattr(flic, "__all__", []))
    modules = {n for n, value in vars(flic).items() if isinstance(value, ModuleType)}
    lazy = {"Federation"}  # needs the extra for tables
    public = {n for n in vars(flic) if not n.startswith("_")} | lazy
    assert public - modules == {n for n in promised if not n.startswith("_")} - modules
