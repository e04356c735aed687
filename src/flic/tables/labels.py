"""Labels of a client: their column, and the class that each raw value means.

They are saved with a client's model, so that later rows are read in the same way.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal

import numpy as np
import pandas as pd
from pandas.api.types import is_bool_dtype, is_numeric_dtype
from pydantic import PlainValidator

from flic.errors import DataError
from flic.notation import quoted
from flic.settings import Section
from flic.tables.declared import Declared, Raw, is_list_of_values
from flic.tables.values import column_of, parse_number, text_of, texts


def _label_names(labels: Any) -> "tuple[Raw, ...] | dict[str, tuple[Raw, ...]]":
    if is_list_of_values(labels):
        return tuple(labels)
    if isinstance(labels, Mapping) and all(map(is_list_of_values, labels.values())):
        return {str(name): tuple(values) for name, values in labels.items()}
    raise ValueError(
        "expected a list of class names, or a table of name = [values], such as "
        "{ healthy = [0], ill = [1, 2] }"
    )


LabelNames = Annotated[tuple[Raw, ...] | dict[str, tuple[Raw, ...]], PlainValidator(_label_names)]
"""Declared labels: names that are the raw values, or name → raw values."""


class Labelling(Section):
    """Rules for reading the raw labels of one client."""

    column: str
    positions: dict[str, int] | None = None  # raw value as text → class; None: responses
    site: tuple[str, str] | None = None  # column that tells sites apart, and this client's value
    values: Literal["texts", "numbers", "booleans"] = "texts"  # type of the raw labels

    def read(self, frame: pd.DataFrame, declared: Declared) -> tuple[np.ndarray, np.ndarray]:
        """Labels of the client's rows that have one, and the positions of those rows.

        Raises:
            DataError: no such column, or values that are not labels.
        """
        raw = label_texts(frame, self.column, declared, names=self.positions or ())
        is_known = np.array([value is not None for value in raw], dtype=bool)
        rows = np.flatnonzero(self.is_own(frame, declared) & is_known)
        known = raw[rows]
        if self.positions is None:
            return _responses(self.column, known), rows
        unknown = sort_values({*known} - {*self.positions})
        if unknown:
            raise DataError(
                f"label column '{self.column}' has the undeclared values {quoted(unknown)}; "
                f"expected {quoted(self.positions)}. Correct them, add them to `labels` before a "
                "fit, or to `missing` if they mean that the label is not known."
            )
        return np.array([self.positions[value] for value in known], dtype=np.int64), rows

    def fits(self, num_classes: int | None) -> bool:
        """Return whether it reads so many classes; None: responses."""
        if self.positions is None or num_classes is None:
            return self.positions is None and num_classes is None
        return all(0 <= position < num_classes for position in self.positions.values())

    def classes(self, names: Sequence[str]) -> np.ndarray:
        """Classes as values of the client's own type, or else as their names."""
        numbers = [parse_number(name) for name in names]
        if self.values == "numbers" and None not in numbers:
            whole = all(number == int(number) for number in numbers if number is not None)
            return np.array(numbers, dtype=int if whole else float)
        if self.values == "booleans" and {*names} <= {"True", "False"}:
            return np.array([name == "True" for name in names])
        return np.array(names, dtype=object)

    def is_own(self, frame: pd.DataFrame, declared: Declared) -> np.ndarray:
        """Mask of this client's rows: all of them, unless a site column says otherwise."""
        if self.site is None or self.site[0] not in frame.columns:
            return np.full(len(frame), True)
        column, value = self.site
        return key_texts(frame, column, declared, names=[value]) == value


def label_texts(
    frame: pd.DataFrame, column: str, declared: Declared, names: Iterable[str] = ()
) -> np.ndarray:
    """Raw labels as text, None where missing.

    Declarations for every column are meant for features only, and a declared label such as "none"
    is not missing.

    Raises:
        DataError: no such column.
    """
    if column not in frame.columns:
        raise DataError(
            f"has no label column '{column}'; expected one of its columns {quoted(frame.columns)}. "
            "Correct `label`."
        )
    return key_texts(frame, column, declared, names)


def key_texts(
    frame: pd.DataFrame, column: str, declared: Declared, names: Iterable[str] = ()
) -> np.ndarray:
    """Values of a column that is not a feature as text, None where missing; `names` never are."""
    known = {name.casefold() for name in names}
    own = {
        "missing": {column: declared.missing.get(column, ())},
        "missing_markers": [m for m in declared.missing_markers if m.casefold() not in known],
    }
    return texts(column_of(frame, column), declared.model_copy(update=own))


def kind_of_labels(labels: pd.Series) -> Literal["texts", "numbers", "booleans"]:
    """Type of the raw labels."""
    if is_bool_dtype(labels):
        return "booleans"
    return "numbers" if is_numeric_dtype(labels) else "texts"


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
    """Names of the classes, in order.

    Raises:
        DataError: a class is named twice.
    """
    names = tuple(labels if isinstance(labels, Mapping) else map(text_of, labels))
    repeated = sort_values({name for name in names if names.count(name) > 1})
    if repeated:
        raise DataError(
            f"`labels` have {quoted(repeated)} more than once; expected each class once. Keep one "
            "of them."
        )
    return names


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
