"""Accuracies from records, by hand."""

import pytest

from flic.report.metrics import Outcome, accuracy_at, validation_accuracy


def score(right, rows, validation=None):
    known = validation or (0, 0)
    return {
        "validation_right": known[0],
        "validation_rows": known[1],
        "test_right": right,
        "test_rows": rows,
    }


def record(round, **scores):
    return {"stage": "update", "round": round, "scores": scores}


def test_figures_of_one_round():
    accuracy = accuracy_at(record(4, a=score(9, 10), b=score(10, 40)))
    assert accuracy.clients == {"a": 0.9, "b": 0.25}
    assert accuracy.mean == pytest.approx(0.575)
    assert accuracy.worst == 0.25
    assert accuracy.weighted == pytest.approx(19 / 50)
    assert accuracy.summary() == {
        "round": 4,
        "mean": accuracy.mean,
        "worst": 0.25,
        "weighted": accuracy.weighted,
    }


def test_a_client_without_test_rows_counts_nowhere():
    accuracy = accuracy_at(record(0, a=score(1, 2), b=score(0, 0)))
    assert accuracy.clients == {"a": 0.5}
    assert (accuracy.mean, accuracy.worst, accuracy.weighted) == (0.5, 0.5, 0.5)


def test_validation_is_a_mean_over_clients_that_have_such_rows():
    some = record(0, a=score(0, 1, (3, 4)), b=score(0, 1, (1, 4)), c=score(0, 1))
    assert validation_accuracy(some) == 0.5
    assert validation_accuracy(record(0, a=score(1, 1))) is None


def test_last_round_and_round_chosen_by_validation():
    records = [
        record(0, a=score(1, 10, (5, 10))),
        record(1, a=score(2, 10, (9, 10))),
        {"stage": "update", "round": 2},  # not measured
        record(3, a=score(4, 10, (7, 10))),
    ]
    outcome = Outcome.of(records)
    assert (outcome.last.round, outcome.last.mean) == (3, 0.4)
    assert (outcome.chosen.round, outcome.chosen.mean) == (1, 0.2)
    assert outcome.summary() == {
        "last_round": outcome.last.summary(),
        "chosen_round": outcome.chosen.summary(),
    }


def test_the_earliest_of_equals_is_chosen():
    records = [record(t, a=score(t, 10, (right, 10))) for t, right in enumerate((3, 8, 8, 5))]
    assert Outcome.of(records).chosen.round == 1


def test_the_test_rows_do_not_choose():
    records = [record(0, a=score(9, 10, (1, 10))), record(1, a=score(0, 10, (2, 10)))]
    assert Outcome.of(records).chosen.mean == 0


def test_without_validation_rows_nothing_is_chosen():
    outcome = Outcome.of([record(0, a=score(1, 2))])
    assert outcome.chosen is None
    assert outcome.summary()["chosen_round"] is None
