from itertools import chain

import pytest
import torch

from flic.data.batches import BLOCK, Batch, BatchPlan
from flic.data.client_data import ClientData, Split
from flic.data.schema import FeatureSchema
from flic.data.stacked import StackedData
from flic.data.task import Classification
from flic.method_settings import Duration
from flic.seeding import generator

# Labels of each client, largest first: a class of one row, a client smaller than a batch.
LABELS = {
    "a": [0] * 9 + [3] * 13 + [5],
    "b": [2] * 4 + [3] * 7,
    "c": [1] * 3 + [4],
}
SIZE = 5
LONGEST = 23


def client_of(name: str) -> ClientData:
    y = torch.tensor(LABELS[name])[torch.randperm(len(LABELS[name]), generator=generator(0, name))]
    x = torch.arange(1.0, len(y) + 1)[:, None]  # a row's number is its feature; 0 is padding
    split = Split(x, y)
    return ClientData(name, FeatureSchema(name, ("x",)), split, Split.empty(1), split)


def stack_of(names: str) -> StackedData:
    sizes = {"task": Classification(6), "width": 2, "slots": 3, "longest": LONGEST}
    return StackedData.of([client_of(n) for n in names], dtype=torch.float64, **sizes)


def plan_of(names: str, duration: Duration, *, size: int = SIZE, least: int = 1) -> BatchPlan:
    rngs = [generator(1, name) for name in names]
    return BatchPlan(stack_of(names), duration, batch_size=size, rngs=rngs, least=least)


def batches_of(plan: BatchPlan) -> list[Batch]:
    return [plan.batch(step) for step in range(len(plan))]


def rows_of(batch: Batch, client: int) -> list[int]:
    """Row numbers of one client's batch, padding left out."""
    own = batch.x[client, :, 0]
    return own[own > 0].int().tolist()


@pytest.mark.parametrize("steps", [0, 1, 3, 40])
def test_rows_drawn_are_counted_once_in_their_class(steps):
    plan = plan_of("abc", Duration(steps=steps))
    for client, name in enumerate("abc"):
        own = client_of(name)
        drawn = {row for batch in batches_of(plan) for row in rows_of(batch, client)}
        expected = [sum(int(own.train.y[row - 1]) == c for row in drawn) for c in own.classes]
        assert plan.rows_drawn[client].tolist() == [*expected, 0][:3]


EPOCHS = Duration(epochs=3)


@pytest.mark.parametrize("size", [1, SIZE, 11, 100])
def test_every_epoch_visits_every_row_exactly_once(size):
    batches = batches_of(plan_of("abc", EPOCHS, size=size))
    for client, labels in enumerate(LABELS.values()):
        own = [rows_of(b, client) for b in batches if client < len(b.x)]
        per_epoch = -(-len(labels) // size)
        assert len(own) == 3 * per_epoch
        for start in range(0, len(own), per_epoch):
            visited = chain(*own[start : start + per_epoch])
            assert sorted(visited) == list(range(1, len(labels) + 1))


def test_epochs_differ_in_order():
    batches = [set(rows_of(b, 0)) for b in batches_of(plan_of("abc", EPOCHS))]
    assert batches[0] != batches[5] != batches[10]


def test_only_the_last_batch_of_an_epoch_is_short():
    lengths = [len(rows_of(b, 0)) for b in batches_of(plan_of("abc", EPOCHS))]
    assert lengths == [5, 5, 5, 5, 3] * 3


def test_working_clients_are_a_prefix():
    plan = plan_of("abc", Duration(epochs=1))  # 5, 3 and 1 batches
    assert plan.working == [3, 2, 2, 1, 1]
    assert [len(b.x) for b in batches_of(plan)] == plan.working


def test_labels_and_rows_stay_together_sorted_by_class():
    for batch in batches_of(plan_of("abc", EPOCHS)):
        for i, name in enumerate("abc"[: len(batch.x)]):
            rows = rows_of(batch, i)
            labels = batch.y[i, : len(rows)]  # real rows come first
            assert torch.equal(labels, client_of(name).train.y[torch.tensor(rows) - 1])
            assert labels.tolist() == sorted(labels)


@pytest.mark.parametrize("names", ["a", "b", "c", "ab", "bc"])
def test_draws_do_not_depend_on_the_cohort(names):
    among_all, alone = plan_of("abc", EPOCHS), plan_of(names, EPOCHS)
    for step, batch in enumerate(batches_of(alone)):
        full = among_all.batch(step)
        for i, name in enumerate(names[: len(batch.x)]):
            place = "abc".index(name)
            for field in ("x", "y", "counts", "member", "mass"):
                assert torch.equal(getattr(batch, field)[i], getattr(full, field)[place])


def test_steps_give_everyone_the_same_number_of_batches_the_last_epoch_cut_short():
    plan = plan_of("abc", Duration(steps=7))
    assert plan.working == [3] * 7
    own = [rows_of(b, 1) for b in batches_of(plan)]  # 11 rows: epochs of 5 + 5 + 1
    assert [len(rows) for rows in own] == [5, 5, 1, 5, 5, 1, 5]
    assert sorted(chain(*own[3:6])) == list(range(1, 12))


def test_an_epoch_of_a_small_client_can_have_more_steps_than_batches():
    assert plan_of("abc", Duration(epochs=2)).working == [3, 3, 2, 2, 2, 2, *[1] * 4]
    plan = plan_of("abc", Duration(epochs=2), least=3)
    assert plan.working == [3] * 6 + [1] * 4
    rows = [plan.batch(step).x[2].flatten().sort().values for step in range(6)]
    assert all(torch.equal(own, rows[0]) for own in rows)  # all four rows, in every step


@pytest.mark.parametrize("duration", [Duration(epochs=0), Duration(steps=0)])
def test_no_duration_means_no_batches(duration):
    assert len(plan_of("abc", duration)) == 0


def test_duration_is_in_epochs_or_in_steps():
    assert Duration(epochs=2).steps_for(11, 5) == 6
    assert Duration(steps=4).steps_for(11, 5) == 4
    for both_or_none in ({"epochs": 1, "steps": 1}, {}):
        with pytest.raises(AssertionError):
            Duration(**both_or_none)


def test_clients_out_of_order_are_refused():
    with pytest.raises(AssertionError):
        plan_of("ba", EPOCHS)


def test_member_counts_and_mass_say_the_same():
    for batch in batches_of(plan_of("abc", EPOCHS)):
        for i, name in enumerate("abc"[: len(batch.x)]):
            classes, rows = client_of(name).classes, len(rows_of(batch, i))
            for r in range(batch.x.shape[1]):
                held = [c == batch.y[i, r] for c in classes] + [False] * (3 - len(classes))
                assert batch.member[i, r].tolist() == (held if r < rows else [0, 0, 0])
                own = batch.counts[i][batch.member[i, r] > 0]
                assert batch.mass[i, r] == (1 / own if r < rows else 0)
            assert torch.equal(batch.member[i].sum(0), batch.counts[i].double())
            assert batch.rows[i] == rows


@pytest.mark.parametrize("size", [SIZE, 100])
def test_blocks_are_the_classes_of_more_than_one_row(size):
    for batch in batches_of(plan_of("abc", EPOCHS, size=size)):
        slot = batch.member.flatten(0, 1) @ torch.tensor([0.0, 1, 2]).double()
        client = torch.arange(len(batch.x)).repeat_interleave(batch.x.shape[1])
        found = []
        for block in (block for index in batch.blocks() for block in index):
            rows = block[block >= 0]
            assert len(block) == -(-len(rows) // BLOCK) * BLOCK  # no larger than need be
            assert len(set(client[rows].tolist())) == len(set(slot[rows].tolist())) == 1
            found.append((int(client[rows[0]]), int(slot[rows[0]]), len(set(rows.tolist()))))
        expected = [(i, s, int(batch.counts[i, s])) for i, s in (batch.counts > 1).nonzero()]
        assert sorted(found) == expected


def test_whole_batches_have_all_rows_at_every_step_and_blocks_of_who_still_works():
    """As many steps as batches of five would make: 5, 3 and 1 an epoch."""
    rngs = [generator(1, name) for name in "abc"]
    plan = BatchPlan(stack_of("abc"), Duration(epochs=1), batch_size=SIZE, rngs=rngs, whole=True)
    assert plan.working == [3, 2, 2, 1, 1]
    for batch in batches_of(plan):
        for client, labels in enumerate([*LABELS.values()][: len(batch.x)]):
            assert sorted(rows_of(batch, client)) == [*range(1, len(labels) + 1)]
        rows = batch.x.shape[0] * batch.x.shape[1]
        assert all(int(index.max()) < rows for index in batch.blocks())
