"""Limits on a silo's claims: tensors near those it was sent, and numbers in proportion."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from statistics import median_low

import torch

from flic.data.task import TaskName
from flic.engine.score import Errors, Hits
from flic.flower.federation_settings import LARGEST
from flic.methods.protocol import Update
from flic.shapes import Named

MOST_ROWS = 1e9
"""Rows that a silo may claim to have."""

WEIGHT_FACTOR = 1000.0
"""Times the median of a round that a silo may count for."""


def too_far(
    updates: Sequence[Update], shared: Named, first: Named, *, factor: float, harmless: float
) -> dict[str, str]:
    """Updates with a tensor far from the one that the silo was sent, and why.

    Silos take small steps from the same tensors, so the median move of a round is the measure. A
    silo of more rows may take more steps: a move by a share `harmless` of the tensor's first size
    is let be, and none may be `factor` times it. That size is the one before the first round, which
    no silo can inflate.
    """
    moves = {u.client: _moves(u, shared, first) for u in updates if u.entries}
    usual = median_low([_size(own.values()) for own in moves.values()]) if moves else 0.0
    found: dict[str, str] = {}
    for silo, own in moves.items():
        for name, move in own.items():
            size = _size([first[name]])
            bound = factor * usual
            if size:
                bound = min(max(bound, harmless * size), factor * size)
            if (got := _size([move])) > bound:
                found[silo] = (
                    f"update of silo {silo!r}: {name!r} is a root mean square of {got:.3g} away "
                    f"from what it was sent; expected {bound:.3g} at most, from {factor:g} times "
                    f"the median of the round and its first size, {size:.3g}."
                    f"{_exchanged(name, own, shared)} Look at the silo's rows and its log; "
                    "--set norm_factor=… allows more."
                )
    return found


def _moves(update: Update, shared: Named, first: Named) -> dict[str, torch.Tensor]:
    """Change of each tensor from what was sent; from zero where each round makes it anew."""
    return {
        name: entry.value.double() - (shared[name].double() if first[name].any() else 0.0)
        for name, entry in update.entries.items()
    }


def _exchanged(name: str, moves: Named, shared: Named) -> str:
    """A sentence where a tensor lies at the place of another one, as if two were exchanged."""
    own = shared[name].double() + moves[name]
    alike = [n for n in moves if shared[n].shape == own.shape]
    nearest = min(alike, key=lambda n: _size([own - shared[n].double()]))
    return (
        "" if nearest == name else f" It is nearest to {nearest!r}, as if the two were exchanged."
    )


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


def _size(tensors: Iterable[torch.Tensor]) -> float:
    """Root mean square of all numbers."""
    flat = torch.cat([tensor.flatten().double() for tensor in tensors])
    return float(flat.square().mean().sqrt())
