"""Imports inside `flic` point one way: down the order of the contract in pyproject.toml."""

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "flic"
CONTRACT = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
ORDER = [layer.removeprefix("flic.") for layer in CONTRACT[0]["layers"]]
FREE = {"__init__", "__main__"}  # the front doors, which may import anything


def imported(tree: ast.AST, package: str) -> Iterator[tuple[int, str]]:
    """Line and full dotted name of every import in `tree`, functions included."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")[: 1 - node.level or None] if node.level else []
            start = ".".join([*parents, *filter(None, [node.module])])
            yield from ((node.lineno, f"{start}.{alias.name}") for alias in node.names)


def upward_imports(code: str, module: str, package: str) -> list[str]:
    """Imports of a layer above the module's own; a name of `flic` itself lies above all."""
    own = ORDER.index(module.split(".")[1])
    return [
        f"{module}:{line} imports {name}"
        for line, name in imported(ast.parse(code), package)
        if (parts := name.split("."))[0] == "flic"
        and (len(parts) == 1 or parts[1] not in ORDER or ORDER.index(parts[1]) < own)
    ]


def modules() -> list[Path]:
    return [p for p in sorted(SOURCE.rglob("*.py")) if p.parent != SOURCE or p.stem not in FREE]


@pytest.mark.parametrize("path", modules(), ids=lambda p: p.relative_to(SOURCE).as_posix())
def test_imports_point_down(path: Path) -> None:
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    assert parts[1] in ORDER, f"{parts[1]} has no place in the order of pyproject.toml"
    assert upward_imports(path.read_text(), ".".join(parts), ".".join(parts[:-1])) == []


@pytest.mark.parametrize(
    "line",
    [
        "import flic.cli.main",
        "import flic",
        "from flic import algorithms",
        "from flic import Client",
        "from flic.methods.flic.algorithm import step",
        "from ..algorithms import flic",
        "from .. import report",
        "def late():\n    from flic.config import load",
    ],
)
def test_an_upward_import_is_caught(line: str) -> None:
    assert len(upward_imports(line, "flic.data.columns", "flic.data")) == 1


@pytest.mark.parametrize(
    "line",
    [
        "import torch",
        "from flic.data import table",
        "from . import table",
        "from .table import read",
        "from ..errors import FlicError",
        "from .. import gaussians",
    ],
)
def test_a_downward_import_is_not(line: str) -> None:
    assert upward_imports(line, "flic.data.columns", "flic.data") == []
