"""Figures of a client's predictions, by hand."""

import torch

from flic.data.task import Classification, Regression
from flic.engine.score import Score


def test_hits():
    scores = torch.tensor([[0.1, 0.9], [0.8, 0.2], [0.6, 0.4]])
    score = Score.of(Classification(2), scores, torch.tensor([1, 1, 0]), border=1)
    assert score.figures() == {
        "validation_right": 1,
        "validation_rows": 1,
        "test_right": 1,
        "test_rows": 2,
    }


def test_errors():
    y = torch.tensor([5.0, 1.0, 3.0, 8.0])
    predicted = torch.tensor([[4.0], [2.0], [3.0], [6.0]])
    assert Score.of(Regression(0.0, 1.0), predicted, y, border=1).figures() == {
        "validation_squared_error": 1.0,
        "validation_absolute_error": 1.0,
        "validation_spread": 0.0,
        "validation_rows": 1,
        "test_squared_error": 5.0,
        "test_absolute_error": 3.0,
        "test_spread": 26.0,
        "test_rows": 3,
    }


def test_equal_responses_have_no_spread_and_no_rows_no_errors():
    y = torch.full((3,), 0.1)
    score = Score.of(Regression(0.0, 1.0), torch.zeros(3, 1), y, border=0)
    assert score.figures()["test_spread"] == 0
    assert score.figures()["validation_rows"] == 0
    assert score.figures()["validation_squared_error"] == 0
