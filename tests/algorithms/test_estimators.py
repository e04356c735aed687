"""The scikit-learn baselines, on clients that strain them."""

from itertools import product

import pytest
import torch

from flic.algorithms import MethodSettings, Population, Stack, build_algorithm
from flic.data import ClientData, FeatureSchema, Split
from flic.data.stacked import StackedData
from flic.embedding.mlp import Mlp

ESTIMATORS = ["lda", "logistic", "boosting"]


def normal(seed, *shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def scores():
    """scores(method, x, y, test): class scores of a client with those training rows."""

    def make(method, x, y, test, num_classes=4):
        dim = x.shape[1]
        schema = FeatureSchema("own", tuple(f"x{j}" for j in range(dim)))
        test = Split(test, torch.zeros(len(test), dtype=torch.int64))
        client = ClientData("ward-7", schema, Split(x, y), Split.empty(dim), test)
        population = Population.of([client], num_classes)
        algorithm = build_algorithm(method, MethodSettings(), population, seed=0)
        data = StackedData.of(
            [client],
            num_classes=num_classes,
            width=dim,
            slots=num_classes,
            longest=len(x),
            dtype=torch.float32,
        )
        stack = Stack(Mlp(dim, (), 1), {})
        [own] = algorithm.predict(algorithm.init_server(), stack, data, [test])
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
BEYOND_LDA = pytest.mark.xfail(reason="scikit-learn's LDA wants two rows a class")


@pytest.mark.parametrize(
    ("method", "rows"),
    [
        pytest.param(
            method,
            rows,
            id=f"{method}-{name}",
            marks=[BEYOND_LDA] if method == "lda" and 1 in rows else [],
        )
        for method, (name, rows) in product(ESTIMATORS, FEW.items())
    ],
)
def test_classes_of_few_rows(scores, method, rows):
    """A notice says that such data are handled; drawing with replacement makes them common."""
    y = torch.tensor([0] * rows[0] + [2] * rows[1])
    x = torch.stack([y, y + 1, 1 - y], 1).float()
    found = scores(method, x, y, x)
    assert found[:, [0, 2]].isfinite().all()
