"""Columns that a model should probably not learn from: ids, leaks, markers of missing values.

Each is judged only by the client's own values; new rows are judged by what the fit saw.
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pandas as pd

from flic.data.task import Classification, Task
from flic.tables.declared import Kind

JUDGED_ROWS = 20  # fewer say nothing about leaks and ids
ID_ROWS = 50
LOOKED_AT_ROWS = 5_000  # enough to judge a column by
PERFECT = 0.999
PIECE_ROWS = 5  # neighbours of one class that cannot be chance
OFTEN = 0.01  # share of the rows from which a value is suspected to mean "not measured"
LARGE = 10
BEYOND = 0.1  # tolerance, as a share of the range that was seen
SWAPPED_ROWS = 20  # the mean of fewer rows says too little
SENTINELS = (-999.0, -99.0, -9.0, -1.0, 99.0, 999.0, 9999.0)


def looks_like_id(known: pd.Series, kind: Kind) -> bool:
    """Return whether the values only identify rows: whole numbers or words, all distinct."""
    if len(known) < JUDGED_ROWS or not known.is_unique:
        return False
    if kind == "number":  # a few whole numbers can be distinct by chance, but rarely consecutive
        in_a_row = bool(known.max() - known.min() + 1 == len(known))
        return bool((known % 1 == 0).all()) and (in_a_row or len(known) >= ID_ROWS)
    return kind in ("category", "text") and not any(" " in value for value in known)


def suspicious_value(known: np.ndarray) -> float | None:
    """A value that probably means "not measured", if there is one.

    It is frequent and apart from the others: 0 where all others are positive and large, a
    negative number where all others are not, 999 where all others are far smaller.
    """
    often = OFTEN * len(known)
    for value in (0.0, *SENTINELS):
        is_it = known == value
        if np.count_nonzero(is_it) <= often:
            continue
        rest = known[~is_it]
        if len(rest) >= JUDGED_ROWS and _is_apart(value, rest):
            return value
    return None


def _is_apart(value: float, rest: np.ndarray) -> bool:
    low, high = float(rest.min()), float(rest.max())
    if value == 0:
        return low >= LARGE and low > float(np.median(rest)) / 4
    if value < 0:
        return low >= 0
    return value - high > high - low


def leaks_label(values: pd.Series, kind: Kind, y: np.ndarray, task: Task) -> bool:
    """Return whether the column alone predicts the label perfectly, or nearly so."""
    if len(y) < JUDGED_ROWS or kind == "text":
        return False
    if len(y) > LOOKED_AT_ROWS:
        rows = np.random.default_rng(0).permutation(len(y))[:LOOKED_AT_ROWS]
        values, y = values.iloc[rows].reset_index(drop=True), y[rows]
    if kind == "category":
        return _levels_tell(values.fillna(""), y, task)
    x = values.astype("int64") if kind == "date" else values
    x = np.where(values.isna(), np.nan, x.to_numpy(dtype=float))
    if isinstance(task, Classification):
        return _pieces_tell_class(x, y)
    return _neighbours_tell_response(x, y)


def _levels_tell(values: pd.Series, y: np.ndarray, task: Task) -> bool:
    """Return whether every level goes with one label, in levels of several rows each."""
    levels, distinct = pd.factorize(values)
    if 4 * len(distinct) > len(y) or len(distinct) < 2:
        return False
    if isinstance(task, Classification):
        counts = np.zeros((len(distinct), y.max() + 1), int)
        np.add.at(counts, (levels, y), 1)
        return float(counts.max(1).sum()) / len(y) >= PERFECT > _majority(y)
    groups = [y[levels == level] for level in range(len(distinct))]
    within = sum(float(np.var(own)) * len(own) for own in groups) / len(y)
    return within <= (1 - PERFECT) * float(np.var(y))


def _majority(y: np.ndarray) -> float:
    return float(np.bincount(y).max() / len(y))


def _pieces_tell_class(x: np.ndarray, y: np.ndarray) -> bool:
    """Return whether the values fall into pieces of one class each, of several rows or more.

    A tree of scikit-learn gives much the same answer. On one column it is a sort, which takes a
    hundredth of the time.
    """
    _, value = np.unique(x, return_inverse=True)  # all missing values are one value, the last
    counts = np.zeros((value.max() + 1, y.max() + 1), int)
    np.add.at(counts, (value, y), 1)
    best = counts.argmax(1)
    piece = np.cumsum(np.append(0, best[1:] != best[:-1]))
    rows, right = (np.bincount(piece, weights=own) for own in (counts.sum(1), counts.max(1)))
    return float(right[rows >= PIECE_ROWS].sum()) / len(y) >= PERFECT > _majority(y)


def _neighbours_tell_response(x: np.ndarray, y: np.ndarray) -> bool:
    """Return whether a response is the mean of those at equal values, or else at the nearest."""
    if np.ptp(y) == 0:
        return False
    # Neighbours that are far apart predict even a straight line only in steps.
    if not np.isnan(x).any() and np.ptp(x) > 0 and np.corrcoef(x, y)[0, 1] ** 2 >= PERFECT:
        return True
    _, value, rows = np.unique(x, return_inverse=True, return_counts=True)
    total = np.bincount(value, weights=y)
    mean = total / rows
    beside = np.convolve(np.pad(mean, 1, mode="reflect"), [0.5, 0, 0.5], "valid")
    others = (total[value] - y) / np.maximum(rows[value] - 1, 1)
    told = np.where(rows[value] > 1, others, beside[value])
    return float(np.square(y - told).sum()) <= (1 - PERFECT) * float(np.square(y - y.mean()).sum())


# ---- new rows --------------------------------------------------------------------------------


def beyond_ranges(
    names: Sequence[str], x: np.ndarray, ranges: Mapping[str, tuple[float, float]]
) -> Iterator[str]:
    """Columns with most values beyond the ranges of the fit; `x` is NaN where missing."""
    for name, values in zip(names, x.T, strict=True):
        if name in ranges:
            low, high = ranges[name]
            known, margin = values[~np.isnan(values)], BEYOND * (high - low)
            beyond = (known < low - margin) | (known > high + margin)
            if 2 * np.count_nonzero(beyond) > len(known):
                yield (
                    f"most values of column '{name}' lie outside {low:g} to {high:g}, the range of "
                    "the fit. Is it another column, or in another unit?"
                )


def swapped(
    names: Sequence[str], x: np.ndarray, means: Sequence[float], deviations: Sequence[float]
) -> Iterator[str]:
    """Pairs of columns whose means have changed places since the fit."""
    enough = np.flatnonzero((~np.isnan(x)).sum(0) >= SWAPPED_ROWS)
    now = np.nanmean(x[:, enough], 0)
    centre, spread = (np.array(own)[enough] for own in (means, deviations))
    moved = np.flatnonzero(np.abs(now - centre) > spread)
    apart = np.abs(now[moved, None] - centre[moved]) / spread[moved]
    for a, b in np.argwhere(np.triu((apart < 0.5) & (apart.T < 0.5), 1)):
        one, other = (names[int(enough[moved[i]])] for i in (a, b))
        yield f"columns '{one}' and '{other}' look swapped: each looks as the other did in the fit."
