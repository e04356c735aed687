"""Sums as they are sent: each number once, in parts of any size, and nothing that was not asked."""

import pytest
import torch

from flic.methods.linked.sums import SENT, ColumnIndex, Layout, Moments, Totals

CLASSES, WIDTH = 3, 7
BLOCK = (0, 1, 1, 2, 2, 2, 0)
HELD = [[0, 6, 1, 2], [3, 1, 2, 4, 5], [0, 1, 2, 3, 4, 5, 6]]  # whole blocks, in any order


def rows(seed, count=50):
    rng = torch.Generator().manual_seed(seed)
    y = torch.randint(0, CLASSES - (seed == 1), (count,), generator=rng)
    return torch.randn(count, len(HELD[seed]), generator=rng).double() + y[:, None], y


def sums(seed):
    return Moments.of_parts([rows(seed)], ColumnIndex(CLASSES, torch.tensor(HELD[seed]), WIDTH))


def assert_same(got, expected, atol=1e-10):
    for a, b in zip(got.parts, expected.parts, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=atol)


def added(packed):
    names = {name for own in packed for name in own}
    return {name: sum(own[name] for own in packed if name in own) for name in names}


def test_what_is_sent_and_added_are_the_sums_added():
    layout, all_sums = Layout(BLOCK, CLASSES), [sums(i) for i in range(3)]
    together = layout.unpack(added([layout.pack(own, "full") for own in all_sums]))
    assert_same(together, all_sums[0] + all_sums[1] + all_sums[2])


def test_each_number_is_sent_once():
    layout = Layout(BLOCK, CLASSES)
    sent = layout.pack(sums(2), "full")
    shapes = {name: tuple(value.shape) for name, value in sent.items()}
    assert shapes == {name: layout.shapes[name] for name in SENT["full"]}
    numbers = sum(value.numel() for value in sent.values())
    assert numbers == CLASSES * (3 + WIDTH) + WIDTH * (WIDTH + 1) // 2 + 3 + 6


def test_one_that_sends_less_is_left_out_of_the_rest_alone():
    layout, all_sums = Layout(BLOCK, CLASSES), [sums(i) for i in range(3)]
    kinds = ("full", "diagonal", "off")
    sent = [layout.pack(own, kind) for own, kind in zip(all_sums, kinds, strict=True)]
    together = layout.unpack(added(sent))
    everyone = all_sums[0] + all_sums[1] + all_sums[2]
    torch.testing.assert_close(together.total, everyone.total)
    assert (together.count == everyone.count).all()
    between = ~torch.eye(WIDTH, dtype=torch.bool)
    torch.testing.assert_close(together.scatter[between], all_sums[0].scatter[between])
    assert (together.dof[between] == all_sums[0].dof[between]).all()
    two = all_sums[0] + all_sums[1]
    torch.testing.assert_close(together.scatter.diagonal(), two.scatter.diagonal())
    assert (together.dof.diagonal() == two.dof.diagonal()).all()


def test_a_late_client_has_sent_nothing():
    layout = Layout(BLOCK, CLASSES)
    assert all((part == 0).all() for part in layout.unpack({}).parts)


@pytest.mark.parametrize("size", [1, 7, 49, 50])
@pytest.mark.parametrize("offset", [0.0, 1e5])
def test_rows_that_come_in_parts_have_the_same_sums(size, offset):
    (h, y), place = rows(0), ColumnIndex(CLASSES, torch.tensor(HELD[0]), WIDTH)
    h = h + offset
    parts = list(zip(h.split(size), y.split(size), strict=True))
    whole = Moments.of_parts([(h, y)], place)
    assert_same(Moments.of_parts(parts, place), whole, atol=1e-8)
    light = Totals.of_parts(parts, place)
    torch.testing.assert_close(light.total, whole.total)
    assert (light.count == whole.count).all()


def test_units_of_a_feature_do_not_touch_those_of_another():
    x, y = rows(2)
    place = ColumnIndex(CLASSES, torch.arange(WIDTH), WIDTH)
    in_other_units = x * torch.logspace(-6, 6, WIDTH)
    plain, other = (Moments.of_parts([(h, y)], place).deviation for h in (x, in_other_units))
    torch.testing.assert_close(other, plain * torch.logspace(-6, 6, WIDTH))


def test_a_constant_far_from_zero_is_not_blown_up():
    x, y = rows(2)
    x[:, 3] = 1e7 + 1e-9 * x[:, 3]
    sums = Moments.of_parts([(x, y)], ColumnIndex(CLASSES, torch.arange(WIDTH), WIDTH))
    assert sums.deviation[3] >= 1
