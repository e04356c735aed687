"""The studies of the two theorems: quick versions show what the full ones claim."""

import json

import pytest

from flic_paper.studies import STUDIES
from flic_paper.study import CellContext, Scope

QUICK = Scope(quick=True)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """finished(name): the study and its results, through JSON as a run would keep them."""
    kept = {}

    def finish(name):
        if name not in kept:
            study, told = STUDIES[name], []
            context = CellContext(tmp_path_factory.mktemp(name), told.append)
            results = {
                cell.key: json.loads(json.dumps(cell.work(context), allow_nan=False))
                for cell in study.cells(QUICK)
            }
            assert len(told) == len(results)
            kept[name] = study, results
        return kept[name]

    return finish


def records(study, results, number):
    table = study.tables(results, QUICK)[number]
    assert all(len(row) == len(table.columns) for row in table.rows)
    return [dict(zip(table.columns, row, strict=True)) for row in table.rows]


@pytest.mark.slow
def test_only_our_variance_agrees_with_the_simulation(finished):
    rows = records(*finished("clt"), 0)
    regular = [row for row in rows if "anchor" not in row["situation"]]
    assert len(regular) == 10
    for row in regular:
        noise = 3 * row["± %"] / 100
        assert row["ours"] == pytest.approx(row["simulated"], rel=noise)
        assert abs(row["printed"] / row["simulated"] - 1) > noise
        assert abs(row["cited pairs"] / row["simulated"] - 1) > noise
    ill = [row for row in regular if row["situation"] == "ill-conditioned"]
    assert all(row["printed + 2trΣ²"] < 0 for row in ill)


@pytest.mark.slow
def test_intervals_cover_and_the_correction_matters(finished):
    rows = records(*finished("clt"), 1)
    for row in rows:
        if "anchor" not in row["situation"]:
            # 500 samples: a standard error of one point around 93-97
            assert 92 <= row["n = 200"] <= 98
            assert 92 <= row["n = 500"] <= 98
    moved = next(row for row in rows if row["situation"] == "moved" and row["k"] == 10)
    assert moved["n = 200, plain"] < 85


@pytest.mark.slow
def test_subspace_and_errors_reach_rounding_errors(finished):
    rows = {row["features"]: row for row in records(*finished("linear-regression"), 0)}
    for name in ("FLIC-FedRep", "FedRep on φ*", "FLIC-FedRep, all clients"):
        assert float(rows[name]["dist(A, QA*)"]) < 1e-12
        assert float(rows[name]["test |y − ŷ|"]) < 1e-12
    assert rows["FLIC-FedRep"]["paper"] == rows["FedRep on φ*"]["paper"] == "4.98e-05"
    ours, oracle = (rows[n]["reached in round"] for n in ("FLIC-FedRep", "FedRep on φ*"))
    assert ours == oracle
    for name in ("printed: no rotation", "printed: no 1/(2n)"):
        assert float(rows[name]["dist(A, QA*)"]) > 0.3
        assert rows[name]["reached in round"] is None


@pytest.mark.slow
def test_estimated_moments_cost_accuracy_that_more_rows_buy_back(finished):
    rows = records(*finished("linear-regression"), 2)
    assert [row["rows for moments"] for row in rows] == [200, 2000, 20_000]
    flipped = [row["flipped of 160"] for row in rows]
    assert flipped == sorted(flipped, reverse=True)
    assert {row["which seeds"] for row in rows} == {"0"}
    errors = [row["mean"] for row in rows]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] > 1e-3


@pytest.mark.slow
def test_factor_per_round_lies_below_the_bound_and_above_the_printed(finished):
    rows = records(*finished("linear-regression"), 1)
    assert len(rows) == 3
    for row in rows:
        assert row["printed κ"] < row["mean"] <= row["largest"] <= row["bound"] < 1


@pytest.mark.slow
@pytest.mark.parametrize(("name", "panels"), [("clt", 3), ("linear-regression", 2)])
def test_figures_are_drawn(finished, name, panels, tmp_path):
    study, results = finished(name)
    figures = study.figures(results, QUICK)
    assert list(figures) == [name]
    assert len(figures[name].axes) == panels
    figures[name].savefig(tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 10_000


@pytest.mark.parametrize("name", ["clt", "linear-regression"])
def test_nothing_finished_gives_empty_tables_and_no_figure(name):
    study = STUDIES[name]
    assert all(table.rows == [] for table in study.tables({}, QUICK))
    assert study.figures({}, QUICK) == {}


@pytest.mark.parametrize("name", ["clt", "linear-regression"])
def test_keys_are_unique_and_seeds_are_counted(name):
    study = STUDIES[name]
    keys = [cell.key for cell in study.cells(Scope(seeds=(3, 8)))]
    assert len(keys) == len(set(keys))
    assert {key.rsplit("/", 1)[1] for key in keys} == {"3", "8"}
