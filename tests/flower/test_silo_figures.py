"""Figures that leave a silo: none of them is one person's."""

from functools import partial
from statistics import fmean

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flic.data.task import Classification, Regression
from flic.engine.score import Errors
from flic.flower.silo_figures import figure_names, figures_told, largest_error

TASK, CLASSES = Regression(0.0, 20.0), Classification(3)
LEAST = 5
KEY = bytes(32)
FIGURES = ["test_squared_error", "test_absolute_error"]


def rows(seed, count=25):
    rng = torch.Generator().manual_seed(seed)
    y = 7 + 1.5 * torch.randn(count, generator=rng, dtype=torch.float64)
    return y + torch.randn(count, generator=rng, dtype=torch.float64), y


def sums(missed):
    """Sums of errors, or the parts of one row in them."""
    return dict(zip(FIGURES, (missed.square(), missed), strict=True))


def aimed_at_one(predicted, value):
    """Predictions of a model whose author knows a level that the first row alone has."""
    return torch.cat([torch.tensor([value], dtype=torch.float64), predicted[1:]])[:, None]


def solved(first, second, values):
    """The first row's response, from the squared errors of two models that differ in it alone."""
    difference = first["test_squared_error"] - second["test_squared_error"]
    return (sum(values) - difference / (values[0] - values[1])) / 2


@pytest.mark.parametrize("values", [(6.0, 8.0), (4.0, 10.0), (0.0, 14.0), (1e4, -1e4)])
def test_two_models_that_differ_in_one_row_do_not_tell_its_response(values):
    """Exact sums do. Of those in steps, the best pair is little better than a guess of the mean."""
    off, guess = [], []
    for seed in range(100):
        predicted, y = rows(seed)
        both = [aimed_at_one(predicted, value) for value in values]
        exact = [{"test_squared_error": Errors.of(own, y).squared_error} for own in both]
        assert solved(*exact, values) == pytest.approx(y[0].item(), abs=1e-3)
        told = [figures_told(TASK, own, y, least=LEAST, key=KEY) for own in both]
        off.append(abs(solved(*told, values) - y[0].item()))
        guess.append(abs(7 - y[0].item()))
    assert fmean(off) > 0.6 * fmean(guess)


@given(st.integers(0, 2**31), st.integers(5, 60), st.floats(allow_infinity=True, allow_nan=True))
def test_no_row_moves_a_figure_by_more_than_a_step(seed, count, value):
    predicted, y = rows(seed, count)
    told, without = (
        figures_told(TASK, own, y, least=LEAST, key=KEY)
        for own in (aimed_at_one(predicted, value), predicted[:, None])
    )
    largest = torch.tensor(largest_error(TASK, y))
    exact = sums((predicted - y).abs().clamp(max=largest))
    for name, step in sums(largest).items():
        assert told[name] % step == 0
        assert abs(told[name] - without[name]) <= 2 * step  # each is up or down
        assert abs(without[name] - exact[name].sum().item()) < step
    assert told["test_rows"] == count
    assert told["test_spread"] == without["test_spread"]  # of no prediction


@pytest.mark.parametrize("width", [1e-12, 1.0, 1e3])
def test_a_step_is_no_less_than_what_responses_differ_by(width):
    """In a range of next to nothing, a row without an error would be known by its response."""
    predicted, y = rows(0)
    largest = max(width / 4, 2.0 ** (y - y.mean()).abs().max().log2().ceil().item())
    told = figures_told(
        Regression(0.0, width), aimed_at_one(predicted, y[0].item()), y, least=LEAST, key=KEY
    )
    assert told["test_squared_error"] % largest**2 == 0
    assert told["test_absolute_error"] % largest == 0


def test_the_mean_of_what_many_silos_tell_of_errors_is_right():
    predicted, y = rows(0)
    told = [figures_told(TASK, predicted[:, None], y, least=LEAST, key=k) for k in keys(1000)]
    exact = Errors.of(predicted[:, None], y)  # none of these is cut
    assert fmean(own["test_squared_error"] for own in told) == pytest.approx(
        exact.squared_error, rel=0.1
    )
    assert fmean(own["test_absolute_error"] for own in told) == pytest.approx(
        exact.absolute_error, rel=0.1
    )


def doubled(figures_of, runs):
    """The first row's response, halved in between by where a step of the largest error doubles."""
    low, high, middle, big = 0.0, 20.0, 7.0, 2.0**40
    for _ in range(runs):
        told = figures_of(middle + big)["test_squared_error"]
        if told >= 2 * big**2 or told == 0:
            high = middle
        else:
            low = middle
        middle = (low + high) / 2
    return (low + high) / 2


def likeliest(figures_of, runs, others, largest):
    """The first row's response, if all other rows are known and it is known how figures are made.

    Each run asks where the error of the row changes most with its response.
    """
    y = torch.linspace(0, 20, 2001, dtype=torch.float64)
    log_odds = -0.5 * ((y - 7) / 1.5).square()
    for run in range(runs):
        odds = log_odds.softmax(0)
        mean = float((odds * y).sum())
        off = float((odds * (y - mean).square()).sum().sqrt())
        value = mean + (largest - 2 * off) * (-1) ** run
        told, missed = figures_of(value), sums((y - value).abs().clamp(max=largest))
        for name, step in sums(torch.tensor(largest)).items():
            in_steps = (others[name].sum() + missed[name] - told[name]) / step
            log_odds = log_odds + ((1 - in_steps.abs()).clamp(min=0) + 1e-300).log()
    return float((log_odds.softmax(0) * y).sum())


def off_by(attack, runs, count=100):
    """What an attack on a row's response is off by, as a share of what a guess is off by."""
    off, guess = [], []
    for seed in range(count):
        predicted, y = rows(seed)
        largest = largest_error(TASK, y)
        others = sums((predicted - y).abs()[1:].clamp(max=largest))

        def figures_of(value, predicted=predicted, y=y, seed=seed):
            key = seed.to_bytes(32)
            return figures_told(TASK, aimed_at_one(predicted, value), y, least=LEAST, key=key)

        found = attack(figures_of, runs, *([others, largest] if attack is likeliest else []))
        off.append(abs(found - y[0].item()))
        guess.append(abs(7 - y[0].item()))
    return fmean(off) / fmean(guess)


def test_runs_that_are_aimed_at_a_row_do_not_halve_what_its_response_may_be():
    """Ten told it to within a two-hundredth of what a guess of the mean is off by."""
    assert off_by(doubled, 10) > 1


@pytest.mark.parametrize(("runs", "left"), [(1, 0.7), (2, 0.55), (10, 0.2)])
def test_what_is_left_to_whoever_knows_all_other_rows(runs, left):
    assert left < off_by(likeliest, runs) < left + 0.15


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
