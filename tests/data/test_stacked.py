import torch

from flic.data.client_data import ClientData, Split
from flic.data.schema import FeatureSchema
from flic.data.stacked import StackedData, StackedRows
from flic.data.task import Classification


def split_of(*labels: int, dim: int) -> Split:
    return Split(torch.rand(len(labels), dim) + 1, torch.tensor(labels, dtype=torch.int64))


def client_of(name: str, split: Split) -> ClientData:
    dim = split.x.shape[1]
    schema = FeatureSchema(name, tuple(f"x{j}" for j in range(dim)))
    return ClientData(name, schema, split, Split.empty(dim), split)


def stack_of(*splits: Split) -> StackedData:
    clients = [client_of(f"c{i}", split) for i, split in enumerate(splits)]
    sizes = {"task": Classification(9), "width": 5, "slots": 4, "longest": 10}
    return StackedData.of(clients, dtype=torch.float64, **sizes)


def test_rows_come_first_and_all_else_is_zero():
    splits = [split_of(1, 2, 3, dim=2), split_of(4, dim=5)]
    rows = StackedRows.of(splits, width=5, dtype=torch.float64)
    assert rows.x.dtype == torch.float64
    assert rows.counts == (3, 1)
    for i, split in enumerate(splits):
        n, dim = split.x.shape
        assert torch.equal(rows.x[i, :n, :dim], split.x.double())
        assert torch.equal(rows.y[i, :n], split.y)
        assert rows.x[i].count_nonzero() == n * dim


def test_last_row_of_every_client_is_padding():
    rows = StackedRows.of([split_of(1, 2, dim=2)], width=2, dtype=torch.float32)
    assert rows.x.shape == (1, 3, 2)
    assert not rows.x[:, -1].any()


def test_splits_without_rows_stack():
    rows = StackedRows.of([Split.empty(3)], width=4, dtype=torch.float32)
    assert rows.x.shape == (1, 1, 4)
    assert rows.counts == (0,)


def test_slots_hold_the_classes_in_order_and_then_minus_one():
    data = stack_of(split_of(7, 2, 7, dim=2), split_of(5, 0, 8, 5, dim=3))
    assert data.classes.tolist() == [[2, 7, -1, -1], [0, 5, 8, -1]]
    assert data.holds.tolist() == [[True, True, False, False], [True, True, True, False]]


def test_slot_of_rows_points_back_at_the_label_and_past_the_end_for_padding():
    data = stack_of(split_of(7, 2, 7, dim=2), split_of(5, 0, 8, 5, 5, dim=3))
    assert data.slot_of_rows().tolist() == [[1, 0, 1, 4, 4, 4], [1, 0, 2, 1, 1, 4]]


def test_padding_is_not_taken_for_rows_of_class_zero():
    # padded labels are 0, which is also a class
    data = stack_of(split_of(0, 0, dim=2), split_of(0, 1, 1, dim=2))
    assert data.slot_of_rows()[0].tolist() == [0, 0, 4, 4]


def test_stack_knows_its_clients():
    data = stack_of(split_of(1, dim=2), split_of(2, dim=2))
    assert data.names == ("c0", "c1")
    assert len(data) == 2
