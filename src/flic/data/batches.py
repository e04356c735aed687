"""The batches of one visit, drawn ahead for a whole stack.

Paper: algo:FLIC-FEDREP_supp, "sample a fresh batch". Each client shuffles its rows anew in
every epoch with its own generator. Clients are sorted by their number of batches, most first, so
those still at work are a prefix of the stack at every step.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from flic.data.stacked import StackedData
from flic.method_settings import Duration

# Class blocks are padded to a multiple of this: few sizes mean few calls, and a block's matrix
# depends on its own size only.
BLOCK = 8

# Up to this many rows, one masked Gram matrix of the whole batch is cheaper than one per class.
SMALL_BATCH = 16


@dataclass(frozen=True)
class Batch:
    """Rows of the working clients at one step, sorted by class within each client."""

    x: Float[Tensor, "working rows dim"]
    y: Shaped[Tensor, "working rows"]  # classes, or responses in [0, 1]
    counts: Int[Tensor, "working slots"]
    member: Float[Tensor, "working rows slots"]  # one where a row belongs to a slot
    mass: Float[Tensor, "working rows"]  # 1/n_c, a row's weight in its class; 0 for padding
    blocks: Callable[[], list[Tensor]]  # see BatchPlan.blocks; not every loss needs them
    is_small: bool = False  # whether one matrix of the whole batch is cheaper than one per class

    @property
    def row_counts(self) -> list[int]:
        """Number of real rows of each client."""
        return self.counts.sum(1).tolist()

    @property
    def rows(self) -> Float[Tensor, " working"]:
        """Number of real rows of each client, as a tensor of the type of x."""
        return self.counts.sum(1).to(self.x)


class BatchPlan:
    """All batches of one visit of a stack."""

    def __init__(
        self,
        data: StackedData,
        duration: Duration,
        *,
        batch_size: int,
        rngs: Sequence[torch.Generator],
        least: int = 1,
        whole: bool = False,
    ) -> None:
        """Draw the batches.

        Args:
            data: the stack, sorted by number of batches, most first.
            duration: epochs or steps of the visit.
            batch_size: n_i' of the paper.
            rngs: one generator per client.
            least: batches of an epoch, at least.
            whole: all rows in every batch, as often as batches of that size would be drawn.
        """
        self._whole = whole
        steps = [duration.steps_for(n, batch_size, least=least) for n in data.train.counts]
        assert steps == sorted(steps, reverse=True)
        self.working = [sum(s > step for s in steps) for step in range(max(steps, default=0))]
        if whole:  # one batch is kept, and given at every step
            batch_size, steps = data.longest, [min(1, own) for own in steps]
        self._is_small = batch_size <= SMALL_BATCH
        # Padded length of a batch: the same for every stack of a federation, so that no result
        # depends on which clients were stacked together.
        rows = min(batch_size, data.longest)
        length = data.train.x.shape[1]
        index = torch.full((max(steps, default=0), len(data), rows), length - 1)
        self._slot = slot = data.slot_of_rows()
        for i, (n, count, rng) in enumerate(zip(data.train.counts, steps, rngs, strict=True)):
            own = draw_batches(torch.cat([slot[i, :n], slot[i, -1:]]), count, batch_size, rng=rng)
            index[:count, i, : own.shape[1]] = own.where(own < n, length - 1)
        self._index = index + torch.arange(len(data))[:, None] * length
        self._x = data.train.x.flatten(0, 1)
        self._y = data.train.y.flatten()[self._index]
        member = slot.flatten()[self._index][..., None] == torch.arange(data.classes.shape[1])
        self._counts = member.sum(2)
        self._member = member.to(data.train.x.dtype)
        share = self._counts.clamp_min(1).to(self._member).reciprocal()
        self._mass = (self._member @ share[..., None])[..., 0]

    def __len__(self) -> int:
        return len(self.working)

    @property
    def rows_drawn(self) -> Int[Tensor, "clients slots"]:
        """Number of different rows of each class in all batches; responses are one class."""
        drawn = torch.zeros(len(self._x), dtype=torch.int64)
        drawn[self._index.flatten()] = 1
        counts = torch.zeros(len(self._slot), self._counts.shape[2] + 1, dtype=torch.int64)
        return counts.scatter_add_(1, self._slot, drawn.view_as(self._slot))[:, :-1]  # no padding

    def batch(self, step: int) -> Batch:
        """Batch of every client that still works at `step`."""
        count, step = self.working[step], 0 if self._whole else step
        x = self._x.index_select(0, self._index[step, :count].flatten())
        return Batch(
            x.view(count, -1, x.shape[1]),
            self._y[step, :count],
            self._counts[step, :count],
            self._member[step, :count],
            self._mass[step, :count],
            partial(self.blocks, step, count),
            self._is_small,
        )

    def blocks(self, step: int, count: int) -> list[Tensor]:
        """Row numbers of the class blocks of one step, an array [blocks, size] per block size."""
        found = (index[b[step] : b[step + 1]] for index, b in self._blocks_by_size)
        if self._whole:  # the kept batch has blocks of clients that are done, too
            rows = count * self._index.shape[2]
            found = (index[index[:, 0] < rows] for index in found)
        return [index for index in found if len(index)]

    @cached_property
    def _blocks_by_size(self) -> list[tuple[Tensor, list[int]]]:
        """Row numbers of all blocks in order of steps, and the start of each step, per padded size.

        Computed for all steps at once; one by one, it would take as long as the training itself.
        """
        steps, clients, slots = self._counts.shape
        counts = self._counts.flatten()
        before = self._counts.cumsum(2) - self._counts
        starts = (before + torch.arange(clients)[:, None] * self._index.shape[2]).flatten()
        size = -(-counts // BLOCK) * BLOCK
        step = torch.arange(steps).repeat_interleave(clients * slots)
        found = []
        for padded in size[counts > 1].unique().tolist():
            chosen = ((size == padded) & (counts > 1)).nonzero().flatten()
            offset = torch.arange(padded)
            index = starts[chosen, None] + offset
            index = index.where(offset < counts[chosen, None], -1)
            bounds = torch.searchsorted(step[chosen], torch.arange(steps + 1))
            found.append((index, bounds.tolist()))
        return found


def draw_batches(
    slot: Int[Tensor, " rows"], steps: int, batch_size: int, *, rng: torch.Generator
) -> Int[Tensor, "steps size"]:
    """Row numbers of `steps` batches, epoch by epoch, rows of one class together.

    Args:
        slot: class of each row, and of one more row that padding points to.
        steps: number of batches.
        batch_size: rows of a full batch.
        rng: the client's generator.
    """
    n = len(slot) - 1
    size = min(batch_size, n)
    per_epoch = -(-n // size)
    order = torch.rand(-(-steps // per_epoch), n, generator=rng).argsort(dim=1, stable=True)
    padded = torch.nn.functional.pad(order, (0, per_epoch * size - n), value=n)
    batches = padded.view(-1, size)[:steps]
    return batches.gather(1, slot[batches].argsort(dim=1, stable=True))
