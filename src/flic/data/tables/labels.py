"""Labels of a client: which column holds them, and which class each raw value means.

Part 1 of the flow, for tables. Kept with a client's model, so that later rows are scored alike.
"""

from collections.abc import Iterable, Mapping

import numpy as np
import pandas as pd
from pydantic import BaseModel, ConfigDict

from flic.data.tables.declared import Declared, Raw
from flic.data.tables.values import column_of, parse_number, text_of, texts
from flic.errors import DataError

LabelNames = tuple[Raw, ...] | dict[str, tuple[Raw, ...]]
"""Labels as declared: names that are the raw values, or name → raw values."""

_QUOTED = 10


class Labelling(BaseModel):
    """How the raw labels of one client are read."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    column: str
    positions: dict[str, int] | None = None  # raw value as text → class; None: responses

    def read(self, frame: pd.DataFrame, declared: Declared) -> tuple[np.ndarray, np.ndarray]:
        """Labels of the rows that have one, and the positions of those rows.

        Raises:
            DataError: no such column, or values that are no label.
        """
        raw = label_texts(frame, self.column, declared)
        rows = np.flatnonzero([value is not None for value in raw])
        known = raw[rows]
        if self.positions is None:
            return _responses(self.column, known), rows
        unknown = sort_values({*known} - {*self.positions})
        if unknown:
            raise DataError(
                f"label column '{self.column}' has the undeclared values {quoted(unknown)}; "
                f"expected {quoted(self.positions)}. Add them to `labels`, or to `missing` if they "
                "mean that the label is not known."
            )
        return np.array([self.positions[value] for value in known], dtype=np.int64), rows


def label_texts(frame: pd.DataFrame, column: str, declared: Declared) -> np.ndarray:
    """Raw labels as text, None where missing."""
    if column not in frame.columns:
        raise DataError(
            f"has no label column '{column}'; expected one of its columns {quoted(frame.columns)}. "
            "Correct `label`."
        )
    return texts(column_of(frame, column), declared)


def _responses(column: str, values: np.ndarray) -> np.ndarray:
    numbers = [parse_number(value) for value in values]
    bad = dict.fromkeys(v for v, n in zip(values, numbers, strict=True) if n is None)
    if bad:
        raise DataError(
            f"label column '{column}' has {quoted(bad)}; expected numbers, since the task is "
            "regression. Correct them, or declare them in `missing`."
        )
    return np.array(numbers, dtype=np.float64)


def class_names(labels: LabelNames) -> tuple[str, ...]:
    """Names of the classes, in order."""
    return tuple(labels if isinstance(labels, Mapping) else map(text_of, labels))


def positions(labels: LabelNames, names: tuple[str, ...]) -> dict[str, int]:
    """Raw value as text → position of its class in `names`.

    Raises:
        DataError: a class that is not in `names`, or a value that means two classes.
    """
    own = labels if isinstance(labels, Mapping) else {text_of(v): (v,) for v in labels}
    strange = [name for name in own if name not in names]
    if strange:
        raise DataError(
            f"its `labels` have the classes {quoted(strange)}; expected classes of the federation, "
            f"{quoted(names)}. Correct the names."
        )
    pairs = [
        (text_of(value), names.index(name)) for name, values in own.items() for value in values
    ]
    repeated = sort_values({v for v, _ in pairs if sum(v == w for w, _ in pairs) > 1})
    if repeated:
        raise DataError(
            f"`labels` have {quoted(repeated)} more than once; expected each value in one class. "
            "Keep one of them."
        )
    return dict(pairs)


def sort_values(values: Iterable[str]) -> list[str]:
    """Raw values in order: numbers by size, then texts."""
    return sorted(values, key=lambda v: (parse_number(v) is None, parse_number(v) or 0.0, v))


def quoted(values: Iterable[object]) -> str:
    """The first values, in quotes, and how many more there are."""
    listed = [f"'{value}'" for value in values]
    more = len(listed) - _QUOTED
    return ", ".join(listed[:_QUOTED]) + (f" and {more} more" if more > 0 else "")
