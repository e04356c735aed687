"""Rows of a comparison, by hand."""

from statistics import stdev

import pytest

from flic.runs.comparison import ComparedRun, compare
from flic.runs.metrics import Outcome, Scores


def cell(method, seed, clients, chosen=None, seconds=1.0, sent=0):
    def accuracy(values):
        return Scores(3, values, dict.fromkeys(values, 10))

    known = None if chosen is None else accuracy(chosen)
    return ComparedRun(method, seed, Outcome(accuracy(clients), known), seconds, sent)


def test_mean_spread_and_worst_client():
    cells = [
        cell("local", 0, {"a": 0.4, "b": 0.8}, chosen={"a": 0.5, "b": 0.5}, seconds=2, sent=100),
        cell("local", 1, {"a": 0.6, "b": 1.0}, chosen={"a": 0.7, "b": 0.9}, seconds=4, sent=300),
    ]
    [row] = compare(cells, reference="local")
    assert (row.method, row.seeds) == ("local", 2)
    assert row.mean == pytest.approx(0.7)
    assert row.spread == pytest.approx(stdev([0.6, 0.8]))
    assert row.worst == pytest.approx(0.5)
    assert row.chosen == pytest.approx(0.65)
    assert (row.seconds, row.bytes_sent) == (3, 200)
    assert (row.gain, row.gain_interval, row.gaining, row.losing) == (None, None, 0, 0)


def test_gains_are_paired_client_by_client():
    cells = [
        cell("local", 0, {"a": 0.5, "b": 0.9, "c": 0.1}),
        cell("flic-hl", 0, {"a": 0.9, "b": 0.8, "c": 0.1}),
        cell("local", 1, {"a": 0.2, "b": 0.5, "c": 0.7}),
        cell("flic-hl", 1, {"a": 0.3, "b": 0.7, "c": 0.7}),
    ]
    row = compare(cells, reference="local")[1]
    gains = [0.4, -0.1, 0.0, 0.1, 0.2, 0.0]
    assert row.gain == pytest.approx(0.1)
    assert row.gain_interval == pytest.approx(1.96 * stdev(gains) / 6**0.5)
    assert (row.gaining, row.losing) == (3, 1)


def test_rounding_is_neither_gain_nor_loss():
    base = {"a": 0.3}
    row = compare([cell("local", 0, base), cell("lda", 0, {"a": 0.1 + 0.2})], reference="local")[1]
    assert row.gain != 0
    assert (row.gaining, row.losing) == (0, 0)


def test_only_seeds_that_both_have_are_paired():
    cells = [
        cell("local", 0, {"a": 0.5}),
        cell("lda", 0, {"a": 0.7}),
        cell("lda", 1, {"a": 0.0}),
    ]
    row = compare(cells, reference="local")[1]
    assert row.gain == pytest.approx(0.2)
    assert row.gain_interval is None


def test_methods_keep_their_order_and_need_no_reference():
    cells = [cell("lda", 0, {"a": 0.5}), cell("boosting", 0, {"a": 0.7})]
    rows = compare(cells, reference="local")
    assert [row.method for row in rows] == ["lda", "boosting"]
    assert [row.gain for row in rows] == [None, None]
    assert rows[0].spread is None
    assert rows[0].chosen is None


def test_clients_that_repeat_count_once():
    cells = [
        cell("local", 0, {"a": 0.5, "b": 0.9}),
        cell("flic-hl", 0, {"a": 0.9, "b": 0.8}),
        cell("local", 1, {"a": 0.5, "b": 0.9}),
        cell("flic-hl", 1, {"a": 0.7, "b": 0.8}),
    ]
    row = compare(cells, reference="local", clients_repeat=True)[1]
    assert row.gain == pytest.approx(0.1)
    assert row.gain_interval == pytest.approx(1.96 * stdev([0.3, -0.1]) / 2**0.5)
    assert (row.gaining, row.losing, row.tied) == (1, 1, 0)


def test_the_worst_decile_is_a_tenth_of_the_clients():
    scores = {f"client-{i}": i / 100 for i in range(25)}
    [row] = compare([cell("local", 0, scores)], reference="local")
    assert row.worst_decile == pytest.approx(0.005)
