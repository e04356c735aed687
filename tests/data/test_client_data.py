"""Validation splits and the facts a client knows about its own rows."""

import pytest
import torch

from flic.data.client_data import ClientData, FederatedData, Split, hold_out_validation
from flic.data.schema import FeatureSchema
from flic.data.task import Classification
from flic.errors import ConfigError


def make_client(counts: dict[int, int], *, name: str = "ward", repeats: int = 1) -> ClientData:
    """Client whose single feature numbers its rows, each row `repeats` times."""
    y = torch.cat([torch.full((n,), label) for label, n in counts.items()])
    x = torch.arange(float(len(y)))[:, None]
    train = Split(x.repeat(repeats, 1), y.repeat(repeats))
    return ClientData(name, FeatureSchema("own", ("id",)), train, Split.empty(1), train)


def row_ids(split: Split) -> list[float]:
    return sorted(split.x[:, 0].tolist())


def test_classes_are_sorted_and_counted():
    client = make_client({7: 2, 1: 3})
    assert client.classes == (1, 7)
    assert client.class_counts == {1: 3, 7: 2}


def test_hold_out_loses_no_row_and_keeps_labels_with_their_rows():
    client = make_client({0: 20, 1: 10, 2: 5})
    split = hold_out_validation(client, 0.2, seed=3)
    assert row_ids(split.train) + row_ids(split.validation) != row_ids(client.train)
    assert sorted(row_ids(split.train) + row_ids(split.validation)) == row_ids(client.train)
    label_of = dict(zip(client.train.x[:, 0].tolist(), client.train.y.tolist(), strict=True))
    for part in (split.train, split.validation):
        assert [label_of[i] for i in part.x[:, 0].tolist()] == part.y.tolist()
    assert split.test is client.test


def test_hold_out_takes_the_share_of_every_class():
    split = hold_out_validation(make_client({0: 20, 1: 10, 2: 5}), 0.2, seed=3)
    assert split.validation.y.bincount().tolist() == [4, 2, 1]


@pytest.mark.parametrize("share", [0.5, 0.9, 0.99])
def test_every_class_keeps_a_training_row(share: float):
    split = hold_out_validation(make_client({0: 1, 3: 2, 5: 9}), share, seed=0)
    assert split.classes == (0, 3, 5)
    assert 0 not in split.validation.y


def test_a_repeated_row_is_never_on_both_sides():
    client = make_client({0: 10, 1: 10}, repeats=3)
    split = hold_out_validation(client, 0.3, seed=0)
    assert not set(row_ids(split.train)) & set(row_ids(split.validation))
    assert len(split.validation) == 3 * 6


def test_share_zero_and_own_validation_rows_leave_the_client_as_it_is():
    client = make_client({0: 10, 1: 10})
    assert hold_out_validation(client, 0, seed=0) is client
    split = hold_out_validation(client, 0.2, seed=0)
    assert hold_out_validation(split, 0.2, seed=1) is split


def test_draws_depend_on_seed_and_name_alone():
    def held_out(name: str, seed: int) -> list[float]:
        client = make_client({0: 30, 1: 30}, name=name)
        return row_ids(hold_out_validation(client, 0.3, seed=seed).validation)

    assert held_out("a", 0) == held_out("a", 0)
    assert held_out("a", 0) != held_out("a", 1)
    assert held_out("a", 0) != held_out("b", 0)


@pytest.mark.parametrize("share", [-0.1, 1.0, float("nan")])
def test_impossible_shares_are_refused(share: float):
    with pytest.raises(ConfigError, match="expected at least 0 and below 1"):
        hold_out_validation(make_client({0: 2, 1: 2}), share, seed=0)


def test_with_validation_covers_every_client():
    clients = (make_client({0: 10, 1: 10}, name="a"), make_client({1: 10, 2: 10}, name="b"))
    data = FederatedData("two", Classification(3), clients).with_validation(0.2, seed=0)
    assert [len(client.validation) for client in data.clients] == [4, 4]
    assert (data.name, data.task) == ("two", Classification(3))
