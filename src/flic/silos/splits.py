"""Splits into training and held-out rows, by client and seed.

Classes keep their shares on both sides; rows with responses are spread over their range.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction

import numpy as np

from flic.errors import ConfigError
from flic.seeding import derive_seed
from flic.silos.fit_settings import FitSettings
from flic.tables.table import SiloTable

Rows = Mapping[str, tuple[np.ndarray, np.ndarray]]
"""Positions of the training and of the held-out rows, by client."""

#: With fewer rows, a held-out share is too small to judge by; cross-validation tests all rows.
SMALL = 100


def folds(y: np.ndarray, count: int, *, seed: int, path: Sequence[str | int]) -> np.ndarray:
    """Fold of each row: classes, or neighbours in rank, are dealt out like cards.

    Every fold has rows of every class that has as many rows as there are folds, and a class of
    two rows or more is never whole in one fold.
    """
    order, first = _dealt(y, count, seed=seed, path=path)
    fold = np.empty(len(y), int)
    fold[order] = (np.arange(len(y)) + first) % count
    return fold


def held_out(y: np.ndarray, share: Fraction, *, seed: int, path: Sequence[str | int]) -> np.ndarray:
    """Mark the rows held out: a share of every class, or spread over the range.

    For a share of 1/k, these are the rows of the first of k folds.
    """
    order, first = _dealt(y, round(1 / share), seed=seed, path=path)
    held = np.empty(len(y), bool)
    ranks = np.arange(len(y)) + first
    held[order] = ranks * share.numerator % share.denominator < share.numerator
    return held


def _dealt(
    y: np.ndarray, count: int, *, seed: int, path: Sequence[str | int]
) -> tuple[np.ndarray, int]:
    """Rows in the order in which they are dealt to `count` folds, and the fold of the first."""
    rng = np.random.default_rng(derive_seed(seed, "folds", *path))
    shuffled = rng.permutation(len(y))
    order = shuffled[np.argsort(y[shuffled], kind="stable")]
    if y.dtype.kind == "f":
        blocks = [order[i : i + count] for i in range(0, len(order), count)]
        order = np.concatenate([rng.permutation(block) for block in blocks])
    return order, int(rng.integers(count))


def outer_splits(tables: Sequence[SiloTable], settings: FitSettings) -> list[Rows]:
    """The splits of a verdict: repeated ones, or repeated cross-validation for small silos.

    A split holds out the requested share, cross-validation the nearest 1/k.
    """
    seed, share = settings.seed, Fraction(settings.test_share).limit_denominator(10**6)
    once = scheme(tables, settings) == "splits"
    share = share if once else Fraction(1, round(1 / share))
    _refuse_empty(min(tables, key=len), share, settings)
    found: list[Rows] = []
    for repeat in range(settings.repeats):
        path = ("repeat", repeat)
        if once:
            found.append(_split(tables, share, seed=seed, path=path))
        else:
            found += cross_validation(tables, share.denominator, seed=seed, path=path)
    return found


def _split(
    tables: Sequence[SiloTable], share: Fraction, *, seed: int, path: Sequence[str | int]
) -> Rows:
    held = {t.name: held_out(t.y, share, seed=seed, path=(*path, t.name)) for t in tables}
    return {name: (np.flatnonzero(~h), np.flatnonzero(h)) for name, h in held.items()}


def _refuse_empty(smallest: SiloTable, share: Fraction, settings: FitSettings) -> None:
    """Refuse shares and folds that leave a client no rows to test on."""
    rows, training = len(smallest), len(smallest) - math.ceil(len(smallest) * share)
    if rows * share < 1:
        least = math.ceil(1e4 / rows) / 1e4
        raise ConfigError(
            f"test_share is {settings.test_share:g}, which holds out no row of client "
            f"'{smallest.name}' with its {rows}; expected {least:g} at least. Increase it."
        )
    if settings.folds > training:
        raise ConfigError(
            f"folds is {settings.folds}, and client '{smallest.name}' has {training} training "
            f"rows; expected a row in every fold. Write {training} or fewer."
        )


def scheme(tables: Sequence[SiloTable], settings: FitSettings) -> str:
    """The way rows are held out: repeated splits, or repeated cross-validation."""
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
