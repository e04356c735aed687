"""The diagrams of the README are those that the script beside them draws."""

import runpy
from pathlib import Path

import pytest

FIGURES = Path(__file__).parents[1] / "docs" / "figures"


@pytest.mark.parametrize(
    ("file", "drawn_by"), [("what-leaves.svg", "what_leaves"), ("layers.svg", "layers")]
)
def test_the_script_draws_the_diagram_again(file, drawn_by):
    script = runpy.run_path(str(FIGURES / "diagrams.py"))
    assert script[drawn_by]() == (FIGURES / file).read_text(encoding="utf-8")
