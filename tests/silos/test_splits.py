"""Held-out rows: each once, in its class's share, by seed and name alone."""

from fractions import Fraction

import numpy as np
import pandas as pd
import pytest

from flic.errors import ConfigError
from flic.silos.fit_settings import FitSettings
from flic.silos.splits import cross_validation, folds, held_out, outer_splits, scheme
from flic.tables import Column, SiloTable


def table(y, name="a"):
    frame = pd.DataFrame({"x": np.arange(len(y), dtype=float)})
    return SiloTable(name, (Column("x", "number"),), frame, np.asarray(y))


CLASSES = np.repeat([0, 1, 2], [61, 25, 14])
RESPONSES = np.random.default_rng(0).normal(size=100)


@pytest.mark.parametrize("y", [CLASSES, RESPONSES], ids=["classes", "responses"])
@pytest.mark.parametrize("count", [2, 3, 4, 7])
def test_every_row_is_held_out_once(y, count):
    held_out = np.zeros(len(y), int)
    for rows in cross_validation([table(y)], count, seed=0, path=()):
        train, test = rows["a"]
        held_out[test] += 1
        assert sorted([*train, *test]) == list(range(len(y)))
        assert len(test) in (len(y) // count, -(-len(y) // count))
    assert held_out.tolist() == [1] * len(y)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("count", [2, 3, 4])
def test_classes_keep_their_shares(seed, count):
    fold = folds(CLASSES, count, seed=seed, path=())
    counts = np.array([np.bincount(fold[c == CLASSES], minlength=count) for c in range(3)])
    assert (np.ptp(counts, axis=1) <= 1).all()


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("count", [2, 3, 5])
def test_a_class_of_two_rows_is_never_whole_on_one_side(seed, count):
    y = np.r_[np.zeros(17, int), 1, 1, np.full(9, 2)]
    first, second = folds(y, count, seed=seed, path=())[y == 1]
    assert first != second


def test_responses_are_spread_over_their_range():
    fold = folds(np.arange(100.0), 4, seed=0, path=())
    for k in range(4):
        gaps = np.diff(np.flatnonzero(fold == k))
        assert gaps.max() < 2 * 4


def test_seeds_names_and_repeats_change_the_split_and_nothing_else_does():
    def held_out(seed=0, name="a", repeat=0):
        rows = next(cross_validation([table(CLASSES, name)], 4, seed=seed, path=(repeat,)))
        return rows[name][1].tolist()

    assert held_out() == held_out()
    different = [held_out(), held_out(seed=1), held_out(name="b"), held_out(repeat=1)]
    assert len({tuple(rows) for rows in different}) == 4


def test_a_client_is_split_alike_whoever_else_is_there():
    alone = outer_splits([table(CLASSES)], FitSettings())
    together = outer_splits([table(CLASSES, "b"), table(CLASSES)], FitSettings())
    for one, both in zip(alone, together, strict=True):
        assert one["a"][1].tolist() == both["a"][1].tolist()


@pytest.mark.parametrize(
    ("rows", "asked", "expected", "splits"),
    [
        ([100, 300], "auto", "splits", 3),
        ([99, 300], "auto", "cross-validation", 12),
        ([99], "splits", "splits", 3),
        ([300], "cross-validation", "cross-validation", 12),
    ],
)
def test_small_silos_are_cross_validated(rows, asked, expected, splits):
    tables = [table(np.arange(n) % 2, str(n)) for n in rows]
    settings = FitSettings(scheme=asked, repeats=3, test_share=0.25)
    assert scheme(tables, settings) == expected
    found = outer_splits(tables, settings)
    assert len(found) == splits
    shares = [len(test) / len(t) for r in found for t in tables for test in [r[t.name][1]]]
    assert np.allclose(shares, 0.25, atol=0.01)


@pytest.mark.parametrize("y", [CLASSES, RESPONSES], ids=["classes", "responses"])
@pytest.mark.parametrize("share", [0.05, 0.1, 0.3, 1 / 3, 0.37, 0.4, 0.45, 0.5])
def test_splits_hold_out_the_share_that_is_asked_for(y, share):
    settings = FitSettings(scheme="splits", test_share=share, repeats=4)
    drawn = outer_splits([table(y)], settings)
    for rows in drawn:
        train, test = rows["a"]
        assert sorted([*train, *test]) == list(range(len(y)))
        assert abs(len(test) - share * len(y)) < 1
        for c in range(3) if y is CLASSES else ():
            assert abs((y[test] == c).sum() - share * (y == c).sum()) < 1
    assert len({tuple(rows["a"][1]) for rows in drawn}) == 4


@pytest.mark.parametrize("y", [CLASSES, RESPONSES], ids=["classes", "responses"])
@pytest.mark.parametrize("count", [2, 3, 4, 10])
def test_one_in_so_many_is_the_first_fold(y, count):
    held = held_out(y, Fraction(1, count), seed=3, path=("a",))
    assert held.tolist() == (folds(y, count, seed=3, path=("a",)) == 0).tolist()


@pytest.mark.parametrize(("share", "count"), [(0.3, 3), (0.4, 2), (0.25, 4), (0.15, 7)])
def test_cross_validation_takes_the_nearest_number_of_folds(share, count):
    settings = FitSettings(scheme="cross-validation", test_share=share, repeats=2)
    assert len(outer_splits([table(CLASSES)], settings)) == 2 * count


def test_the_smallest_share_of_a_split_is_a_row():
    for repeat in range(20):
        settings = FitSettings(scheme="splits", test_share=0.3, folds=2, seed=repeat)
        assert all(len(rows["a"][1]) for rows in outer_splits([table([0, 1, 0, 1])], settings))
    three = table([0, 1, 1])
    with pytest.raises(ConfigError, match=r"no row of client 'a' with its 3; expected 0.3334 at"):
        outer_splits([three], FitSettings(scheme="splits", test_share=0.33, folds=2))
    with pytest.raises(ConfigError, match="folds is 2, and client 'a' has 1 training rows"):
        outer_splits([three], FitSettings(scheme="splits", test_share=0.3334, folds=2))


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"test_share": 0.02}, "test_share is 0.02, which holds out no row of client 'a' with its"),
        ({"folds": 16}, "folds is 16, and client 'a' has 15 training rows; expected a row"),
    ],
)
def test_shares_without_rows_are_refused(settings, expected):
    with pytest.raises(ConfigError, match=expected):
        outer_splits([table(np.arange(20) % 2), table(CLASSES, "b")], FitSettings(**settings))


def test_as_many_folds_as_training_rows_are_not_refused():
    small = table(np.arange(20) % 2)
    settings = FitSettings(folds=15)
    [first, *_] = outer_splits([small], settings)
    inner = small.take(first["a"][0])
    sizes = [len(r["a"][1]) for r in cross_validation([inner], 15, seed=0, path=())]
    assert min(sizes) >= 1
