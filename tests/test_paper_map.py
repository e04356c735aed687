"""docs/paper-map.md names functions and tests that exist, and every label has both."""

import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in (ROOT / "docs/paper-map.md").read_text(encoding="utf-8").splitlines()
    if re.match(r"\| (?!label|---)", line)
]


def _resolve(dotted: str) -> object:
    """The object at a dotted path: a module, then attributes."""
    parts = dotted.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for name in parts[cut:]:
            found = getattr(found, name)
        return found
    raise AssertionError(f"no module in {dotted}")


def test_the_map_has_rows_with_four_cells() -> None:
    assert len(ROWS) > 20
    assert all(len(row) == 4 for row in ROWS)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row[0]} {row[1]}")
def test_function_and_test_exist(row: list[str]) -> None:
    function, test = (cell.strip("`") for cell in row[2:])
    if "/" in function:
        assert (ROOT / function).is_file()
    else:
        assert _resolve(function) is not None
    path = ROOT / test
    tests = [path] if path.suffix else list(path.glob("test_*.py"))
    assert tests
    assert all(file.is_file() and "def test_" in file.read_text(encoding="utf-8") for file in tests)


def test_a_missing_function_is_noticed() -> None:
    with pytest.raises(AttributeError):
        _resolve("flic.gaussians.bures.no_such_function")


def test_docstrings_cite_labels_of_the_map_or_of_the_paper_style() -> None:
    """Every `Paper:` line of the package names a label, a quoted paragraph or an appendix."""
    pattern = re.compile(r"Paper: (.+)")
    cited = [
        (path, match)
        for path in (ROOT / "src").rglob("*.py")
        for match in pattern.findall(path.read_text(encoding="utf-8"))
    ]
    assert len(cited) > 30
    known = re.compile(
        r"(eq|algo|sec|table|theorem|append|fig|ass|subsec)[:0-9]?|\"|Baselines|step|`|all"
    )
    assert [(str(p), c) for p, c in cited if not known.search(c)] == []
