"""MNIST at 28×28 pixels for one half of the clients, USPS at 16×16 for the other.

Paper: "MNIST-USPS", table:performance.
"""

from dataclasses import dataclass
from functools import cache
from typing import Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from flic.data.client_data import ClientData, FederatedData, Split
from flic.data.partition import deal_rows, draw_classes, draw_rows
from flic.data.problem import Problem
from flic.data.schema import FeatureSchema
from flic.data.task import Classification
from flic.seeding import generator
from flic_paper.problems.store import load_arrays

NUM_CLASSES = 10


class MnistUspsConfig(Problem):
    """Settings of the MNIST-USPS problem."""

    problem: Literal["mnist-usps"] = "mnist-usps"
    num_clients: int = Field(default=100, ge=2)  # b
    classes_per_client: int = Field(default=3, ge=2, le=NUM_CLASSES)  # |𝒴_i|
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

    The two data sets keep their own split into training and test images. Both parts of a
    class are divided among its holders, so that no image is at two clients.
    """
    clients: dict[int, ClientData] = {}
    for first, source in enumerate((_mnist(), _usps())):
        members = range(first, config.num_clients, 2)
        made = _make_clients(source, members, config, seed=seed)
        clients.update(zip(members, made, strict=True))
    ordered = tuple(clients[i] for i in range(config.num_clients))
    return FederatedData("mnist-usps", Classification(NUM_CLASSES), ordered)


def _make_clients(
    source: _Source, members: range, config: MnistUspsConfig, *, seed: int
) -> list[ClientData]:
    """Clients of one data set, with the numbers `members`."""
    rng = generator(seed, "mnist-usps", source.name)
    holdings = draw_classes(len(members), NUM_CLASSES, config.classes_per_client, rng=rng)
    train = _at_most(source.train, config.train_rows_per_class, rng=rng)
    test = _at_most(source.test, config.test_rows_per_class, rng=rng)
    train_rows = deal_rows(train.y, holdings, rng=rng)
    test_rows = deal_rows(test.y, holdings, rng=rng)
    schema = FeatureSchema.of_images(
        f"{source.name}-{source.side}x{source.side}", *[source.side] * 2
    )
    clients = []
    for i, rows, rows_of_test in zip(members, train_rows, test_rows, strict=True):
        name = f"{source.name}-{i:03d}"
        own, own_test = train.take(rows), test.take(rows_of_test)
        clients.append(ClientData(name, schema, own, Split.empty(schema.dim), own_test))
    return clients


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
