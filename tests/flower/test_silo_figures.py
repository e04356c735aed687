"""Figures that leave a silo: none of them is one person's."""

from functools import partial
from statistics import fmean

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flic.data.task import Classification, Regression
from flic.engine.score import Errors
from flic.flower.silo_figures import figure_names, figures_told

TASK, CLASSES = Regression(0.0, 20.0), Classification(3)
LEAST = 5
KEY = bytes(32)
SUMS = ["test_squared_error", "test_absolute_error", "test_spread"]


def rows(seed, count=25):
    rng = torch.Generator().manual_seed(seed)
    y = 7 + 1.5 * torch.randn(count, generator=rng, dtype=torch.float64)
    return y + torch.randn(count, generator=rng, dtype=torch.float64), y


def aimed_at_one(predicted, value):
    """Predictions of a model whose author knows a level that the first row alone has."""
    return torch.cat([torch.tensor([value], dtype=torch.float64), predicted[1:]])[:, None]


def solved(first, second, values):
    """The first row's response, from the squared errors of two models that differ in it alone."""
    difference = first["test_squared_error"] - second["test_squared_error"]
    return (sum(values) - difference / (values[0] - values[1])) / 2


@pytest.mark.parametrize("values", [(6.0, 8.0), (4.0, 10.0), (0.0, 14.0), (1e4, -1e4)])
def test_two_models_that_differ_in_one_row_do_not_tell_its_response(values):
    """Exact sums do. Of rounded ones the best pair halves what a guess of the mean is off by."""
    off, guess = [], []
    for seed in range(100):
        predicted, y = rows(seed)
        both = [aimed_at_one(predicted, value) for value in values]
        exact = [{"test_squared_error": Errors.of(own, y).squared_error} for own in both]
        assert solved(*exact, values) == pytest.approx(y[0].item(), abs=1e-3)
        told = [figures_told(TASK, own, y, least=LEAST, key=KEY) for own in both]
        off.append(abs(solved(*told, values) - y[0].item()))
        guess.append(abs(7 - y[0].item()))
    assert fmean(off) > 0.4 * fmean(guess)


@given(st.integers(0, 2**31), st.integers(5, 60), st.floats(-1e6, 1e6))
def test_no_row_moves_a_figure_by_more_than_a_step(seed, count, value):
    predicted, y = rows(seed, count)
    predicted = aimed_at_one(predicted, value)
    told = figures_told(TASK, predicted, y, least=LEAST, key=KEY)
    parts = Errors.parts(predicted, y)
    for name in SUMS:
        own = parts[name.removeprefix("test_")]
        step = 2.0 ** torch.log2(own.max()).ceil().item()
        assert told[name] % step == 0
        assert abs(told[name] - own.sum().item()) <= max(step, own.norm().item())
    assert told["test_rows"] == count


# ---- classes -----------------------------------------------------------------------------


def hits(predicted, y, key=KEY):
    """What is told of predicted classes: right ones, and rows."""
    scores = torch.eye(3)[predicted]
    told = figures_told(CLASSES, scores, y, least=LEAST, key=key)
    return tuple(told[name] for name in figure_names(CLASSES))


def keys(count):
    return [number.to_bytes(32) for number in range(count)]


@given(st.integers(0, 2**31), st.integers(LEAST, 60))
def test_right_predictions_are_told_in_steps_and_rows_are_counted(seed, count):
    rng = torch.Generator().manual_seed(seed)
    y = torch.randint(2, (count,), generator=rng)
    predicted = torch.randint(2, (count,), generator=rng)
    kept = y.bincount()[y] >= LEAST
    exact, rows = int((predicted == y)[kept].sum()), int(kept.sum())
    if not rows:
        assert figures_told(CLASSES, torch.eye(3)[predicted], y, least=LEAST, key=KEY) == {}
        return
    right, told_rows = hits(predicted, y)
    assert told_rows == rows
    assert right == rows or right % LEAST == 0
    assert 0 <= right <= rows
    assert abs(right - exact) < 2 * LEAST
    assert hits(predicted, y) == (right, rows)  # asked again, the same again
    assert hits(y, y) == (rows, rows)
    assert hits(1 - y, y) == (0, rows)


@pytest.mark.slow
@pytest.mark.parametrize("count", [5, 9, 12])
def test_the_mean_of_what_many_silos_tell_is_right(count):
    y = torch.zeros(count, dtype=torch.int64)
    for wrong in range(count + 1):
        predicted = torch.cat([torch.ones(wrong, dtype=torch.int64), y[wrong:]])
        told = fmean(hits(predicted, y, key)[0] for key in keys(500))
        assert told == pytest.approx(count - wrong, abs=0.5)


def test_a_class_of_few_rows_is_as_if_it_were_not_there():
    """A model that gives all rows one class told how many rows the class has."""
    many = torch.tensor([0] * 8 + [1] * 7)
    for few in range(LEAST):
        y = torch.cat([many, torch.full((few,), 2)])
        for model in range(3):
            told, without = (hits(torch.full_like(own, model), own) for own in (y, many))
            assert told == without
    assert figures_told(CLASSES, torch.eye(3)[[2] * 4], y[-4:], least=LEAST, key=KEY) == {}


def guesses(tried, count):
    """Shares of cases in which a row's class is guessed, and guessed wrong, from several tries.

    Two models differ in the row alone, so that the class is the one that is right more often: of
    exact numbers in every case. In each try all other rows are predicted otherwise.
    """
    found = []
    for key in keys(count):
        draw = partial(
            torch.randint, 2, generator=torch.Generator().manual_seed(int.from_bytes(key))
        )
        y = torch.cat([draw((1,)), torch.arange(24) % 2])
        difference = 0.0
        for _ in range(tried):
            models = draw((25,)).repeat(2, 1)
            models[:, 0] = torch.tensor([0, 1])
            zero, one = (hits(model, y, key)[0] for model in models)
            difference += one - zero
        found.append(difference * (1 if y[0] else -1))
    right, wrong = (sum(own > 0 for own in signed) for signed in (found, [-v for v in found]))
    return right / count, wrong / count


@pytest.mark.slow
def test_two_models_that_differ_in_one_row_hardly_tell_its_class():
    """The lead of right guesses is a share of 1 / LEAST, and none of them is for certain.

    With one rounding for all models none would be wrong, and halving finds a pair that differs.
    """
    right, wrong = guesses(1, count=1000)
    assert right - wrong < 1.3 / LEAST
    assert wrong > right / 5
    right, wrong = guesses(5, count=200)
    assert right - wrong < 0.65
