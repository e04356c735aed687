"""Which rows are trained on and which are held out, client by client, seed by seed.

Classes keep their shares on both sides; rows with responses are spread over their range.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

import numpy as np

from flic.data.tables.table import SiloTable
from flic.errors import ConfigError
from flic.seeding import derive_seed
from flic.silos.settings import FitSettings

Rows = Mapping[str, tuple[np.ndarray, np.ndarray]]
"""Positions of the training and of the held-out rows, by client."""

#: With fewer rows, a share of them held out is too few to tell; cross-validation tests them all.
SMALL = 100


def folds(y: np.ndarray, count: int, *, seed: int, path: Sequence[str | int]) -> np.ndarray:
    """Fold of each row: classes, or neighbours in rank, are dealt out like cards.

    Every fold has rows of every class that has as many rows as there are folds, and a class of
    two rows or more is never whole in one fold.
    """
    rng = np.random.default_rng(derive_seed(seed, "folds", *path))
    shuffled = rng.permutation(len(y))
    order = shuffled[np.argsort(y[shuffled], kind="stable")]
    if y.dtype.kind == "f":
        blocks = [order[i : i + count] for i in range(0, len(order), count)]
        order = np.concatenate([rng.permutation(block) for block in blocks])
    fold = np.empty(len(y), int)
    fold[order] = (np.arange(len(y)) + rng.integers(count)) % count
    return fold


def outer_splits(tables: Sequence[SiloTable], settings: FitSettings) -> list[Rows]:
    """The splits of a verdict: repeated ones, or repeated cross-validation for small silos.

    A split is the first of a fresh cross-validation whose folds have the share to hold out.
    """
    count, once = round(1 / settings.test_share), scheme(tables, settings) == "splits"
    _refuse_empty(min(tables, key=len), count, settings)
    found: list[Rows] = []
    for repeat in range(settings.repeats):
        every = cross_validation(tables, count, seed=settings.seed, path=("repeat", repeat))
        found += islice(every, 1 if once else count)
    return found


def _refuse_empty(smallest: SiloTable, count: int, settings: FitSettings) -> None:
    """Refuse shares and folds that leave a client nothing to be tested on."""
    rows, training = len(smallest), len(smallest) - math.ceil(len(smallest) / count)
    if count > rows:
        raise ConfigError(
            f"test_share is {settings.test_share:g}, which holds out no row of client "
            f"'{smallest.name}' with its {rows}; expected {1 / rows:.2g} at least. Increase it."
        )
    if settings.folds > training:
        raise ConfigError(
            f"folds is {settings.folds}, and client '{smallest.name}' has {training} training "
            f"rows; expected a row in every fold. Write {training} or fewer."
        )


def scheme(tables: Sequence[SiloTable], settings: FitSettings) -> str:
    """How rows are held out: by repeated splits, or by repeated cross-validation."""
    if settings.scheme != "auto":
        return settings.scheme
    return "cross-validation" if min(map(len, tables)) < SMALL else "splits"


def cross_validation(
    tables: Sequence[SiloTable], count: int, *, seed: int, path: Sequence[str | int]
) -> Iterator[Rows]:
    """`count` splits; every row is held out once."""
    fold = {t.name: folds(t.y, count, seed=seed, path=(*path, t.name)) for t in tables}
    for k in range(count):
        yield {name: (np.flatnonzero(f != k), np.flatnonzero(f == k)) for name, f in fold.items()}
