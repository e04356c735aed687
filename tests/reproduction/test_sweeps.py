"""The table of a sweep: the last, the chosen and the best round are three things."""

import pytest

from flic_paper.studies import STUDIES
from flic_paper.studies.participation import STUDY
from flic_paper.study import Scope
from flic_paper.sweeps import SETS, means

RUN = {
    "last": {"clients": {"a": 0.5, "b": 0.7}},
    "chosen": {"clients": {"a": 0.6, "b": 0.8}},
    "test": [0.4, 0.9, 0.6],
    "seconds": 4.0,
    "cpu_seconds": 3.0,
}


def test_each_round_is_read_from_its_own_scores():
    assert {k: round(v, 6) for k, v in means(RUN).items()} == {
        "last": 0.6,
        "chosen": 0.7,
        "best": 0.9,
    }


def test_without_validation_rows_the_last_round_is_the_chosen_one():
    assert means({**RUN, "chosen": None})["chosen"] == means(RUN)["last"]


def test_a_row_of_the_table_stands_for_one_set_value_and_arm():
    scope = Scope(seeds=(0, 1))
    results = {f"linear-mapping/0.4/local/seed{seed}": RUN for seed in (0, 1)}
    [table] = STUDY.tables(results, scope)
    [row] = table.rows
    assert list(row) == ["linear-mapping", 0.4, "local", "0, 1", 60.0, 0.0, 70.0, 90.0, 4.0, 3.0]
    assert table.brief is not None
    [line] = table.brief.rows
    assert list(line) == ["linear-mapping", "local", None, None, "60.0 ± 0.0", None]


def test_a_set_that_has_no_finished_cell_has_no_panel():
    results = {"linear-mapping/0.4/local/seed0": RUN}
    figure = STUDY.figures(results, Scope())["participation"]
    titles = [axes.get_title() for axes in figure.axes]
    assert titles == ["linear-mapping, last round", "linear-mapping, best round"]
    assert STUDY.figures({}, Scope()) == {}


@pytest.mark.parametrize(
    ("name", "rounds"),
    [
        ("toy", "last round"),
        ("pretraining", "last round"),
        ("participation", "last and the best round"),
    ],
)
def test_a_table_says_that_the_paper_has_a_figure_only_and_of_which_rounds(name, rounds):
    [table] = STUDIES[name].tables({}, Scope())
    assert f"The paper has a figure only, of the {rounds}; its text says" in table.note


def test_a_number_of_clients_is_whole():
    [table] = STUDIES["toy"].tables({"noisy-features/50/local/seed0": RUN}, Scope())
    assert str(table.rows[0][1]) == "50"


def test_the_sweep_covers_every_set_and_value():
    points = {(STUDY.point(f).panel, STUDY.point(f).x) for f in STUDY.federations}
    assert points == {(panel, x) for panel in SETS for x in (0.1, 0.2, 0.4, 0.8)}
