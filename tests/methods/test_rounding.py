"""Rounded sums: how far they are off, what a row moves, and attacks that read exact digits."""

from itertools import product

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from scipy.optimize import nnls

from flic.data.client_data import ClientData, Split
from flic.data.schema import FeatureSchema, SharedFeatures
from flic.data.task import Classification
from flic.method_settings import MethodSettings
from flic.methods.linked.agreement import Agreement
from flic.methods.linked.client_sums import ClientSums, sent_sums
from flic.methods.linked.disclosure import DisclosedRows, told_detail
from flic.methods.linked.hiding import chunks
from flic.methods.linked.rounding import rounded
from flic.methods.linked.sums import ColumnIndex, Moments

SPACE = "ward"
LIMITS = {"min_rows": 5, "max_numbers_per_value": 0.5}


def a_table(seed, rows):
    """Two numbers, one with heavy tails, a flag, a large unit, a constant; two classes."""
    rng = np.random.default_rng(seed)
    flag = (rng.random(rows) < 0.3).astype(float)
    columns = [rng.normal(5, 2, rows), rng.standard_cauchy(rows), flag, 1e7 + 3e5 * flag]
    x = np.column_stack([*columns, np.full(rows, 3.0)])
    return torch.from_numpy(x), torch.from_numpy(np.arange(rows) % 2)


def both(x, y):
    """Sums as they are, and rounded."""
    place = ColumnIndex(2, torch.arange(x.shape[1]), x.shape[1])
    exact = Moments.of_parts(chunks(x, y), place)
    return exact, rounded(exact, lambda: chunks(x, y), place)


def unit(values):
    """Largest power of two of which every value is a multiple."""
    step = 2.0**60
    while not torch.allclose(values / step, (values / step).round(), rtol=0, atol=1e-9):
        step /= 2
    return step


@given(st.integers(0, 10_000), st.integers(20, 200))
@settings(deadline=None, max_examples=40)
def test_no_row_moves_a_sum_by_more_than_a_step(seed, rows):
    x, y = a_table(seed, rows)
    exact, told = both(x, y)
    residuals = x - (exact.total / exact.count)[y]
    for j in range(4):
        for c in (0, 1):
            own = residuals[y == c, j].abs()
            off = abs(float(told.total[c, j] - exact.total[c, j]))
            bound = 2 * max(float(own.max()), 0.25 * float(own.norm()))
            assert off <= bound / 2 * (1 + 1e-9)
            assert unit(told.total[c, j]) >= float(own.max()) * (1 - 1e-9)
        for k in range(4):
            largest = float((residuals[:, j] * residuals[:, k]).abs().max())
            assert unit(told.scatter[j, k]) >= largest * (1 - 1e-9)


def test_what_all_rows_have_stays_as_it_is():
    x, y = a_table(0, 50)
    exact, told = both(x, y)
    assert torch.equal(exact.total[:, 4], told.total[:, 4])
    assert torch.equal(exact.count, told.count)
    assert torch.equal(exact.dof, told.dof)


@pytest.mark.parametrize(("rows", "most"), [(40, 0.1), (400, 0.03), (4000, 0.021)])
def test_rounding_is_small_beside_chance(rows, most):
    """Variance that it adds to a class sum, as a share of the sum's own."""
    rng, added = np.random.default_rng(0), []
    for _ in range(40):
        x = torch.from_numpy(rng.normal(3, 1, (rows, 8)))
        exact, told = both(x, torch.from_numpy(np.arange(rows) % 2))
        added.append((told.total - exact.total).square().mean() / (rows / 2))
    assert float(torch.stack(added).mean()) < most


# ---- attacks ---------------------------------------------------------------------------------


def silo(x, y, name="north"):
    schema = FeatureSchema(SPACE, tuple(f"f{i}" for i in range(x.shape[1])))
    nothing = Split(x[:0].float(), y[:0])
    return ClientData(name, schema, Split(x.float(), y), nothing, nothing)


def uploads(clients, **limits):
    """Sums of the first client's features and of random ones, as they leave, and the pool."""
    own = MethodSettings.model_validate({"linked": limits}).linked
    names = clients[0].schema.features
    agreed = Agreement(own, {SPACE: SharedFeatures(names, (0,) * len(names))}, Classification(2), 0)
    pooled = {}
    for client in clients:
        detail = told_detail(agreed, client)
        for name, value in sent_sums(agreed, DisclosedRows.of(agreed, client), detail).items():
            at = f"moments.{SPACE}.linear.{name}"
            pooled[at] = pooled.get(at, 0) + value
    pool = ClientSums(agreed, pooled, clients[0])
    return pool.sent("linear"), pool.sent("mapped"), pool


def joint_counts(linear, mapped, pool, columns, c):
    """Rows of each combination of flags, from class sums of random features of them."""
    cells = torch.tensor(list(product((0.0, 1.0), repeat=columns))).double()
    known = mapped["total"][c] != 0
    equations = [pool.mapped(cells)[:, known].mT, cells.mT, torch.ones(1, len(cells))]
    sums = [mapped["total"][c][known], linear["total"][c], linear["count"][c, :1]]
    a, b = (torch.cat(own).double().numpy() for own in (equations, sums))
    return cells, torch.from_numpy(nnls(a, b, maxiter=20_000)[0]).round()


def rows_of_flags_read(limits):
    """Rows of a class of flags that are read from what leaves, and how many there are."""
    rng, columns = np.random.default_rng(0), 6
    made = [torch.from_numpy((rng.random((300, columns)) < 0.4).astype(float)) for _ in range(2)]
    y = torch.arange(300) % 2
    linear, mapped, pool = uploads([silo(made[0], y), silo(made[1], y, "south")], **limits)
    if "total" not in mapped:
        return 0, 150
    cells, found = joint_counts(linear, mapped, pool, columns, 0)
    true = (made[0][y == 0][:, None] == cells).all(2).sum(0).double()
    return int(torch.minimum(found, true).sum()), 150


def test_joint_counts_of_flags_follow_from_random_features_without_limits():
    read, rows = rows_of_flags_read({})
    assert read == rows


def test_within_the_limits_they_do_not():
    assert rows_of_flags_read(LIMITS)[0] == 0


def of_fine_digits(limits):
    """Digits behind the point of class sums, where one weight of a hundred has any."""
    rng = np.random.default_rng(1)
    x = torch.from_numpy(np.column_stack([rng.normal(70, 9, 100), rng.normal(50, 9, 100)]).round())
    x[7, 0] = 71.4375
    linear, _, _ = uploads([silo(x, torch.arange(100) % 2)] * 2, **limits)
    return float(linear["total"][1, 0] % 1)


def test_one_value_of_more_digits_is_read_from_exact_sums_and_not_from_rounded_ones():
    assert of_fine_digits({}) == 0.4375
    assert of_fine_digits(LIMITS) == 0


@pytest.mark.parametrize("gap", [1.0, 30.0])
def test_two_runs_that_differ_by_a_row_differ_by_whole_steps(gap):
    rng = np.random.default_rng(2)
    x, y = torch.from_numpy(rng.normal(70, 9, (101, 3))), torch.arange(101) % 2
    x[100] += gap

    def difference(**limits):
        more, fewer = (uploads([silo(x[:n], y[:n])] * 2, **limits)[0]["total"] for n in (101, 100))
        return (more - fewer)[0]

    assert torch.allclose(difference(), x[100].float().double())
    told = difference(**LIMITS)
    assert unit(told) >= 16
