"""The scikit-learn baselines, on clients that strain them."""

from itertools import product

import numpy as np
import pytest
import torch
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from flic.data.client_data import ClientData, Split
from flic.data.schema import FeatureSchema
from flic.data.stacked import StackedData
from flic.data.task import Classification, Regression
from flic.errors import ConfigError
from flic.method_settings import MethodSettings
from flic.methods import build_method
from flic.methods.baselines.estimators import PooledLda
from flic.methods.protocol import Population, Stack
from flic.networks.mlp import Mlp

CLASSES, RESPONSES = Classification(4), Regression(0.0, 100.0)

ESTIMATORS = ["lda", "logistic", "boosting"]


def normal(seed, *shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def scores():
    """scores(method, x, y, test, task): predictions of a client with those training rows."""

    def make(method, x, y, test, task=CLASSES):
        dim = x.shape[1]
        schema = FeatureSchema("own", tuple(f"x{j}" for j in range(dim)))
        test = Split(test, torch.zeros(len(test), dtype=torch.int64))
        client = ClientData("ward-7", schema, Split(x, y), Split.empty(dim), test)
        population = Population.of([client], task)
        method = build_method(method, MethodSettings(), population, seed=0)
        data = StackedData.of(
            [client],
            task=task,
            width=dim,
            slots=4,
            longest=len(x),
            dtype=torch.float32,
        )
        stack = Stack(Mlp(dim, (), 1), {})
        [own] = method.predict(method.init_server(), stack, data, [test])
        return own

    return make


@pytest.mark.parametrize("method", ESTIMATORS)
def test_separable_classes_are_told_apart(scores, method):
    y = torch.tensor([0, 2]).repeat(30)
    x = normal(0, 60, 3) + 4 * y[:, None]
    found = scores(method, x, y, x)
    assert torch.equal(found.argmax(1), y)
    assert found[:, [1, 3]].max() == -torch.inf
    torch.testing.assert_close(found.exp().sum(1), torch.ones(60))


@pytest.mark.parametrize("method", ESTIMATORS)
def test_no_rows_no_scores(scores, method):
    y = torch.tensor([0, 2]).repeat(10)
    assert scores(method, normal(0, 20, 3), y, torch.empty(0, 3)).shape == (0, 4)


FEW = {"one row each": [1, 1], "one row of one": [1, 6], "copies of one row": [2, 2]}


@pytest.mark.parametrize(
    ("method", "rows"),
    [
        pytest.param(method, rows, id=f"{method}-{name}")
        for method, (name, rows) in product(ESTIMATORS, FEW.items())
    ],
)
def test_classes_of_few_rows(scores, method, rows):
    """A notice says that such data are handled; drawing with replacement makes them common."""
    y = torch.tensor([0] * rows[0] + [2] * rows[1])
    x = torch.stack([y, y + 1, 1 - y], 1).float()
    found = scores(method, x, y, x)
    assert found[:, [0, 2]].isfinite().all()


def test_lda_agrees_with_scikit_learn_where_both_shrink_little():
    """With many rows the two shrinkages vanish, and with them the difference."""
    rng = np.random.default_rng(0)
    y = np.repeat([0, 1, 2], 2000)
    x = rng.normal(size=(6000, 4)) @ rng.normal(size=(4, 4)) + y[:, None] * [1.0, 0.5, -1.0, 0.0]
    own = PooledLda().fit(x, y).predict_proba(x)
    theirs = LinearDiscriminantAnalysis(solver="lsqr", shrinkage="auto").fit(x, y)
    assert np.abs(own - theirs.predict_proba(x)).max() < 0.02


@pytest.mark.parametrize("method", ["ridge", "boosting"])
def test_responses_are_predicted_in_their_own_units(scores, method):
    x = normal(0, 200, 3)
    y = 50 + 10 * x[:, 0]
    found = scores(method, x, y, x, RESPONSES)
    assert found.shape == (200, 1)
    error = (found[:, 0] - y).square().mean() / y.var()
    assert error < 0.05


@pytest.mark.parametrize("method", ["ridge", "boosting"])
@pytest.mark.parametrize("rows", [2, 3, 12])
def test_few_rows_with_responses(scores, method, rows):
    x = normal(1, rows, 5)
    x[:, 4] = 7.0  # a constant feature
    found = scores(method, x, x[:, 0], normal(2, 9, 5), RESPONSES)
    assert found.isfinite().all()


def test_ridge_shrinks_where_there_is_nothing_to_learn(scores):
    y = 50 + normal(3, 30)
    found = scores("ridge", normal(4, 30, 20), y, normal(5, 100, 20), RESPONSES)
    assert (found[:, 0] - y.mean()).square().mean() < 0.3 * y.var()


@pytest.mark.parametrize(
    ("method", "task", "able"),
    [
        ("lda", RESPONSES, "these data ask for regression. Choose one of local, "),
        ("logistic", RESPONSES, "which does classification; these data ask for regression"),
        ("ridge", CLASSES, "which does regression; these data ask for classification"),
    ],
)
def test_the_other_task_is_refused(scores, method, task, able):
    with pytest.raises(ConfigError, match=able):
        scores(method, normal(0, 6, 3), torch.arange(6) % 2, normal(0, 6, 3), task)
