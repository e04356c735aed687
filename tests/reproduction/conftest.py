"""Scripts of the project as modules, which saves a process for each."""

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.fixture
def load_script(monkeypatch) -> Callable[[str], ModuleType]:
    """load_script(name): the module of scripts/NAME.py."""

    def load(name: str) -> ModuleType:
        specification = importlib.util.spec_from_file_location(name, SCRIPTS / f"{name}.py")
        assert specification is not None
        assert specification.loader is not None
        module = importlib.util.module_from_spec(specification)
        monkeypatch.setitem(sys.modules, name, module)  # where dataclasses look it up
        specification.loader.exec_module(module)
        return module

    return load
