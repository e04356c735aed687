"""Rows that a silo told sums of before: those that differ by a few are noticed, however named."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load as safe_load
from safetensors.torch import save_file

from flic.data.client_data import ClientData, Split
from flic.data.schema import FeatureSchema
from flic.errors import Damaged, FederationError
from flic.flower.cells import Cells
from flic.flower.sums_history import SumsHistory

FEATURES, LEAST = ("age", "dose", "sex"), 5


def rows(seed=0, count=60):
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 3, generator=rng)
    x[:, 2] = (x[:, 2] > 0).float()
    return Split(x, torch.arange(count) % 2)


def cells(split, names=FEATURES):
    return Cells.of(names, split, key=b"key")


def changed(one, other, names=FEATURES):
    return cells(other, names).changed(cells(one), least=LEAST)


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


def with_grade(split, grades=3):
    """Rows in three classes instead of two."""
    return Split(split.x, torch.arange(len(split)) % grades)


def test_two_classes_that_became_one_are_compared_with_it():
    """The third class has many rows more, so that all rows together are no other's."""
    first, more = with_grade(rows()), rows(seed=2, count=2 * LEAST)
    left = without(first, 7)
    x = torch.cat([left.x, more.x])
    y = torch.cat([(left.y > 0).long(), torch.zeros(len(more), dtype=torch.long)])
    assert changed(first, Split(x, y)) == 1
    assert cells(first).changed(cells(Split(x, y)), least=LEAST) == 1


def test_columns_under_other_names_are_known_by_what_is_in_them():
    assert changed(rows(), without(rows(), 0), names=("a", "b", "c")) == 1


def test_columns_that_exchanged_their_names_are_known_by_what_is_in_them():
    """By name all their cells had changed, and a row that did change was not seen."""
    less = rows()
    less.x[3, 0] += 20
    assert changed(rows(), less) == 1
    assert changed(rows(), less, names=("dose", "age", "sex")) == 1


def test_a_column_of_new_values_is_compared_with_its_own_name():
    """Nothing else is like it: it is no other column of which only some rows changed."""
    other, x = rows(seed=2), rows().x.clone()
    x[:, 0] = other.x[:, 0]
    assert changed(rows(), Split(x, rows().y)) == 0


def test_tables_with_nothing_in_common_have_nothing_to_compare():
    assert changed(rows(), rows(seed=4), names=("a", "b", "c")) == 0


def test_held_out_rows_are_compared_as_a_whole():
    both = [cells(split) for split in (rows(), without(rows(), 7), rows(seed=4))]
    assert [both[0].changed_as_a_whole(one, least=LEAST) for one in both] == [0, 1, 0]


def test_digests_are_of_values_and_not_of_their_signs_of_zero():
    digests = [cells(Split(torch.tensor([[v]]), torch.zeros(1)), ("a",)) for v in (0.0, -0.0)]
    assert np.array_equal(digests[0].digests, digests[1].digests)


# ---- the files -----------------------------------------------------------------------------


def client():
    schema = FeatureSchema("space", FEATURES)
    return ClientData("east", schema, rows(), rows(count=2), rows(seed=1, count=10))


@pytest.fixture
def history(tmp_path):
    found = SumsHistory(tmp_path, "east")
    found.keep(found.rows_of(FEATURES, client()), "first")
    return found


def test_without_the_secret_nothing_of_a_row_can_be_read(history, tmp_path):
    folder = tmp_path / "told"
    [kept] = folder.glob("*.safetensors")
    held = safe_load(kept.read_bytes())
    other = Cells.of(FEATURES, rows(), key=b"a guess")
    assert not np.isin(held["train"].numpy().view(np.uint64), other.digests).any()
    bits = np.ascontiguousarray(rows().x.double().numpy()).view(np.uint64)
    inverse = np.uint64(pow(0x9E3779B97F4A7C15, -1, 2**64))
    assert not np.isin(held["train"].numpy().view(np.uint64) * inverse, bits).any()
    assert not any(name.encode() in kept.read_bytes() for name in ("dose", "age", "sex"))
    assert {path.stat().st_mode & 0o077 for path in (folder, *folder.iterdir())} == {0}
    (folder / "secret").unlink()
    with pytest.raises(FederationError, match="or put the right secret beside it"):
        SumsHistory(tmp_path, "east").told_in("first")


def compared(folder):
    history = SumsHistory(folder, "east")
    history.refuse_almost_the_same(history.rows_of(FEATURES, client()), "second", least=LEAST)


def test_digests_under_another_key_are_refused(history, tmp_path):
    secret = tmp_path / "told" / "secret"
    secret.write_bytes(bytes(32))
    with pytest.raises(FederationError, match="another secret was the key of"):
        compared(tmp_path)
    secret.write_bytes(b"short")
    with pytest.raises(Damaged, match="secret is damaged"):
        compared(tmp_path)


def test_readable_digests_of_an_earlier_version_are_refused(tmp_path):
    folder = tmp_path / "told"
    folder.mkdir()
    old = folder / "first.safetensors"
    save_file({"digests": torch.zeros(9, 3, dtype=torch.int64)}, old, {"features": "[]"})
    with pytest.raises(FederationError, match="Earlier versions kept rows readable: remove"):
        compared(tmp_path)
    old.unlink()
    compared(tmp_path)


def test_what_was_kept_is_what_was_told(history):
    told = history.told_in("first")
    assert history.are_of(told, client())
    assert not history.are_of(told, replace(client(), test=rows(count=10)))
    history.refuse_almost_the_same(history.rows_of(FEATURES, client()), "second", least=LEAST)
    less = replace(client(), train=without(rows(), 3))
    with pytest.raises(FederationError, match="run first of rows that differ from these by 1"):
        history.refuse_almost_the_same(history.rows_of(FEATURES, less), "second", least=LEAST)
