"""The task of real responses, and the federations made with them."""

import math
from itertools import combinations

import pytest
import torch
from pydantic import ValidationError
from sklearn.datasets import load_diabetes

from flic.data.client_data import ClientData, FederatedData, Split, hold_out_validation
from flic.data.inspect import refuse_unusable
from flic.data.schema import FeatureSchema
from flic.data.stacked import StackedData
from flic.data.task import Classification, Regression
from flic.errors import SchemaMismatch
from flic_paper.problems.regression import (
    DIABETES_COLUMNS,
    DIABETES_ROWS,
    DiabetesConfig,
    MadeRegressionConfig,
    make_diabetes,
    make_regression,
)


def made(seed=0, **changes):
    return make_regression(
        MadeRegressionConfig.model_validate({"problem": "made-regression", **changes}), seed=seed
    )


def diabetes(seed=0, **changes):
    return make_diabetes(
        DiabetesConfig.model_validate({"problem": "diabetes", **changes}), seed=seed
    )


def test_encoding_maps_the_range_to_zero_and_one_and_back():
    task = Regression(-10.0, 30.0)
    y = torch.tensor([-10.0, 0.0, 30.0, 50.0])
    torch.testing.assert_close(task.encode(y), torch.tensor([0.0, 0.25, 1.0, 1.5]))
    torch.testing.assert_close(task.decode(task.encode(y)), y)


@pytest.mark.parametrize("ends", [(1.0, 1.0), (2.0, 1.0), (0.0, math.inf), (math.nan, 1.0)])
def test_a_range_that_is_none_is_refused(ends):
    with pytest.raises(SchemaMismatch, match="expected two finite numbers, the lower one first"):
        Regression(*ends)


def test_a_number_of_classes_is_no_task():
    with pytest.raises(SchemaMismatch, match=r"got 3 as their task; .* Classification\(3\)"):
        FederatedData("wards", 3, ())


def test_a_class_is_a_number_of_outputs_and_anchors():
    task = Classification(4)
    assert (task.num_outputs, task.num_anchors) == (4, 4)
    assert (Regression.num_outputs, Regression.num_anchors) == (1, 2)


def test_stacked_responses_are_encoded_in_one_slot():
    client = made(num_clients=1).clients[0]
    task = Regression(-1.0, 3.0)
    sizes = {"width": 32, "slots": 1, "longest": 60}
    data = StackedData.of([client], task=task, dtype=torch.float64, **sizes)
    n = len(client.train)
    torch.testing.assert_close(data.train.y[0, :n].float(), (client.train.y + 1) / 4)
    assert not data.train.y[0, n:].any()
    assert data.slot_of_rows()[0].tolist() == [0] * n + [1]


@pytest.mark.parametrize("make", [made, diabetes])
def test_data_are_usable_and_the_same_for_the_same_seed(make):
    data, again, other = make(), make(), make(seed=1)
    assert all(not finding.fatal for finding in refuse_unusable(data))
    for one, two in zip(data.clients, again.clients, strict=True):
        assert torch.equal(one.train.x, two.train.x)
        assert torch.equal(one.test.y, two.test.y)
    assert data.clients[0].train.y.tolist() != other.clients[0].train.y.tolist()


def test_made_clients_have_the_sizes_asked_for():
    data = made(num_clients=30, features=[3, 5], rows=[7, 9], test_rows=11)
    assert {client.schema.dim for client in data.clients} == {3, 4, 5}
    assert {len(client.train) for client in data.clients} == {7, 8, 9}
    assert {len(client.test) for client in data.clients} == {11}
    assert len({client.schema.space for client in data.clients}) == 30


def test_no_linear_fit_beats_the_ceiling_of_made_data_by_more_than_chance():
    for client in made(num_clients=3, rows=[5000, 5000], test_rows=5000).clients:
        x, y = client.train.x.double(), client.train.y.double()
        fit = torch.linalg.lstsq(x, y[:, None]).solution[:, 0]
        test = client.test.y.double()
        error = (client.test.x.double() @ fit - test).square().sum()
        r2 = 1 - (error / (test - test.mean()).square().sum()).item()
        assert client.ceiling - 0.01 < r2 < client.ceiling + 0.005


def test_without_noise_the_ceiling_is_one():
    client = made(num_clients=1, features=[5, 5], noise=0.0).clients[0]
    assert client.ceiling == pytest.approx(1.0)


def test_diabetes_rows_are_dealt_out_once():
    assert load_diabetes(scaled=False).data.shape == (DIABETES_ROWS, len(DIABETES_COLUMNS))
    data = diabetes()
    total = sum(len(client.train) for client in data.clients)
    assert total + len(data.clients[0].test) == DIABETES_ROWS
    assert all(torch.equal(c.test.y, data.clients[0].test.y) for c in data.clients)
    assert {client.schema.space for client in data.clients} == {"diabetes"}
    features = [set(client.schema.features) for client in data.clients]
    assert all(one != two for one, two in combinations(features, 2)) or len(features) > 5
    assert {len(f) for f in features} <= set(range(3, 8))


def test_diabetes_columns_are_standardised_by_a_client_s_own_training_rows():
    for client in diabetes().clients:
        x = client.train.x
        torch.testing.assert_close(x.mean(0), torch.zeros(x.shape[1]), atol=1e-5, rtol=0)
        torch.testing.assert_close(x.std(0), torch.ones(x.shape[1]), atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    ("make", "changes", "message"),
    [
        (made, {"features": [5, 3]}, r"features is \[5, 3\]; expected a lower end of at least 1"),
        (made, {"rows": [1, 3]}, r"rows is \[1, 3\]; expected a lower end of at least 2"),
        (diabetes, {"columns": [3, 11]}, r"columns is \[3, 11\]; expected at most 10"),
        (diabetes, {"num_clients": 100}, "num_clients is 100 for 265 training rows"),
    ],
)
def test_impossible_settings_are_refused(make, changes, message):
    with pytest.raises(ValidationError, match=message):
        make(**changes)


def test_validation_rows_of_responses_are_drawn_from_all_rows():
    client = made(num_clients=1, rows=[20, 20]).clients[0]
    held = hold_out_validation(client, 0.2, seed=0)
    assert (len(held.train), len(held.validation)) == (16, 4)
    both = torch.cat([held.train.y, held.validation.y])
    assert torch.equal(both.sort().values, client.train.y.sort().values)


def test_copies_of_a_row_stay_on_one_side():
    x = torch.tensor([[1.0], [2.0], [1.0], [3.0], [4.0]])
    split = Split(x, torch.tensor([0.1, 0.2, 0.1, 0.5, 0.9]))
    client = ClientData("a", FeatureSchema("own", ("x",)), split, Split.empty(1), split)
    for seed in range(20):
        held = hold_out_validation(client, 0.4, seed=seed)
        kept = set(held.train.x.flatten().tolist())
        assert kept.isdisjoint(held.validation.x.flatten().tolist())
