"""No row can be read from sums: laws of the copy that they are told of, and attacks on it."""

from itertools import combinations

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from few_rows import shows_few_rows
from hypothesis import given, settings

from flic.methods.linked.hiding import Usual, blurred, chunks, told_pairs

LEAST = 3


def a_table(seed, rows=30, classes=2):
    """A category of four levels, some rare, gaps, a flag, two numbers; sources by number."""
    rng = np.random.default_rng(seed)
    level = rng.choice(4, rows, p=[0.5, 0.35, 0.1, 0.05])
    levels = (level[:, None] == np.arange(4)).astype(float)
    gap = (rng.random(rows) < 0.08).astype(float)
    flag = (rng.random(rows) < 0.3).astype(float)
    number = np.where(gap == 1, 0.0, rng.normal(size=rows))
    heavy = rng.standard_cauchy(rows)
    x = np.column_stack([number, gap, levels, flag, heavy, np.minimum(flag, levels[:, 0])])
    y = np.r_[np.repeat(np.arange(classes), LEAST), rng.integers(classes, size=rows)][:rows]
    return torch.from_numpy(x), torch.from_numpy(y), (0, 0, 1, 1, 1, 1, 2, 3, 4)


seeds = st.integers(0, 10_000)


@pytest.mark.slow
@given(seeds)
@settings(deadline=None, max_examples=40)
def test_what_stands_out_of_its_class_has_enough_rows_behind_it(seed):
    x, y, sources = a_table(seed)
    told = blurred(x, y, sources, least=LEAST)
    for c in y.unique():
        own = told[y == c]
        usual = own.mode(0).values
        off, common = (own != usual).sum(0), (own == usual).sum(0)
        assert bool(((off == 0) | (off >= LEAST) | (common == 1)).all())
        # All levels of a category, and none of them, are told of enough rows or of nobody.
        counts = own[:, 2:6].unique(dim=0, return_counts=True)[1]
        assert int(counts.min()) >= min(LEAST, len(own))


@pytest.mark.slow
@given(seeds)
@settings(deadline=None, max_examples=20)
def test_common_values_stay_as_they_are(seed):
    x, y, sources = a_table(seed, rows=400)
    told = blurred(x, y, sources, least=LEAST)
    numbers = x[:, [0]]
    assert float((told[:, [0]] != numbers).double().mean()) < 0.02
    assert bool((told[:, 7].abs() <= x[:, 7].abs().max()).all())


def test_a_value_that_stands_alone_in_its_class_is_not_told():
    """It is ordinary among the rows of the other class."""
    rng = torch.Generator().manual_seed(0)
    y = torch.arange(100) % 2
    x = torch.randn(100, 1, generator=rng).double() * 0.3 + 1 + 400 * y[:, None]
    x[0] = 412.7
    told = blurred(x, y, (0,), least=LEAST)
    assert float(told[y == 0].max()) < 4
    assert torch.equal(told[y == 1], x[y == 1])


def test_a_value_that_stands_alone_among_many_equal_ones_is_not_told():
    x = torch.tensor([0.0] * 7 + [1.0, 2.0, 3.0, 1.5, 412.7]).double()[:, None]
    told = blurred(x, torch.zeros(12, dtype=torch.int64), (0,), least=5)
    assert float(told.max()) <= 3


@pytest.mark.parametrize("rows", [6, 9, 11])
def test_a_small_class_keeps_its_values(rows):
    x = torch.randn(rows, 4, generator=torch.Generator().manual_seed(1)).double()
    told = blurred(x.clone(), torch.zeros(rows, dtype=torch.int64), range(4), least=5)
    assert float((told == x).double().mean()) > 0.8


def test_a_rare_value_of_a_column_of_few_values_is_not_counted():
    x = torch.tensor([0.0, 1.0] * 20 + [1.0, 2.0]).double()[:, None]
    told = blurred(x, torch.zeros(42, dtype=torch.int64), (0,), least=LEAST)
    assert float((told.square() - told).sum()) == 0  # (Σx² − Σx) / 2 is the number of twos
    assert torch.equal(told[:41], x[:41])
    assert float(told[41]) == 1


def test_a_value_that_stands_alone_is_not_told():
    x = torch.linspace(0, 1, 50).double()[:, None].repeat(1, 2)
    x[7, 0], x[8, 1] = 1e6, -1e6
    told = blurred(x, torch.zeros(50, dtype=torch.int64), (0, 1), least=5)
    assert -1 < float(told.min()) < float(told.max()) < 2
    assert torch.equal(told[10:40], x[10:40])


def design(x, y):
    """Columns that sums are known of: classes and told columns."""
    return torch.cat([torch.nn.functional.one_hot(y).double(), x], 1)


@pytest.mark.slow
@given(seeds)
@settings(deadline=None, max_examples=10)
def test_no_weighing_of_told_columns_rests_on_few_rows(seed):
    """The plain version: every set of few rows is looked at, by ranks of matrices."""
    x, y, sources = a_table(seed)
    told = blurred(x, y, sources, least=LEAST)
    pairs = told_pairs(lambda: chunks(told, y), Usual.of(told), sources, num_classes=2, least=LEAST)
    together = (pairs.sum(0) > 1).nonzero().flatten()
    assert not shows_few_rows(design(told[:, together], y), LEAST)


@given(seeds)
@settings(deadline=None, max_examples=5)
def test_no_weighing_of_a_class_with_rows_enough_rests_on_few(seed):
    """Of all columns, whose class sums are told in any case; one is a broken total of others."""
    x, y, sources = a_table(seed, rows=60)
    total = 2 * x[:, 0] + x[:, 6] - 0.5 * x[:, 7]
    total[:2] += 1
    told = blurred(torch.cat([x, total[:, None]], 1), y, (*sources, 5), least=LEAST)
    for c in (0, 1):
        own = told[y == c]
        own = own[:, (own != own[0]).any(0)]
        around = (own - own.mean(0)) / own.std(0)
        assert not shows_few_rows(design(around, torch.zeros(len(own)).long()), LEAST)


@pytest.mark.slow
def test_rare_levels_that_differ_in_few_rows_are_told_alike():
    """Three rows have both of them, two each have one of them."""
    for seed in range(100):
        rows = np.random.default_rng(seed).permutation(60)
        x = torch.zeros(60, 2, dtype=torch.float64)
        x[rows[:5], 0] = x[rows[2:7], 1] = 1
        x[:, 1] = 1 - x[:, 1] if seed % 2 else x[:, 1]
        told = blurred(x, torch.zeros(60, dtype=torch.int64), (0, 1), least=5)
        other = 1 - told[:, 1] if seed % 2 else told[:, 1]
        assert torch.equal(told[:, 0], other) or bool((other == other[0]).all())


def test_without_it_a_weighing_does():
    x, y, _ = a_table(3)
    assert shows_few_rows(design(x, y), LEAST)


@given(seeds)
@settings(deadline=None, max_examples=20)
def test_no_product_of_two_levels_counts_few_rows(seed):
    x, y, sources = a_table(seed, rows=60)
    told = blurred(x, y, sources, least=LEAST)
    pairs = told_pairs(lambda: chunks(told, y), Usual.of(told), sources, num_classes=2, least=LEAST)
    for i, j in combinations((1, 2, 3, 4, 5, 6, 8), 2):
        if pairs[i, j]:
            for a in (told[:, i], 1 - told[:, i]):
                for b in (told[:, j], 1 - told[:, j]):
                    count = int((a * b).sum())
                    assert count == 0 or count >= LEAST


def test_independent_columns_of_many_rows_are_told_whole():
    rng = torch.Generator().manual_seed(0)
    x, y = torch.randn(500, 6, generator=rng).double(), torch.arange(500) % 2
    pairs = told_pairs(lambda: chunks(x, y), Usual.of(x), range(6), num_classes=2, least=5)
    assert bool(pairs.all())


@pytest.mark.parametrize("least", [3, 5])
def test_more_columns_than_rows_can_hide_are_told_alone(least):
    rng = torch.Generator().manual_seed(0)
    x, y = torch.randn(40, 30, generator=rng).double(), torch.arange(40) % 2
    pairs = told_pairs(lambda: chunks(x, y), Usual.of(x), range(30), num_classes=2, least=least)
    together = int((pairs.sum(0) > 1).sum())
    assert together <= 40 / (least - 1)
