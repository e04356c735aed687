"""MNIST and USPS clients: who holds what, at which size."""

import pytest
import torch

from flic_paper.problems.mnist_usps import MnistUspsConfig, make_mnist_usps

FEW = {"num_clients": 6, "train_rows_per_class": 30, "test_rows_per_class": 12}


@pytest.fixture
def make(need_data):
    """make(seed=, **settings): a federation of few rows."""
    need_data("mnist/mnist.npz")
    need_data("usps/usps.npz")

    def build(*, seed=0, **settings):
        return make_mnist_usps(MnistUspsConfig(**{**FEW, **settings}), seed=seed)

    return build


def test_half_of_the_clients_hold_each_size(make):
    shapes = [client.schema.shape for client in make().clients]
    assert shapes == [(28, 28), (16, 16)] * 3
    assert {client.schema.space for client in make().clients} == {"mnist-28x28", "usps-16x16"}


def test_values_fill_the_range_from_minus_one_to_one(make):
    for client in make().clients:
        assert client.train.x.min() == -1
        assert 0.8 < client.train.x.max() <= 1


def test_every_client_holds_its_number_of_classes_in_both_splits(make):
    for client in make(classes_per_client=4).clients:
        assert len(client.classes) == 4
        assert set(client.test.y.tolist()) == set(client.classes)


def test_no_image_is_at_two_clients_nor_in_both_splits(make):
    for first in (0, 1):
        members = make().clients[first::2]
        rows = torch.cat([split for c in members for split in (c.train.x, c.test.x)])
        assert len(rows.unique(dim=0)) == len(rows)


def test_all_rows_of_a_class_are_dealt_out(make):
    members = make(num_clients=20, classes_per_client=5).clients[::2]
    labels = torch.cat([client.train.y for client in members])
    assert labels.bincount().tolist() == [30] * 10


def test_the_seed_decides(make):
    first, again, other = make(), make(), make(seed=1)
    for a, b, c in zip(first.clients, again.clients, other.clients, strict=True):
        assert torch.equal(a.train.x, b.train.x)
        assert not (len(a.train) == len(c.train) and torch.equal(a.train.x, c.train.x))


@pytest.mark.slow
def test_without_limits_every_image_has_a_client(make):
    everything = make(num_clients=20, train_rows_per_class=None, test_rows_per_class=None)
    rows = {kind: [0, 0] for kind in ("mnist", "usps")}
    for client in everything.clients:
        kind = client.name.split("-")[0]
        rows[kind][0] += len(client.train)
        rows[kind][1] += len(client.test)
    assert rows == {"mnist": [60000, 10000], "usps": [7291, 2007]}
