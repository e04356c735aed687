"""The batches of one visit, drawn ahead for a whole stack.

Paper: algo:FLIC-FEDREP_supp, "sample a fresh batch". Each client shuffles its rows anew in
every epoch with its own generator. Clients differ in their number of batches; sorted by it,
those still at work are a prefix of the stack at every step.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor

from flic.data.stacked import StackedData


@dataclass(frozen=True)
class Duration:
    """Length of local work, in epochs or in steps, never both."""

    epochs: int | None = None
    steps: int | None = None

    def __post_init__(self) -> None:
        assert (self.epochs is None) != (self.steps is None)

    def steps_for(self, rows: int, batch_size: int) -> int:
        """Number of batches a client with `rows` rows works through."""
        per_epoch = -(-rows // batch_size)
        return self.steps if self.steps is not None else (self.epochs or 0) * per_epoch


@dataclass(frozen=True)
class Batch:
    """Rows of the working clients at one step, sorted by class within each client."""

    x: Float[Tensor, "working rows dim"]
    y: Int[Tensor, "working rows"]
    slot: Int[Tensor, "working rows"]
    counts: Int[Tensor, "working slots"]

    @property
    def rows(self) -> Float[Tensor, " working"]:
        """Number of real rows of each client."""
        return self.counts.sum(1).to(self.x)

    @cached_property
    def member(self) -> Float[Tensor, "working rows slots"]:
        """One where a row belongs to a slot; padded rows belong to none."""
        slots = torch.arange(self.counts.shape[1])
        return (self.slot[:, :, None] == slots).to(self.x)

    @cached_property
    def mass(self) -> Float[Tensor, "working rows"]:
        """Weight of each row in its class's empirical distribution, 1/n_c; 0 for padding."""
        share = self.counts.clamp_min(1).to(self.x).reciprocal()
        padded = torch.nn.functional.pad(share, (0, 1))
        return padded.gather(1, self.slot)


class BatchPlan:
    """All batches of one visit of a stack."""

    def __init__(
        self,
        data: StackedData,
        duration: Duration,
        *,
        batch_size: int,
        rows: int,
        rngs: Sequence[torch.Generator],
    ) -> None:
        """Draw the batches.

        Args:
            data: the stack, sorted by number of batches, most first.
            duration: epochs or steps of the visit.
            batch_size: n_i' of the paper.
            rows: padded length of a batch, the same for every stack of a federation, so
                that no result depends on which clients were stacked together.
            rngs: one generator per client.
        """
        self._data = data
        steps = [duration.steps_for(n, batch_size) for n in data.train.counts]
        assert steps == sorted(steps, reverse=True)
        self.working = [sum(s > step for s in steps) for step in range(max(steps, default=0))]
        self._index = torch.full((len(self.working), len(data), rows), data.train.x.shape[1] - 1)
        slot = data.slot_of_rows()
        for i, (n, count, rng) in enumerate(zip(data.train.counts, steps, rngs, strict=True)):
            own = _draw(n, count, min(batch_size, n), slot[i], rng)
            self._index[:count, i, : own.shape[1]] = own
        self._slot_of_rows = slot.flatten()
        self._x = data.train.x.flatten(0, 1)
        self._y = data.train.y.flatten()
        self._offset = torch.arange(len(data))[:, None] * data.train.x.shape[1]

    def __len__(self) -> int:
        return len(self.working)

    def batch(self, step: int) -> Batch:
        """Batch of every client that still works at `step`."""
        count = self.working[step]
        index = (self._index[step, :count] + self._offset[:count]).flatten()
        slot = self._slot_of_rows[index].view(count, -1)
        slots = self._data.classes.shape[1]
        counts = (slot[:, :, None] == torch.arange(slots)).sum(1)
        x = self._x.index_select(0, index).view(count, -1, self._x.shape[1])
        return Batch(x, self._y[index].view(count, -1), slot, counts)


def _draw(
    n: int, steps: int, size: int, slot: Int[Tensor, " rows"], rng: torch.Generator
) -> Int[Tensor, "steps size"]:
    """Row numbers of `steps` batches, rows of one class together; `len(slot) - 1` pads."""
    per_epoch = -(-n // size)
    epochs = -(-steps // per_epoch)
    order = torch.rand(epochs, n, generator=rng).argsort(1)
    padded = torch.nn.functional.pad(order, (0, per_epoch * size - n), value=len(slot) - 1)
    batches = padded.view(-1, size)[:steps]
    by_class = slot[batches].argsort(dim=1, stable=True)
    return batches.gather(1, by_class)
