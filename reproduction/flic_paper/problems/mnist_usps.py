"""MNIST at 28×28 pixels for one half of the clients, USPS at 16×16 for the other.

Paper: "MNIST-USPS", table:performance. The text does not say how images are dealt out. Here they
are at one client each; the partition of the authors' program is there too (`partition`).
"""

from dataclasses import dataclass
from functools import cache, partial
from typing import Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from flic.data.client_data import ClientData, FederatedData, Split
from flic.data.partition import Holdings, deal_rows, draw_classes, draw_rows, in_turn
from flic.data.problem import Problem
from flic.data.schema import FeatureSchema
from flic.data.task import Classification
from flic.seeding import generator
from flic_paper.problems.store import load_arrays

NUM_CLASSES = 10

#: Of the authors' partition: below so many rows per client, a slot has so many shared shards.
FEW_ROWS, SHARED_SHARDS = 100, 50


class MnistUspsConfig(Problem):
    """Settings of the MNIST-USPS problem."""

    problem: Literal["mnist-usps"] = "mnist-usps"
    num_clients: int = Field(default=100, ge=2)  # b
    classes_per_client: int = Field(default=3, ge=2, le=NUM_CLASSES)  # |𝒴_i|
    partition: Literal["disjoint", "authors"] = "disjoint"
    taken: int | None = Field(default=None, ge=2)  # the first clients, rows as before; None: all
    train_rows_per_class: int | None = Field(default=None, ge=1)  # of each set; None: all
    test_rows_per_class: int | None = Field(default=None, ge=1)

    def make(self, *, seed: int) -> FederatedData:
        return make_mnist_usps(self, seed=seed)


@dataclass(frozen=True, eq=False)
class _Source:
    """One data set: its own training and test images, values in [-1, 1]."""

    name: str
    side: int
    train: Split
    test: Split


def make_mnist_usps(config: MnistUspsConfig, *, seed: int) -> FederatedData:
    """Clients with images of one size or the other, each with few of the digits.

    The two data sets keep their own split into training and test images. In the disjoint partition
    both parts of a class are divided among its holders, so that no image is at two clients.
    """
    make = partial(_make_clients, config=config, seed=seed)
    clients = in_turn((_mnist(), _usps()), config.num_clients, make)
    return FederatedData("mnist-usps", Classification(NUM_CLASSES), clients[: config.taken])


def _make_clients(
    source: _Source, members: range, *, config: MnistUspsConfig, seed: int
) -> list[ClientData]:
    """Clients of one data set, with the numbers `members`."""
    rng = generator(seed, "mnist-usps", source.name)
    is_ours = config.partition == "disjoint"
    count, held = len(members), config.classes_per_client
    holdings = (
        draw_classes(count, NUM_CLASSES, held, rng=rng)
        if is_ours
        else _draw_slots(count, held, rng=rng)
    )
    train = _at_most(source.train, config.train_rows_per_class, rng=rng)
    test = _at_most(source.test, config.test_rows_per_class, rng=rng)
    train_rows, test_rows = (
        deal_rows(part.y, holdings, rng=rng)
        if is_ours
        else _deal_shards(part.y, holdings, config.num_clients, rng=rng)
        for part in (train, test)
    )
    schema = FeatureSchema.of_images(
        f"{source.name}-{source.side}x{source.side}", *[source.side] * 2
    )
    clients = []
    for i, rows, rows_of_test in zip(members, train_rows, test_rows, strict=True):
        name = f"{source.name}-{i:03d}"
        own, own_test = train.take(rows), test.take(rows_of_test)
        clients.append(ClientData(name, schema, own, Split.empty(schema.dim), own_test))
    return clients


def _draw_slots(clients: int, slots: int, *, rng: torch.Generator) -> Holdings:
    """Classes of every client as the authors draw them: uniformly, so that some repeat.

    Departs: a client with one class only draws again, since any accuracy on it would be 100 %.
    """
    holdings: Holdings = []
    while len(holdings) < clients:
        drawn = torch.randint(NUM_CLASSES, (slots,), generator=rng).tolist()
        if len(set(drawn)) > 1:
            holdings.append(tuple(drawn))
    return holdings


def _deal_shards(
    labels: Tensor, holdings: Holdings, num_clients: int, *, rng: torch.Generator
) -> list[Tensor]:
    """Rows of every client as in the authors' program.

    Every class is cut into shards for all clients, although half of them hold this data set. A
    slot takes the next shard of its class. Where there are fewer than 100 rows for each client,
    it takes 50 shards at random instead, with repeats, which other clients may have as well.
    """
    shards_per_class = max(1, num_clients * len(holdings[0]) // NUM_CLASSES)
    by_class = [(labels == c).nonzero().flatten() for c in range(NUM_CLASSES)]
    shards = [
        rows[torch.randperm(len(rows), generator=rng)].tensor_split(shards_per_class)
        for rows in by_class
    ]
    repeats = len(labels) / num_clients < FEW_ROWS
    taken = [0] * NUM_CLASSES
    dealt = []
    for held in holdings:
        own: list[Tensor] = []
        for c in held:
            if repeats:
                drawn = torch.randint(len(shards[c]), (SHARED_SHARDS,), generator=rng).tolist()
            else:
                drawn = [taken[c] % len(shards[c])]
                taken[c] += 1
            own += [shards[c][i] for i in drawn]
        dealt.append(torch.cat(own))
    return dealt


def _at_most(split: Split, rows_per_class: int | None, *, rng: torch.Generator) -> Split:
    """Split with at most `rows_per_class` rows of each class."""
    if rows_per_class is None:
        return split
    by_class = [(split.y == c).nonzero().flatten() for c in range(NUM_CLASSES)]
    return split.take(torch.cat([draw_rows(rows, rows_per_class, rng=rng) for rows in by_class]))


@cache  # unpacking takes as long as a small run
def _mnist() -> _Source:
    arrays = load_arrays("mnist")
    return _Source("mnist", 28, *_splits(arrays, brightest=255))


@cache
def _usps() -> _Source:
    arrays = load_arrays("usps")
    return _Source("usps", 16, *_splits(arrays, brightest=int(arrays["scale"])))


def _splits(arrays: dict[str, np.ndarray], *, brightest: int) -> tuple[Split, Split]:
    """Training and test images, values scaled from [0, brightest] to [-1, 1]."""
    train, test = (
        Split(_scaled(arrays[f"x_{part}"], brightest), torch.from_numpy(arrays[f"y_{part}"]).long())
        for part in ("train", "test")
    )
    return train, test


def _scaled(pixels: np.ndarray, brightest: int) -> Tensor:
    flat = torch.from_numpy(pixels.reshape(len(pixels), -1).astype(np.float32))
    return flat.mul_(2 / brightest).sub_(1)
