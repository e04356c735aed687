"""Relations of columns that a few rows break: found where the plain search finds one."""

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from few_rows import shows_few_rows
from hypothesis import given, settings

from flic.methods.linked import relations
from flic.methods.linked.relations import broken_relations

LEAST = 3
ROWS = 24

#: Factors of the other columns in the last one: other units, a total, a difference, a weighing.
FACTORS = [(2.54, 0, 0), (-1, 0, 0), (1, 1, 0), (1, 0, -1), (0.5, -2, 3)]


def a_class(seed, factors=None, wrong=0, rows=ROWS):
    """Three columns of numbers, and a fourth: of its own, or following from them but for a few."""
    rng = np.random.default_rng(seed)
    x = torch.from_numpy(rng.normal(10, 2, size=(rows, 4)))
    if factors is not None:
        x[:, 3] = x[:, :3] @ torch.tensor(factors).double() + 7
        x[rng.permutation(rows)[:wrong], 3] += torch.from_numpy(rng.uniform(0.5, 2, wrong))
    return x


def shows(x):
    """The same question, put to the plain version."""
    return shows_few_rows(torch.cat([torch.ones(len(x), 1).double(), x], 1), LEAST)


@pytest.mark.slow
@given(
    st.integers(0, 10_000),
    st.sampled_from([None, *FACTORS]),
    st.integers(0, LEAST),
)
@settings(deadline=None, max_examples=30)
def test_a_relation_is_found_where_the_plain_search_finds_one(seed, factors, wrong):
    x = a_class(seed, factors, wrong)
    found = broken_relations(x, least=LEAST)
    assert bool(found) == shows(x) == (factors is not None and 0 < wrong < LEAST)


@pytest.mark.parametrize("factors", FACTORS)
@pytest.mark.parametrize("wrong", [1, 2])
def test_the_wrong_rows_get_what_the_relation_says_and_no_other_changes(factors, wrong):
    x = a_class(1, factors, wrong)
    [(later, values)] = broken_relations(x, least=LEAST).items()
    mended = x.clone()
    mended[:, later] = values
    assert int((mended != x).any(1).sum()) == wrong
    torch.testing.assert_close(mended, with_whole(x, later, factors), rtol=1e-9, atol=1e-9)
    assert not shows(mended)


def with_whole(x, later, factors):
    """The table with one of the related columns as it follows from the others, in all rows."""
    whole, factor = x.clone(), torch.tensor([*factors, -1.0]).double()
    rest = (x * factor).sum(1) - x[:, later] * factor[later] + 7
    whole[:, later] = -rest / factor[later]
    return whole


@pytest.mark.parametrize("factors", FACTORS)
def test_searches_for_few_columns_would_find_the_same(factors, monkeypatch):
    """They are left out where a class has rows enough."""
    tables = [a_class(seed, factors, 2) for seed in range(5)]
    found = [broken_relations(x, least=LEAST) for x in tables]
    monkeypatch.setattr(relations, "_is_roomy", lambda *arguments: False)
    for x, own in zip(tables, found, strict=True):
        every = broken_relations(x, least=LEAST)
        assert every.keys() == own.keys()
        for later, values in every.items():
            torch.testing.assert_close(own[later], values, rtol=1e-9, atol=1e-9)


def test_a_pair_is_found_among_many_columns():
    """Of 200 columns and 20 rows, with a factor between two of them."""
    x = torch.from_numpy(np.random.default_rng(0).normal(size=(20, 200)))
    x[:, 150] = 1.8 * x[:, 20] + 32
    x[4, 150] += 1
    assert broken_relations(x, least=LEAST).keys() == {150}
