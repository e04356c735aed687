"""Accuracies from records, by hand."""

import pytest

from flic.runs.metrics import Outcome, round_scores, scores_at, validation_score


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
    accuracy = scores_at(record(4, a=score(9, 10), b=score(10, 40)))
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
    accuracy = scores_at(record(0, a=score(1, 2), b=score(0, 0)))
    assert accuracy.clients == {"a": 0.5}
    assert (accuracy.mean, accuracy.worst, accuracy.weighted) == (0.5, 0.5, 0.5)


def test_validation_is_a_mean_over_clients_that_have_such_rows():
    some = record(0, a=score(0, 1, (3, 4)), b=score(0, 1, (1, 4)), c=score(0, 1))
    assert validation_score(some) == 0.5
    assert validation_score(record(0, a=score(1, 1))) is None


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


def errors(squared, spread, rows=4, validation=(0.0, 0.0, 0)):
    names = ("squared_error", "spread", "rows")
    known = {f"validation_{n}": v for n, v in zip(names, validation, strict=True)}
    test = {"test_squared_error": squared, "test_spread": spread, "test_rows": rows}
    return known | test | {"validation_absolute_error": 0.0, "test_absolute_error": 2.0 * rows}


def test_r2_of_one_round():
    found = scores_at(record(4, a=errors(1.0, 4.0), b=errors(36.0, 12.0)))
    assert found.measure == "R²"
    assert found.clients == {"a": 0.75, "b": -2.0}
    assert (found.mean, found.worst) == (-0.625, -2.0)
    assert found.weighted == pytest.approx(1 - 37 / 16)  # all rows together
    assert found.summary()["rmse"] == pytest.approx((0.5 + 3.0) / 2)
    assert found.summary()["mae"] == pytest.approx(2.0)


def test_a_client_whose_responses_do_not_differ_counts_in_errors_only():
    found = scores_at(record(0, a=errors(1.0, 4.0), b=errors(16.0, 0.0), c=errors(0.0, 0.0, 0)))
    assert found.clients == {"a": 0.75}
    assert found.errors["rmse"] == pytest.approx((0.5 + 2.0) / 2)


def test_validation_r2_is_of_all_rows_together():
    """One client with two nearly equal validation rows would outvote all others in a mean."""
    a, b = errors(1.0, 4.0, validation=(3.0, 9.0, 3)), errors(1.0, 4.0, validation=(1.0, 0.001, 2))
    assert validation_score(record(0, a=a, b=b)) == pytest.approx(1 - 4 / 9.001)
    assert validation_score(record(0, a=errors(1.0, 4.0))) is None


def test_names_of_a_round_s_scores_tell_the_measure():
    assert round_scores(record(0, a=score(1, 2))).keys() == {"test_accuracy", "validation_accuracy"}
    assert round_scores(record(0, a=errors(1.0, 4.0))) == {"test_r2": 0.75, "validation_r2": None}
