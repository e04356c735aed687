"""Figures that leave a silo: none of them is one person's."""

from statistics import fmean

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flic.data.task import Classification, Regression
from flic.engine.score import Errors
from flic.flower.silo_figures import figures_told

TASK = Regression(0.0, 20.0)
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
        told = [figures_told(TASK, own, y) for own in both]
        off.append(abs(solved(*told, values) - y[0].item()))
        guess.append(abs(7 - y[0].item()))
    assert fmean(off) > 0.4 * fmean(guess)


@given(st.integers(0, 2**31), st.integers(5, 60), st.floats(-1e6, 1e6))
def test_no_row_moves_a_figure_by_more_than_a_step(seed, count, value):
    predicted, y = rows(seed, count)
    predicted = aimed_at_one(predicted, value)
    told, parts = figures_told(TASK, predicted, y), Errors.parts(predicted, y)
    for name in SUMS:
        own = parts[name.removeprefix("test_")]
        step = 2.0 ** torch.log2(own.max()).ceil().item()
        assert told[name] % step == 0
        assert abs(told[name] - own.sum().item()) <= max(step, own.norm().item())
    assert told["test_rows"] == count


def test_hits_and_rows_are_counts():
    scores, y = torch.eye(3).repeat(2, 1), torch.tensor([0, 1, 2, 0, 0, 0])
    task = Classification(3)
    assert figures_told(task, scores, y) == {"test_right": 4.0, "test_rows": 6.0}
