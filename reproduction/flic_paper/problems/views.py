"""Ten digits in eight feature spaces, of which no two have a feature in common.

Six are descriptions of the same scanned digits (Multiple Features), the others are other scanned
digits (optical) and digits written on a tablet (pen).
Paper: "MNIST-USPS", whose clients read digits in two spaces.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Literal, Self

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
    split_by_class,
)
from flic.data.problem import Problem
from flic.data.ranges import refuse_outside
from flic.data.schema import FeatureSchema
from flic.data.task import Classification
from flic.seeding import generator
from flic_paper.problems.store import Arrays, load_arrays

NUM_CLASSES = 10

_TEST_SHARE = 0.4
"""Share of each digit's rows that no client trains on."""


class ViewsConfig(Problem):
    """Settings of the eight views; each client draws from the ranges, ends included."""

    problem: Literal["views"] = "views"
    num_clients: int = Field(default=40, ge=1)  # b
    classes_per_client: tuple[int, int] = (3, 5)  # |𝒴_i|
    rows_per_class: tuple[int, int] = (5, 12)  # training rows
    test_rows_per_class: int = Field(default=40, ge=1)  # at most

    @model_validator(mode="after")
    def _ranges_fit(self) -> Self:
        refuse_outside("classes_per_client", self.classes_per_client, 2, NUM_CLASSES)
        # Multiple Features has 120 rows of each digit outside the test part
        refuse_outside("rows_per_class", self.rows_per_class, 1, 120)
        return self

    def make(self, *, seed: int) -> FederatedData:
        return make_views(self, seed=seed)


@dataclass(frozen=True, eq=False)
class _View:
    """Rows of one feature space."""

    space: str
    digits: str  # the digits that it describes; views of the same ones have the same test part
    rows: Split
    largest: float | None = None  # values are whole numbers from 0 to this; None: measurements


def make_views(config: ViewsConfig, *, seed: int) -> FederatedData:
    """Clients with few rows each, every view in turn.

    Clients of one view train on different digits. No client of any view trains on a digit that
    any client is tested on; test digits may be shared.
    """
    make = partial(_make_clients, config=config, seed=seed)
    clients = in_turn(_read_views(), config.num_clients, make)
    return FederatedData("views", Classification(NUM_CLASSES), clients)


def _read_views() -> list[_View]:
    mfeat, others = load_arrays("mfeat"), load_arrays("digits_optical_pen")

    def of_mfeat(space: str, key: str, largest: float | None = None) -> _View:
        return _View(space, "mfeat", _rows(mfeat, key, "y"), largest)

    return [
        of_mfeat("fourier", "fou"),
        of_mfeat("factors", "fac"),
        of_mfeat("karhunen", "kar"),
        of_mfeat("pixels", "pix", 6),
        of_mfeat("zernike", "zer"),
        of_mfeat("morphology", "mor"),
        _View("optical", "optical", _rows(others, "x_optdigits", "y_optdigits"), 16),
        _View("pen", "pen", _rows(others, "x_penbased", "y_penbased"), 100),
    ]


def _rows(arrays: Arrays, x: str, y: str) -> Split:
    return Split(
        torch.from_numpy(arrays[x].astype(np.float32)),
        torch.from_numpy(arrays[y].astype(np.int64)),
    )


def _make_clients(
    view: _View, members: range, *, config: ViewsConfig, seed: int
) -> Iterator[ClientData]:
    """Clients of one view, with the numbers `members`."""
    # named after the digits, not the view: all views of the same digits have the same split
    split_rng = generator(seed, "views", "test", view.digits)
    train_rows, test_rows = split_by_class(view.rows.y, _TEST_SHARE, rng=split_rng)
    rng = generator(seed, "views", view.space)
    pool = {label: draw_rows(rows, len(rows), rng=rng) for label, rows in train_rows.items()}
    low, high = config.classes_per_client
    sizes = torch.randint(low, high + 1, (len(members),), generator=rng).tolist()
    holdings = draw_uneven_classes(sizes, NUM_CLASSES, rng=rng)
    dealt = deal_few_rows(pool, holdings, config.rows_per_class, rng=rng)
    for i, held, train in zip(members, holdings, dealt, strict=True):
        name = f"{view.space}-{i:02d}"
        client_rng = generator(seed, "views", name)
        test = torch.cat(
            [draw_rows(test_rows[c], config.test_rows_per_class, rng=client_rng) for c in held]
        )
        yield _make_client(name, view, train, test)


def _make_client(name: str, view: _View, train: Tensor, test: Tensor) -> ClientData:
    """Client of the given rows of `view`."""
    train_rows, test_rows = view.rows.take(train), view.rows.take(test)
    centre, scale = _centre_and_scale(view, train_rows.x)
    dim = view.rows.x.shape[1]
    return ClientData(
        name=name,
        schema=FeatureSchema(view.space, tuple(f"{view.space}{j}" for j in range(dim))),
        train=Split((train_rows.x - centre) / scale, train_rows.y),
        validation=Split.empty(dim),
        test=Split((test_rows.x - centre) / scale, test_rows.y),
    )


def _centre_and_scale(view: _View, own: Tensor) -> tuple[Tensor, Tensor]:
    """Values to subtract from a client's rows, and to divide them by.

    A known range is scaled to [-1, 1], the same way on all clients. Measurements, whose units
    differ by a factor of 50,000, are standardised by the client's own training rows, since nothing
    else is known at a client.
    """
    if view.largest is not None:
        half = torch.full(own.shape[1:], view.largest / 2)
        return half, half
    deviation = own.std(dim=0, correction=0)
    return own.mean(dim=0), deviation.where(deviation > 0, 1.0)
