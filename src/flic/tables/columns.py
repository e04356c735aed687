"""Typed columns from raw values: the kind of each column, and the rows in the form of their kinds.

`find_columns` looks once, at fitting; `conform` puts any later rows into the same columns.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from flic.errors import DataError
from flic.notation import are, counted, quoted
from flic.tables.declared import Declared, Kind
from flic.tables.table import Column
from flic.tables.values import (
    BOOLEANS,
    PARSERS,
    are_plain_numbers,
    column_of,
    formed,
    has_decimal_comma,
    in_form,
    is_code,
    looks_like_date,
    month_first,
    parse_number,
    texts,
)

FEW_LEVELS = 40
FEW_LEVELS_SHARE = 0.2
LONG_TEXT = 20  # letters, on average
MOSTLY = 0.5  # share of numbers or dates from which the other values are reported as mixed types
_EXAMPLES = 3


@dataclass(frozen=True)
class Found:
    """Feature columns of a frame, and messages about the others."""

    columns: tuple[Column, ...]
    notices: tuple[str, ...]
    problems: tuple[str, ...]


def find_columns(frame: pd.DataFrame, declared: Declared) -> tuple[Column, ...]:
    """Feature columns of a raw frame with their kinds; drop the label column first.

    Raises:
        DataError: listing every column whose values do not fit together.
    """
    found = look_at_columns(frame, declared)
    if found.problems:
        raise DataError("\n".join(found.problems))
    return found.columns


def look_at_columns(frame: pd.DataFrame, declared: Declared) -> Found:
    """Find the columns that can be used, and all problems of the others."""
    columns: list[Column] = []
    empty: list[str] = []
    problems: list[str] = []
    left_out, kinds = {*declared.left_out}, declared.kinds
    for name in frame.columns:
        if name in left_out:
            continue
        if name not in kinds and are_plain_numbers(column_of(frame, name), declared):
            columns.append(Column(name, "number"))
            continue
        values = texts(column_of(frame, name), declared)
        if all(value is None for value in values):
            empty.append(name)
            continue
        kind = kinds.get(name) or _kind(values)
        wrong = _wrong(name, values, kind, is_declared=name in kinds)
        if wrong is None:
            columns.append(Column(name, kind))
        else:
            problems.append(wrong)
    return Found(tuple(columns), tuple(_about_left_out(frame, declared, empty)), tuple(problems))


def as_others(frame: pd.DataFrame, declared: Declared, kinds: Mapping[str, Kind]) -> Declared:
    """Declarations, with other clients' kinds for columns that are not declared.

    A column whose values are not of that kind keeps its own.
    """
    said = {*declared.left_out, *declared.kinds}
    found = {column.name: column.kind for column in look_at_columns(frame, declared).columns}
    others: dict[str, Kind] = {
        name: kind
        for name, kind in kinds.items()
        if name in frame.columns and name not in said and found.get(name) != kind
    }

    def fits(name: str) -> bool:
        whole = Declared.of_kinds({name: others[name]}).over(declared)
        return not look_at_columns(frame.filter(items=[name]), whole).problems

    return Declared.of_kinds({name: others[name] for name in others if fits(name)}).over(declared)


def _about_left_out(frame: pd.DataFrame, declared: Declared, empty: list[str]) -> Iterator[str]:
    ids = [name for name in declared.ids if name in frame.columns]
    if ids:
        yield f"{quoted(ids)} not used: declared as ids."
    if empty:
        yield f"{quoted(empty)} not used: all values are missing."


# ---- kinds ---------------------------------------------------------------------------------


def _kind(values: np.ndarray) -> Kind:
    """Kind of a column by its values, None where missing."""
    known = [value for value in values if value is not None]
    levels = dict.fromkeys(known)
    words = {level.casefold() for level in levels}
    if len(words) == 2 and any(words == {*pair} for pair in BOOLEANS):
        return "boolean"
    numbers = [level for level in levels if parse_number(level) is not None]
    if len(numbers) == len(levels):
        return "category" if any(map(is_code, levels)) else "number"
    # A few words or impossible days may be among them: these are reported later.
    if _are_mostly(known, levels, lambda level: parse_number(level) is not None):
        return "number"
    if _are_mostly(known, levels, looks_like_date):
        return "date"
    return "text" if _is_free_text(known, len(levels)) else "category"


def _are_mostly(known: Sequence[str], levels: Iterable[str], test: Callable[[str], bool]) -> bool:
    """Return whether most values pass a test; each level is tested once."""
    passed = {level for level in levels if test(level)}
    return sum(value in passed for value in known) >= MOSTLY * len(known)


def _is_free_text(known: Sequence[str], levels: int) -> bool:
    few = levels <= FEW_LEVELS and 2 * levels <= len(known)
    if few or levels <= FEW_LEVELS_SHARE * len(known):
        return False
    is_long = sum(map(len, known)) / len(known) > LONG_TEXT
    return is_long or 2 * sum(" " in value for value in known) > len(known)


def _wrong(name: str, values: np.ndarray, kind: Kind, *, is_declared: bool) -> str | None:
    """Problem with the values of a column of this kind, if any."""
    known = [value for value in values if value is not None]
    if sum(map(has_decimal_comma, known)) > len(known) / 2 and kind in ("number", "category"):
        if is_declared and kind == "category":
            return None
        return (
            f"column '{name}' has numbers with a decimal comma, such as '{known[0]}'; expected a "
            f'point. Export them with a point, or declare categories = ["{name}"].'
        )
    if kind in ("category", "text"):
        return None
    strange = {level for level in dict.fromkeys(known) if PARSERS[kind](level) is None}
    if not strange:
        return None
    bad = [(row, value) for row, value in enumerate(values) if value in strange]
    if kind == "date" and any(month_first(value) for _, value in bad):
        return (
            f"column '{name}' has dates with the month first, such as '{bad[0][1]}'; expected "
            "2024-03-31 or 31.03.2024 or 31/03/2024. Export them in this form, or drop the column."
        )
    return _mixed(name, bad, len(known), kind, is_declared)


def _mixed(name: str, bad: list[tuple[int, str]], known: int, kind: Kind, is_declared: bool) -> str:
    words = list(dict.fromkeys(value for _, value in bad))
    rows = "row" if len(bad) == 1 else "rows"
    at = ", ".join(str(row + 1) for row, _ in bad[:_EXAMPLES])
    listed = ", ".join(f'"{word}"' for word in words[:_EXAMPLES])
    what = f"is declared a {kind}" if is_declared else f"has mixed types: mostly {kind}s"
    is_day = kind == "date" and any(map(looks_like_date, words))
    mend = "If a day is mistyped, correct it; if" if is_day else "If"
    return (
        f"column '{name}' {what}, but {len(bad)} of {known} values {are(len(bad))} not, such as "
        f"{quoted(words[:_EXAMPLES])} (data {rows} {at}); expected one type. {mend} this means "
        f'"not measured", declare missing = {{ "{name}" = [{listed}] }}; if it is a level, '
        f'categories = ["{name}"].'
    )


# ---- rows in the form of known columns -----------------------------------------------------


@dataclass(frozen=True)
class BadValues:
    """Values of one column that are not of its kind."""

    kind: Kind
    count: int
    row: int  # of the first, from 1
    first: str


@dataclass(frozen=True)
class Oddities:
    """Oddities of some rows: in their columns, and in single values by column."""

    names: tuple[str, ...]
    bad: Mapping[str, BadValues]


def conform(
    frame: pd.DataFrame, columns: Sequence[Column], declared: Declared
) -> tuple[pd.DataFrame, Oddities]:
    """Rows of a raw frame in the form and order of `columns`, and their oddities.

    Absent columns, and values that are not of their kind, count as missing; unknown columns are
    not used.
    """
    formed_columns: dict[str, pd.Series] = {}
    found: dict[str, BadValues] = {}
    for column in columns:
        if column.name not in frame.columns:
            formed_columns[column.name] = formed([None] * len(frame), column.kind, column.name)
            continue
        values, bad = in_form(column_of(frame, column.name), column.kind, declared)
        formed_columns[column.name] = values
        if bad:
            first = str(column_of(frame, column.name).iloc[bad[0]])
            found[column.name] = BadValues(column.kind, len(bad), bad[0] + 1, first)
    index = pd.RangeIndex(len(frame))
    odd = Oddities(tuple(_about_names(frame, columns, declared)), found)
    return pd.DataFrame(formed_columns, index=index), odd


def about_bad(column: str, bad: BadValues) -> str:
    """Message about values that are not of their kind and count as missing."""
    one, several = f"is not a {bad.kind} and counts", f"are not {bad.kind}s and count"
    return (
        f"{counted(bad.count, 'value')} of column '{column}' {one if bad.count == 1 else several} "
        f"as missing; the first is '{bad.first}' in row {bad.row}."
    )


def _about_names(
    frame: pd.DataFrame, columns: Sequence[Column], declared: Declared
) -> Iterator[str]:
    wanted = [column.name for column in columns]
    absent = [name for name in wanted if name not in frame.columns]
    if absent:
        what, whose = ("column", "its") if len(absent) == 1 else ("columns", "their")
        yield f"has no {what} {quoted(absent)}; all {whose} values count as missing."
    known = {*wanted, *declared.left_out}
    extra = [name for name in frame.columns if name not in known]
    if extra:
        unused = counted(len(extra), "further column")
        yield f"has {unused} that {are(len(extra))} not used: {quoted(extra)}."
