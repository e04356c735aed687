"""What a silo may claim: numbers and tensors within proportion to the others of a round."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from statistics import median_low

import torch

from flic.algorithms.protocol import Update
from flic.data.task import TaskName
from flic.federation.score import Errors, Hits
from flic.flower.settings import LARGEST

MOST_ROWS = 1e9
"""Rows that a silo may claim to have."""

WEIGHT_FACTOR = 1000.0
"""Times the median of a round that a silo may count for."""


def too_large(
    updates: Sequence[Update], shared: Sequence[torch.Tensor], factor: float
) -> dict[str, str]:
    """Updates whose tensors are out of all proportion, and why.

    The shared part takes a seat among them, so that one of two silos cannot set the measure.
    """
    norms = {
        update.client: _root_mean_square([e.value for e in update.entries.values()])
        for update in updates
        if update.entries
    }
    bound = factor * median_low([*norms.values(), _root_mean_square(shared)])
    return {
        name: f"update of silo {name!r} has a root mean square of {norm:.3g}; expected "
        f"{bound:.3g} at most, {factor:g} times the median of the round. Look at the silo's rows "
        "and its log; --set norm_factor=… allows more."
        for name, norm in norms.items()
        if norm > bound
    }


def too_heavy(updates: Sequence[Update]) -> dict[str, str]:
    """Updates that would count for far more rows than the others: rows are taken on trust."""
    heaviest = {
        update.client: max(entry.weight for entry in update.entries.values())
        for update in updates
        if update.entries
    }
    if not heaviest:
        return {}
    bound = min(MOST_ROWS, WEIGHT_FACTOR * median_low(heaviest.values()))
    return {
        name: f"update of silo {name!r} counts for {weight:.3g} rows; expected {bound:.3g} at most "
        f"({WEIGHT_FACTOR:g} times the median). Use --weights equal."
        for name, weight in heaviest.items()
        if weight > bound
    }


def is_evaluation(numbers: Mapping[str, float], task: TaskName) -> bool:
    """Whether numbers are what an evaluation gives."""
    kind = Hits if task == "classification" else Errors
    expected = {f"test_{own.name}" for own in fields(kind)}
    if {*numbers} != expected or not 1 <= numbers["test_rows"] <= MOST_ROWS:
        return False
    most = numbers["test_rows"] if kind is Hits else LARGEST
    return all(0 <= value <= most for name, value in numbers.items() if name != "test_rows")


def _root_mean_square(tensors: Sequence[torch.Tensor]) -> float:
    if not tensors:
        return 0.0
    flat = torch.cat([tensor.flatten().double() for tensor in tensors])
    return float(flat.square().mean().sqrt())
