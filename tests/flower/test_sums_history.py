"""Rows that a silo told sums of before: those that differ by a few are noticed, however named."""

import numpy as np
import pytest
import torch

from flic.data.client_data import Split
from flic.flower.sums_history import Cells

FEATURES, LEAST = ("age", "dose", "sex"), 5


def rows(seed=0, count=60):
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 3, generator=rng)
    x[:, 2] = (x[:, 2] > 0).float()
    return Split(x, torch.arange(count) % 2)


def changed(one, other, names=FEATURES):
    return Cells.of(names, other).changed(Cells.of(FEATURES, one), least=LEAST)


def without(split, row):
    return split.take(torch.arange(len(split)) != row)


def test_the_same_rows_in_another_order_are_the_same():
    order = torch.randperm(60, generator=torch.Generator().manual_seed(1))
    assert changed(rows(), rows().take(order)) == 0


@pytest.mark.parametrize("classes", [(0, 1), (1, 0), (2, 1)], ids=["same", "swapped", "other"])
def test_one_row_less_is_noticed_whatever_the_classes_are_called(classes):
    less = without(rows(), 7)
    renamed = Split(less.x, torch.tensor(classes)[less.y])
    assert changed(rows(), renamed) == 1


def test_a_label_that_moved_is_noticed():
    y = rows().y.clone()
    y[3] = 1 - y[3]
    assert changed(rows(), Split(rows().x, y)) == 1


def test_a_class_too_small_to_be_told_does_not_leave_with_another():
    """In one run three rows are a class of their own, in the next they count to a larger one."""
    y = rows().y.clone()
    y[:6:2] = 2
    assert changed(Split(rows().x, y), rows()) == 3


@pytest.mark.parametrize("classes", [(0, 1), (1, 0)])
def test_one_cell_is_noticed_beside_a_column_in_another_unit(classes):
    x = rows().x.clone()
    x[:, 0] *= 12
    x[5, 1] += 1
    assert changed(rows(), Split(x, torch.tensor(classes)[rows().y])) == 1


def test_many_rows_more_may_be_told():
    more = rows(seed=2, count=2 * LEAST)
    both = Split(torch.cat([rows().x, more.x]), torch.cat([rows().y, more.y]))
    assert changed(rows(), both) == 0


def test_a_response_is_a_column_too():
    y = torch.randn(60, generator=torch.Generator().manual_seed(3))
    other = y.clone()
    other[9] += 0.5
    assert changed(Split(rows().x, y), Split(rows().x, other)) == 1


def test_tables_with_nothing_in_common_have_nothing_to_compare():
    assert changed(rows(), without(rows(), 0), names=("a", "b", "c")) == 0


def test_digests_are_of_values_and_not_of_their_signs_of_zero():
    digests = [Cells.of(("a",), Split(torch.tensor([[v]]), torch.zeros(1))) for v in (0.0, -0.0)]
    assert np.array_equal(digests[0].digests, digests[1].digests)
