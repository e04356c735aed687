"""Laws of who holds which classes, and of how rows are dealt."""

from collections import Counter

import pytest
import torch

from flic.data.partition import (
    Holdings,
    deal_rows,
    draw_classes,
    draw_shards_with_repeats,
    draw_uneven_classes,
    subsample,
)
from flic.errors import DataError
from flic.seeding import generator

SIZES = [(100, 20, 3), (7, 20, 3), (1, 5, 2), (50, 3, 2), (3, 4, 4)]


def count_holders(holdings: Holdings) -> Counter[int]:
    return Counter(label for held in holdings for label in held)


@pytest.mark.parametrize(("num_clients", "num_classes", "per_client"), SIZES)
def test_drawn_classes_are_distinct_and_evenly_held(num_clients, num_classes, per_client):
    holdings = draw_classes(num_clients, num_classes, per_client, rng=generator(0))
    assert [len(set(held)) for held in holdings] == [per_client] * num_clients
    holders = count_holders(holdings)
    assert set(holders) <= set(range(num_classes))
    counts = [holders[label] for label in range(num_classes)]
    assert max(counts) - min(counts) <= 1
    assert min(counts) >= min(1, num_clients * per_client // num_classes)


def test_uneven_draws_keep_their_sizes():
    holdings = draw_uneven_classes([2, 5, 3], 10, rng=generator(0))
    assert [len(set(held)) for held in holdings] == [2, 5, 3]
    assert set(count_holders(holdings).values()) == {1}


@pytest.mark.parametrize("draw", [draw_classes, draw_shards_with_repeats])
def test_draws_depend_on_the_generator(draw):
    assert draw(20, 10, 3, rng=generator(0)) == draw(20, 10, 3, rng=generator(0))
    assert draw(20, 10, 3, rng=generator(0)) != draw(20, 10, 3, rng=generator(1))


@pytest.mark.parametrize(("num_clients", "num_classes", "per_client"), SIZES)
def test_shards_per_class_are_equal_up_to_the_remainder(num_clients, num_classes, per_client):
    holdings = draw_shards_with_repeats(num_clients, num_classes, per_client, rng=generator(0))
    assert [len(held) for held in holdings] == [per_client] * num_clients
    holders = count_holders(holdings)
    counts = [holders[label] for label in range(num_classes)]
    assert max(counts) - min(counts) <= 1


@pytest.mark.parametrize("num_clients", [2, 3, 10, 200])
def test_no_client_draws_one_class_alone(num_clients):
    # two classes and two shards: before the swaps, half of the clients have one class
    for seed in range(20):
        holdings = draw_shards_with_repeats(num_clients, 2, 2, rng=generator(seed))
        assert set(holdings) == {(0, 1)}


def test_some_clients_have_fewer_distinct_classes_as_with_the_authors():
    fewer = 0
    for seed in range(20):
        holdings = draw_shards_with_repeats(100, 20, 3, rng=generator(seed))
        fewer += sum(len(set(held)) < 3 for held in holdings)
    assert 10 < fewer / 20 < 18  # 14 in the authors' run


def test_rows_are_dealt_once_to_holders_and_equally():
    labels = torch.arange(4).repeat_interleave(12)
    holdings: Holdings = [(0, 1), (0, 2), (1, 1), (0, 2)]
    dealt = deal_rows(labels, holdings, rng=generator(0))
    counts = [labels[rows].bincount(minlength=4).tolist() for rows in dealt]
    assert counts == [[4, 4, 0, 0], [4, 0, 6, 0], [0, 8, 0, 0], [4, 0, 6, 0]]
    everyone = torch.cat(dealt).tolist()
    assert sorted(everyone) == list(range(36))  # class 3 has no holder


def test_too_few_rows_for_the_shards_are_refused():
    labels = torch.tensor([0, 0, 1])
    with pytest.raises(DataError, match="Class 1 has 1 row for 2 shards"):
        deal_rows(labels, [(0, 1), (0, 1)], rng=generator(0))


def test_subsample_keeps_every_class_and_stays_inside():
    labels = torch.tensor([0] * 40 + [1] * 2 + [2])
    for seed in range(50):
        drawn = subsample(labels, rng=generator(seed))
        assert set(labels[drawn].tolist()) == {0, 1, 2}
        assert int(drawn.max()) < 43


def test_subsample_sizes_follow_the_two_coins():
    labels = torch.arange(2).repeat_interleave(500)
    shares = torch.tensor(
        [len(subsample(labels, rng=generator(seed))) / 1000 for seed in range(400)]
    )
    assert 0.05 <= shares.min() < 0.15
    assert 0.95 < shares.max() <= 1.05
    # ½ · P(0.05 + u in [0.15, 0.35]) + ½ · 1 = 0.6
    in_narrow_range = ((shares >= 0.15) & (shares <= 0.35)).float().mean()
    assert 0.52 < in_narrow_range < 0.68


def test_subsample_draws_with_replacement():
    drawn = subsample(torch.arange(2).repeat_interleave(500), rng=generator(0))
    assert len(drawn.unique()) < len(drawn)
