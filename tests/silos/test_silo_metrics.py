"""Metrics of held-out rows, against scikit-learn and by hand."""

import numpy as np
import pytest
from sklearn import metrics as sk

from flic.data.task import Classification, Regression
from flic.silos.measures import HIGHER_IS_BETTER, calibration_error, figures, row_scores

RNG = np.random.default_rng(0)
LOGITS = RNG.normal(size=(80, 3))
LOG_P = LOGITS - np.log(np.exp(LOGITS).sum(1, keepdims=True))
P = np.exp(LOG_P)
Y = RNG.choice(3, 80, p=[0.6, 0.3, 0.1])
RESPONSES = RNG.normal(5, 2, 80)
GUESSES = RESPONSES + RNG.normal(0, 1, 80)

CLASS_METRICS = {
    "accuracy": lambda: sk.accuracy_score(Y, P.argmax(1)),
    "balanced_accuracy": lambda: sk.balanced_accuracy_score(Y, P.argmax(1)),
    "auroc": lambda: sk.roc_auc_score(Y, P, multi_class="ovr"),
    "log_loss": lambda: sk.log_loss(Y, P),
}
RESPONSE_METRICS = {
    "r2": lambda: sk.r2_score(RESPONSES, GUESSES),
    "rmse": lambda: sk.root_mean_squared_error(RESPONSES, GUESSES),
    "mae": lambda: sk.mean_absolute_error(RESPONSES, GUESSES),
}


@pytest.mark.parametrize("name", CLASS_METRICS)
def test_class_metrics_are_scikit_learns(name):
    found = figures(Classification(3), LOG_P, Y)
    assert found[name] == pytest.approx(CLASS_METRICS[name]())


@pytest.mark.parametrize("name", RESPONSE_METRICS)
def test_response_metrics_are_scikit_learns(name):
    found = figures(Regression(0, 10), GUESSES[:, None], RESPONSES)
    assert found[name] == pytest.approx(RESPONSE_METRICS[name]())


def test_every_figure_has_a_direction():
    both = {
        *figures(Classification(3), LOG_P, Y),
        *figures(Regression(0, 10), GUESSES[:, None], RESPONSES),
    }
    assert both == {*HIGHER_IS_BETTER}


def test_calibration_error_by_hand():
    p = np.array([[0.92, 0.08], [0.94, 0.06], [0.35, 0.65], [0.5, 0.5]])
    y = np.array([0, 1, 1, 0])
    # Bins: {0.92, 0.94} half right, {0.65} right, {0.5} right.
    expected = abs(0.5 - 0.93) * 2 / 4 + abs(1 - 0.65) / 4 + abs(1 - 0.5) / 4
    assert calibration_error(p, y) == pytest.approx(expected)


def test_certainty_is_calibrated_where_it_is_right():
    certain = np.eye(2)[[0, 1, 1]]
    assert calibration_error(certain, np.array([0, 1, 1])) == 0
    assert calibration_error(certain, np.array([1, 0, 0])) == 1


def test_what_some_rows_do_not_define_is_nan():
    one_class = figures(Classification(3), LOG_P[:5], np.zeros(5, int))
    assert np.isnan(one_class["auroc"])
    assert np.isfinite([v for k, v in one_class.items() if k != "auroc"]).all()
    assert np.isnan(figures(Regression(0, 1), np.ones((3, 1)), np.ones(3))["r2"])


def test_a_class_ruled_out_costs_much_but_not_everything():
    ruled_out = np.log(np.array([[1.0, 0.0]]).clip(1e-300))
    assert figures(Classification(2), ruled_out, np.array([1]))["log_loss"] == pytest.approx(
        -np.log(1e-6)
    )


@pytest.mark.parametrize(
    ("metric", "expected"),
    [
        ("accuracy", lambda: sk.accuracy_score(Y, P.argmax(1))),
        ("balanced_accuracy", lambda: sk.balanced_accuracy_score(Y, P.argmax(1))),
        ("log_loss", lambda: -sk.log_loss(Y, P)),
        ("auroc", lambda: -sk.log_loss(Y, P)),
        ("calibration_error", lambda: -sk.log_loss(Y, P)),
    ],
)
def test_row_scores_average_to_the_metric(metric, expected):
    scores = row_scores(metric, LOG_P, Y)
    assert scores.shape == Y.shape
    assert scores.mean() == pytest.approx(expected())


@pytest.mark.parametrize(
    ("metric", "expected"),
    [
        ("r2", sk.r2_score(RESPONSES, GUESSES) - 1),
        ("mae", -sk.mean_absolute_error(RESPONSES, GUESSES) / RESPONSES.std()),
    ],
)
def test_row_scores_of_responses_average_to_the_metric(metric, expected):
    assert row_scores(metric, GUESSES[:, None], RESPONSES).mean() == pytest.approx(expected)


def test_rmse_and_r2_rank_models_alike():
    worse = RESPONSES + 2 * (GUESSES - RESPONSES)
    for metric in ("rmse", "r2"):
        good, bad = (row_scores(metric, g[:, None], RESPONSES).mean() for g in (GUESSES, worse))
        assert good > bad
