"""Data that cannot be used are refused before any training, with what is wrong in them."""

from dataclasses import replace

import pytest
import torch

import flic
from flic.config import resolve
from flic.data.client_data import ClientData, FederatedData, Split
from flic.data.schema import FeatureSchema
from flic.data.task import Classification
from flic.errors import DataError

QUICK = {
    "data": {"problem": "digits"},
    "training": {"rounds": 1, "participation": 1.0, "local": "1 epochs"},
    "pretraining": {"epochs": 0},
    "embedding": {"latent_dim": 4, "hidden": [4]},
}


def ward(name="ward-7", **changes):
    rng = torch.Generator().manual_seed(0)
    y = torch.arange(8) % 2
    split = Split(torch.randn(8, 2, generator=rng) + y[:, None], y)
    schema = FeatureSchema("hospital", ("age", "bmi"))
    return replace(ClientData(name, schema, split, Split.empty(2), split), **changes)


def split(x, y):
    return Split(torch.tensor(x), torch.tensor(y))


def simulate(*clients):
    return flic.simulate(resolve(QUICK), FederatedData("wards", Classification(2), clients))


def test_sound_data_are_used():
    assert 0 <= simulate(ward(), ward("ward-8")).last.mean <= 1


BAD = {
    "one class": (
        [ward(train=split([[1.0, 2.0], [3.0, 4.0]], [0, 0]), test=Split.empty(2))],
        "Client 'ward-7' has training rows of class 0 only",
    ),
    "one row": (
        [ward(train=split([[1.0, 2.0]], [0]), test=Split.empty(2))],
        "Client 'ward-7' has one training row; expected",
    ),
    "NaN": (
        [ward(test=split([[1.0, torch.nan]], [0]))],
        "Client 'ward-7' has 1 NaN or infinite value in its test rows, in 'bmi'",
    ),
    "labels outside": (
        [ward(train=split([[1.0, 2.0], [2.0, 1.0]], [0, 5]), test=Split.empty(2))],
        "Client 'ward-7' has training labels 5; expected 0 to 1",
    ),
    "one name twice": ([ward(), ward()], "Client name 'ward-7' is used more than once"),
    "no clients": ([], "has no clients; expected at least one"),
    "columns": (
        [ward(schema=FeatureSchema("hospital", ("age", "bmi", "smoker")))],
        "Client 'ward-7' has 2 columns in its training rows; expected 3",
    ),
}


@pytest.mark.parametrize(("clients", "expected"), BAD.values(), ids=BAD)
def test_bad_data_are_refused(clients, expected):
    with pytest.raises(DataError) as refusal:
        simulate(*clients)
    assert expected in str(refusal.value)


def test_all_clients_problems_are_listed():
    bad = split([[1.0, torch.nan]], [0])
    with pytest.raises(DataError, match="problems: 2") as refusal:
        simulate(ward(test=bad), ward("ward-8", test=bad), ward("ward-9"))
    assert "'ward-7'" in str(refusal.value)
    assert "'ward-8'" in str(refusal.value)
    assert "'ward-9'" not in str(refusal.value)
