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


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("clients", "classes", "usps", "distinct", "mnist", "usps_test", "mnist_test", "held"),
    [
        (100, 3, 3667, 1654, 600, 1012, 100, 2.7),
        (100, 5, 3626, 1983, 600, 989, 100, 4.1),
        (200, 3, 1817, 1187, 299, 500, 2492, 2.7),
        (200, 5, 1826, 1342, 300, 506, 2494, 4.1),
    ],
)
def test_the_authors_partition_has_the_rows_of_their_program(
    make, clients, classes, usps, distinct, mnist, usps_test, mnist_test, held
):
    """Mean rows per client, measured in the authors' program; a mean over clients may differ."""
    everything = {"train_rows_per_class": None, "test_rows_per_class": None}
    data = make(partition="authors", num_clients=clients, classes_per_client=classes, **everything)
    of_mnist, of_usps = data.clients[::2], data.clients[1::2]

    def mean(members, rows):
        return sum(map(rows, members)) / len(members)

    assert mean(of_usps, lambda c: len(c.train)) == pytest.approx(usps, rel=0.06)
    assert mean(of_usps, lambda c: len(c.test)) == pytest.approx(usps_test, rel=0.06)
    assert mean(of_mnist, lambda c: len(c.train)) == pytest.approx(mnist, rel=0.02)
    assert mean(of_mnist, lambda c: len(c.test)) == pytest.approx(mnist_test, rel=0.05)
    some = of_usps[:20]
    found = mean(some, lambda c: len(c.train.x.unique(dim=0)))
    assert found == pytest.approx(distinct, rel=0.1)
    assert mean(data.clients, lambda c: len(c.classes)) == pytest.approx(held, abs=0.25)


@pytest.mark.slow
def test_of_the_authors_partition_images_are_shared_and_tests_repeat(make):
    """This shows where rows are few; the disjoint partition never does either."""
    whole = {"train_rows_per_class": None, "test_rows_per_class": None}
    first, *others = make(partition="authors", num_clients=200, **whole).clients[1::2]
    own = first.test.x
    assert len(own.unique(dim=0)) < len(own)
    images = {row.numpy().tobytes() for row in first.train.x}
    peer = next(client for client in others if {*first.classes} & {*client.classes})
    assert images & {row.numpy().tobytes() for row in peer.train.x}
