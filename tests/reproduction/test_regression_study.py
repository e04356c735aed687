"""The regression study: its cells, tables and figure, on a small part of it."""

import json
from pathlib import Path

import pytest

from flic.config import load_config
from flic_paper.studies import STUDIES
from flic_paper.studies.regression import study_config
from flic_paper.study import CellContext, Scope

ROOT = Path(__file__).parents[2]
STUDY = STUDIES["regression"]
QUICK = Scope(quick=True)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Results of two methods on both federations, as they come back from JSON."""
    context = CellContext(tmp_path_factory.mktemp("cell"), lambda line: None)
    cells = [c for c in STUDY.cells(QUICK) if c.key.split("/")[2] in ("local", "ridge")]
    return json.loads(json.dumps({cell.key: cell.work(context) for cell in cells}))


def test_keys_are_distinct_and_quick_is_a_smaller_version():
    full, quick = ([c.key for c in STUDY.cells(scope)] for scope in (Scope(), QUICK))
    assert len(set(full)) == len(full) == 5 * len(quick)
    assert set(quick) <= set(full)
    assert "diabetes/paper/within-space/0" in quick
    assert not [key for key in full if key.startswith("made-regression/paper/within-space")]


def test_tables_hold_what_is_finished(results):
    made, diabetes = STUDY.tables(results, QUICK)
    for table in (made, diabetes):
        assert [row[:3] for row in table.rows] == [
            [preset, method, "0"]
            for preset in ("paper", "recommended")
            for method in ("local", "ridge")
        ]
        assert all(len(row) == len(table.columns) for row in table.rows)
    assert "Bayes R²" in made.note
    assert "Bayes R²" not in diabetes.note


def test_gains_are_paired_with_local(results):
    for table in STUDY.tables(results, QUICK):
        local, ridge = (dict(zip(table.columns, row, strict=True)) for row in table.rows[:2])
        assert local["gain over local, last round"] is None
        gain = ridge["mean R²"] - local["mean R²"]
        assert ridge["gain over local, last round"] == pytest.approx(gain, abs=2e-3)


@pytest.mark.parametrize("finished", [True, False])
def test_the_figure_is_drawn_from_what_is_there(results, finished, tmp_path):
    [(name, figure)] = STUDY.figures(results if finished else {}, QUICK).items()
    figure.savefig(tmp_path / f"{name}.png")
    assert [axes.get_title() for axes in figure.axes] == ["made-regression", "diabetes"]


@pytest.mark.parametrize("problem", ["made-regression", "diabetes"])
def test_the_experiment_s_file_says_the_same(problem):
    path = ROOT / f"experiments/regression-{problem.removesuffix('-regression')}.toml"
    assert load_config(path) == study_config(problem, "recommended")
