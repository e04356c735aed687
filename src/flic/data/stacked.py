"""Clients of one architecture side by side: a leading client axis on rows and labels.

A real silo is a stack of one. Features are padded with zeros to a common width, rows with
zero rows to a common length; zero rows and columns change no result.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from flic.data.client_data import ClientData, Split
from flic.data.task import Task


@dataclass(frozen=True)
class StackedRows:
    """Rows of several clients, padded: the last row of each client is always zero."""

    x: Float[Tensor, "clients rows dim"]
    y: Shaped[Tensor, "clients rows"]  # classes, or responses in `dtype`
    counts: tuple[int, ...]

    @classmethod
    def of(cls, splits: Sequence[Split], *, width: int, dtype: torch.dtype) -> "StackedRows":
        """Stack of splits, features padded to `width`."""
        longest = max(len(split) for split in splits)
        x = torch.zeros(len(splits), longest + 1, width, dtype=dtype)
        real = splits[0].y.is_floating_point()
        y = torch.zeros(len(splits), longest + 1, dtype=dtype if real else torch.int64)
        for i, split in enumerate(splits):
            x[i, : len(split), : split.x.shape[1]] = split.x
            y[i, : len(split)] = split.y
        return cls(x, y, tuple(len(split) for split in splits))


@dataclass(frozen=True)
class StackedData:
    """Training rows of a stack of clients, and the classes that each of them holds.

    Paper: `classes` is 𝒴_i, in slots 0 … |𝒴_i| − 1 and padded with −1. The task encodes the
    labels; rows with responses are in one slot.
    """

    clients: tuple[ClientData, ...]
    train: StackedRows
    classes: Int[Tensor, "clients slots"]
    task: Task
    width: int
    longest: int  # training rows of the federation's largest client of this architecture

    @classmethod
    def of(
        cls,
        clients: Sequence[ClientData],
        *,
        task: Task,
        width: int,
        slots: int,
        longest: int,
        dtype: torch.dtype,
    ) -> "StackedData":
        """Stack of clients' training rows, in the order given."""
        splits = [Split(c.train.x, task.encode(c.train.y)) for c in clients]
        train = StackedRows.of(splits, width=width, dtype=dtype)
        classes = torch.full((len(clients), slots), -1)
        for i, client in enumerate(clients):
            classes[i, : len(client.classes)] = torch.tensor(client.classes)
        return cls(tuple(clients), train, classes, task, width, longest)

    def __len__(self) -> int:
        return len(self.clients)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the clients, in stack order."""
        return tuple(client.name for client in self.clients)

    @property
    def holds(self) -> Bool[Tensor, "clients slots"]:
        """True where a slot is in use."""
        return self.classes >= 0

    def slot_of_rows(self) -> Int[Tensor, "clients rows"]:
        """Slot of each row's class; padded rows get the slot after the last."""
        slots = self.classes.shape[1]
        slot = (self.train.y[:, :, None] == self.classes[:, None, :]).int().argmax(-1)
        length = torch.tensor(self.train.counts)[:, None]
        padded = torch.arange(self.train.y.shape[1])[None, :] >= length
        return slot.masked_fill(padded, slots)
