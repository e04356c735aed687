"""Every name in `__all__` is there, and `flic` shows nothing that it does not promise."""

import ast
import importlib
import pkgutil
from pathlib import Path
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
    modules = {n for n, value in vars(flic).items() if isinstance(value, ModuleType)}
    public = {n for n in vars(flic) if not n.startswith("_")}
    assert public - modules == set()
    assert set(dir(flic)) == set(flic.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        _ = flic.nonsense


def test_type_checkers_see_what_is_imported_late() -> None:
    """The names for type checkers and those that are found at run time are one list."""
    tree = ast.parse(Path(flic.__file__).read_text(encoding="utf-8"))
    [block] = [node for node in tree.body if isinstance(node, ast.If)]
    seen = {
        alias.asname: (node.module, alias.name)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert seen == {name: (home, name) for name, home in flic._HOME.items()}


def test_a_name_whose_extra_is_missing_says_which_to_install(monkeypatch):
    def missing(module):
        raise ModuleNotFoundError("No module named 'pandas'", name="pandas")

    monkeypatch.setattr(flic, "_import_module", missing)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'flic\[tables\]"):
        _ = flic.Federation
