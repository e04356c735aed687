"""Suspicion of updates: laws of what is out of all proportion, and of what is an evaluation."""

import pytest
import torch

from flic.flower.rules import WEIGHT_FACTOR, is_evaluation, too_far, too_heavy
from flic.methods.protocol import Entry, Update

FIRST = {
    "anchor.0.mean": torch.tensor([3.0, 0.0, 0.0, 4.0]),
    "anchor.1.mean": torch.tensor([-3.0, 4.0, 0.0, 0.0]),
    "kernel": torch.zeros(3),  # made anew in each round
}
SHARED = {**FIRST, "anchor.0.mean": FIRST["anchor.0.mean"] + 1}


def moved(*moves: float, shared=SHARED, weight=1.0) -> list[Update]:
    """Silos whose tensors all moved by so much."""
    return [
        Update(f"silo-{i}", {name: Entry(v + move, weight) for name, v in shared.items()})
        for i, move in enumerate(moves)
    ]


def accused(updates, *, shared=SHARED, first=FIRST, factor=3.0, harmless=0.01) -> list[str]:
    return [*too_far(updates, shared, first, factor=factor, harmless=harmless)]


def test_silos_that_move_alike_are_never_accused():
    for move in (0.0, 1e-6, 0.1, 1.0):
        assert accused(moved(move, move, -move)) == []
    assert accused([]) == accused([Update("silo-0", {})]) == []


def test_who_moves_far_beyond_the_median_is_accused_and_nobody_else():
    assert accused(moved(0.1, 0.12, 0.5)) == ["silo-2"]
    assert accused(moved(0.1, 0.12, 0.2)) == []


@pytest.mark.parametrize("size", [1.0, 1e3, 1e12])
def test_a_silo_cannot_widen_its_own_bound(size):
    [why] = too_far(moved(0.1, 0.1, size), SHARED, FIRST, factor=3.0, harmless=0.01).values()
    assert "expected 0.3 at most" in why


@pytest.mark.parametrize("scale", [1e-3, 7.0, 1e4])
def test_units_do_not_matter(scale):
    moves = (0.1, 0.12, 0.5, 0.2)
    shared, first = ({n: scale * v for n, v in own.items()} for own in (SHARED, FIRST))
    scaled = moved(*(scale * move for move in moves), shared=shared)
    assert accused(scaled, shared=shared, first=first) == accused(moved(*moves)) == ["silo-2"]


def test_a_small_share_of_the_first_size_is_harmless_and_a_multiple_is_not():
    whole = moved(0.0, 0.0, 0.02, shared=FIRST)
    assert accused(whole, shared=FIRST) == ["silo-2"]  # the kernel has no size
    anchors = {name: value for name, value in FIRST.items() if value.any()}
    assert accused(moved(0.0, 0.0, 0.02, shared=anchors), shared=anchors) == []
    assert len(accused(moved(100.0, 100.0, 100.0, shared=anchors), shared=anchors)) == 3


def test_exchanged_tensors_are_told_as_such():
    one, other = "anchor.0.mean", "anchor.1.mean"
    entries = {one: Entry(SHARED[other], 1.0), other: Entry(SHARED[one], 1.0)}
    updates = [*moved(0.1, 0.1), Update("silo-2", entries)]
    [why] = too_far(updates, SHARED, FIRST, factor=3.0, harmless=0.01).values()
    assert f"It is nearest to '{one}', as if the two were exchanged." in why


def test_rows_beyond_a_multiple_of_the_median_are_not_believed():
    def weighed(*weights: float) -> list[Update]:
        return [
            Update(f"silo-{i}", {"x": Entry(torch.zeros(1), weight)})
            for i, weight in enumerate(weights)
        ]

    assert too_heavy([]) == too_heavy([Update("silo-0", {})]) == {}
    assert too_heavy(weighed(1.0, 1.0, WEIGHT_FACTOR)) == {}
    assert [*too_heavy(weighed(1.0, 1.0, 1.01 * WEIGHT_FACTOR))] == ["silo-2"]
    assert [*too_heavy(weighed(1e30))] == ["silo-0"]  # however alone it is


@pytest.mark.parametrize(
    ("numbers", "task", "is_one"),
    [
        ({"test_rows": 9, "test_right": 9}, "classification", True),
        ({"test_rows": 9, "test_right": 10}, "classification", False),
        ({"test_rows": 0, "test_right": 0}, "classification", False),
        ({"test_rows": 9}, "classification", False),
        ({"test_rows": 9, "test_right": float("nan")}, "classification", False),
        ({"test_rows": 9, "test_right": 9}, "regression", False),
    ],
    ids=str,
)
def test_numbers_of_an_evaluation(numbers, task, is_one):
    assert is_evaluation(numbers, task) == is_one
