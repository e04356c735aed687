"""Raw values of one column from any source, in the form of a kind.

Only this module decides what is missing, a number or a date. It judges every value by itself, so
a row reads the same at fitting and at prediction.
"""

import re
from collections.abc import Callable, Iterable
from typing import Any, cast

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pandas.api.types import is_bool_dtype, is_numeric_dtype, is_string_dtype

from flic.errors import DataError
from flic.tables.declared import EVERY_COLUMN, Declared, Kind

BOOLEANS = (("true", "false"), ("yes", "no"), ("t", "f"))
_BOOLS = {"true", "false"}
_TRUE = {"1", *(yes for yes, _ in BOOLEANS)}
_FALSE = {"0", *(no for _, no in BOOLEANS)}

LARGEST = 1e30
"""Largest number that is accepted: beyond it is a mistake, and its square overflows."""

_WHOLE = re.compile(r"([+-]?\d+)\.0+")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_PLAIN_NUMBER = pc.MatchSubstringOptions(  # excludes codes such as 007
    r"^[+-]?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?$"
)
_DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+")
_CODE = re.compile(r"[+-]?0\d+")
_DAY_FIRST = re.compile(r"(\d{1,2})[./](\d{1,2})[./](\d{4})")
_COMPACT = re.compile(r"(\d{4})(\d{2})(\d{2})")
_CLOCK = r"\d{1,2}:\d{2}(:\d{2}([.,]\d+)?)?\s*(Z|UTC|[+-]\d{2}:?\d{2})?"
_WRITTEN_DATE = re.compile(
    rf"\d{{4}}-\d{{1,2}}-\d{{1,2}}([T ]{_CLOCK})?|\d{{4}}/\d{{1,2}}/\d{{1,2}}"
)
_ISO = re.compile(r"\d{4}-\d{1,2}-\d{1,2}([T ]\d{1,2}:\d{2}.*)?|\d{4}/\d{1,2}/\d{1,2}")


def text_of(value: object) -> str:
    """A raw value as text, the same for 1, 1.0 and "1.0", and for true and "TRUE"."""
    if isinstance(value, float | np.floating) and float(value).is_integer():
        return str(int(value))
    text = str(value).strip()
    # A table has millions of values, and most need no closer look.
    if text.endswith("0") and (whole := _WHOLE.fullmatch(text)):
        return whole.group(1)
    return text.capitalize() if text[:1] in "tTfF" and text.casefold() in _BOOLS else text


def column_of(frame: pd.DataFrame, name: str) -> pd.Series:
    """Column of a frame whose names are distinct."""
    return cast(pd.Series, frame[name])


def texts(raw: pd.Series, declared: Declared) -> np.ndarray:
    """Values as text (objects), None where they are missing."""
    missing = _missing_test(str(raw.name), declared)

    def read(value: object) -> str | None:
        text = text_of(value)
        return None if missing(text) else text

    return _each(raw, read)


def _missing_test(column: str, declared: Declared) -> Callable[[str], bool]:
    markers = {marker.casefold() for marker in declared.missing_markers}
    own = [*declared.missing.get(EVERY_COLUMN, ()), *declared.missing.get(column, ())]
    texts = {text_of(value) for value in own}
    numbers = {number for number in map(parse_number, texts) if number is not None}

    def test(text: str) -> bool:
        if text in texts or text.casefold() in markers:
            return True
        return bool(numbers) and parse_number(text) in numbers

    return test


def _each(raw: pd.Series, read: Callable[[Any], Any]) -> np.ndarray:
    """Apply `read` to every value, once per distinct one; None for nulls."""
    try:
        codes, distinct = pd.factorize(raw)
    except TypeError:
        raise DataError(
            f"column '{raw.name}' holds lists or other values of several parts; expected one value "
            "in each cell. Spread them over columns of their own, or drop the column."
        ) from None
    read_once = np.empty(len(distinct) + 1, dtype=object)
    read_once[:-1] = [read(value) for value in distinct]
    return read_once[codes]  # nulls have code -1, the last place, which stays None


def parse_number(text: str) -> float | None:
    """Number of reasonable size, or None."""
    if not _NUMBER.fullmatch(text):
        return None
    value = float(text)
    return value if abs(value) <= LARGEST else None


def parse_boolean(text: str) -> float | None:
    """1.0, 0.0 or None."""
    word = text.casefold()
    return 1.0 if word in _TRUE else 0.0 if word in _FALSE else None


def parse_date(text: str) -> pd.Timestamp | None:
    """A date, with or without time: ISO 8601, or day.month.year, or day/month/year."""
    day_first = _DAY_FIRST.fullmatch(text)
    compact = _COMPACT.fullmatch(text)
    if day_first:
        text = "-".join(part.zfill(2) for part in reversed(day_first.groups()))
    elif compact:
        text = "-".join(compact.groups())
    elif not _ISO.fullmatch(text):
        return None
    try:
        # Dates are kept in nanoseconds, which do not reach the years 1 and 9999.
        stamp = cast(pd.Timestamp, pd.Timestamp(text)).as_unit("ns")
    except ValueError:
        return None
    # Times of day are only compared within a client, so one time zone is enough.
    return stamp if stamp.tzinfo is None else stamp.tz_convert("UTC").tz_localize(None)


def parse_text(text: str) -> str | None:
    """The text itself."""
    return text


PARSERS: dict[Kind, Callable[[str], Any]] = {
    "number": parse_number,
    "boolean": parse_boolean,
    "date": parse_date,
    "category": parse_text,
    "text": parse_text,
}


def in_form(raw: pd.Series, kind: Kind, declared: Declared) -> tuple[pd.Series, list[int]]:
    """The column in the form of its kind, and the rows whose values cannot be parsed."""
    raw = raw.reset_index(drop=True)
    if kind == "number":
        return _numbers(raw, declared)
    parsed, bad = _parsed(raw, kind, declared)
    return formed(parsed, kind, str(raw.name)), bad


def _parsed(raw: pd.Series, kind: Kind, declared: Declared) -> tuple[np.ndarray, list[int]]:
    known = texts(raw, declared)
    parsed = _each(pd.Series(known, dtype=object), PARSERS[kind])
    bad = np.flatnonzero([k is not None and p is None for k, p in zip(known, parsed, strict=True)])
    return parsed, bad.tolist()


def _numbers(raw: pd.Series, declared: Declared) -> tuple[pd.Series, list[int]]:
    """Parse numbers all at once, since a table has millions; one by one only where that fails."""
    is_plain = is_string_dtype(raw) or (is_numeric_dtype(raw) and not is_bool_dtype(raw))
    at_once: Any = pd.to_numeric(raw, errors="coerce") if is_plain else pd.Series(np.nan, raw.index)
    values = at_once.to_numpy(dtype="float64", na_value=np.nan).copy()
    doubtful = np.flatnonzero(
        ~(np.abs(values) <= LARGEST) | np.isin(values, _missing_numbers(raw, declared))
    )
    if not len(doubtful):
        return pd.Series(values, name=raw.name), []
    parsed, bad = _parsed(raw.iloc[doubtful], "number", declared)
    values[doubtful] = [np.nan if value is None else value for value in parsed]
    return pd.Series(values, name=raw.name), doubtful[bad].tolist()


def are_plain_numbers(raw: pd.Series, declared: Declared) -> bool:
    """Return whether all values are plainly numbers; if not, each must be looked at.

    Most columns of large tables are numbers without gaps, and take almost no time this way.
    """
    if is_numeric_dtype(raw) and not is_bool_dtype(raw):
        values = raw.to_numpy(dtype="float64", na_value=np.nan)
    elif is_string_dtype(raw):
        try:
            written = pc.call_function("utf8_trim_whitespace", [pa.array(raw, pa.string())])
            plain = pc.call_function("match_substring_regex", [written], _PLAIN_NUMBER)
            if plain.true_count < len(plain):
                return False
            values = written.cast(pa.float64()).to_numpy(zero_copy_only=False)
        except pa.ArrowException:  # objects of other types, or a number that Arrow cannot read
            return False
    else:
        return False
    known = (np.abs(values) <= LARGEST) & ~np.isin(values, _missing_numbers(raw, declared))
    return len(values) > 0 and bool(known.all())


def _missing_numbers(raw: pd.Series, declared: Declared) -> list[float]:
    named = [*declared.missing.get(EVERY_COLUMN, ()), *declared.missing.get(str(raw.name), ())]
    numbers = [parse_number(text_of(value)) for value in (*named, *declared.missing_markers)]
    return [number for number in numbers if number is not None]


def formed(parsed: Iterable[Any], kind: Kind, name: str) -> pd.Series:
    """Parsed values as a column of the kind's type."""
    if kind in ("number", "boolean"):
        return pd.Series([np.nan if v is None else v for v in parsed], dtype="float64", name=name)
    if kind == "date":
        return pd.Series(
            [pd.NaT if v is None else v for v in parsed], dtype="datetime64[ns]", name=name
        )
    return pd.Series(list(parsed), dtype=object, name=name)


def has_decimal_comma(text: str) -> bool:
    """Return whether it is a number with a decimal comma."""
    return "," in text and _DECIMAL_COMMA.fullmatch(text) is not None


def is_code(text: str) -> bool:
    """Return whether it is written in digits but is not a number, such as 007."""
    return _CODE.fullmatch(text) is not None


def month_first(text: str) -> bool:
    """Return whether it is a date only if its month comes first."""
    parts = _DAY_FIRST.fullmatch(text)
    return parts is not None and int(parts.group(2)) > 12 >= int(parts.group(1))


def looks_like_date(text: str) -> bool:
    """Return whether it is written as a date, even of a day that does not exist.

    Eight digits do not count, since they may be a number.
    """
    if _WRITTEN_DATE.fullmatch(text) or _DAY_FIRST.fullmatch(text):
        return True
    return _COMPACT.fullmatch(text) is None and parse_date(text) is not None
