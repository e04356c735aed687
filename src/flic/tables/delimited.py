"""Text files whose values are separated by a comma, semicolon, tab or bar.

Values stay text: only `columns` decides on their kinds.
"""

import codecs
import csv
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pc

from flic.errors import DataError
from flic.tables.arrow import Source, refuse_repeated

_DELIMITERS = (",", ";", "\t", "|")
_OTHER_DELIMITERS = (":", "^", "~", " ")  # recognised for the error message, not read
_HEAD_ROWS = 50
_BLOCK_BYTES = 2**22


def open_delimited(path: Path, file: Any, encoding: str) -> Source:
    """Schema and batches of an open text file."""
    encoding = _codec(path, encoding)
    head = _head(path, encoding)
    names = [name.strip() or f"unnamed {i}" for i, name in enumerate(head.heading, start=1)]
    refuse_repeated(path, names)
    schema = pa.schema([(name, pa.string()) for name in names])
    return Source(schema, _text_batches(path, file, encoding, names, head))


def _codec(path: Path, encoding: str) -> str:
    """Standard name of an encoding."""
    try:
        "".encode(encoding)  # refuses codecs from bytes to bytes, such as base64
        return codecs.lookup(encoding).name
    except (LookupError, ValueError):
        raise DataError(
            f"{path}: got encoding {encoding[:40]!r}, which is not a text encoding; expected a "
            "name such as 'utf-8', 'latin-1', 'cp1252' or 'utf-16'. Correct it."
        ) from None


@dataclass(frozen=True)
class _Head:
    """Layout of a text file, found from its first lines."""

    heading: list[str]
    delimiter: str
    blank_lines: int  # before the heading
    is_all: bool  # whether nothing follows the heading


def _head(path: Path, encoding: str) -> _Head:
    opened = "utf-8-sig" if encoding == "utf-8" else encoding  # it may have a byte-order mark
    try:
        with path.open(encoding=opened, newline="") as file:
            lines = iter(lambda: file.readline(_BLOCK_BYTES), "")
            first = list(islice(lines, _HEAD_ROWS))
    except UnicodeError:
        raise _not_encoded(path, encoding) from None
    if any(len(line) == _BLOCK_BYTES for line in first):
        raise _long_row(path)
    lines = [line for line in first if line.strip()]
    if not lines:
        raise DataError(f"{path}: is empty; expected a heading and rows. Export it anew.")
    columns = {mark: _columns(lines, mark) for mark in (*_DELIMITERS, *_OTHER_DELIMITERS)}
    delimiter = max(_DELIMITERS, key=lambda mark: columns[mark])
    if columns[delimiter][1] < 2:
        _refuse_other_delimiter(path, columns)
    heading = _fields(lines, delimiter)[0]
    return _Head(heading, delimiter, first.index(lines[0]), len(lines) == 1)


def _fields(lines: list[str], delimiter: str) -> list[list[str]]:
    usual = csv.field_size_limit(sys.maxsize)  # a cell may hold a long letter
    try:
        return [row for row in csv.reader(lines, delimiter=delimiter) if row]
    finally:
        csv.field_size_limit(usual)


def _columns(lines: list[str], delimiter: str) -> tuple[float, int]:
    """Share of rows with as many fields as the heading, and that number; larger is better.

    One column ranks last, since any text splits into one field per row.
    """
    try:
        counts = [len(row) for row in _fields(lines, delimiter)]
    except csv.Error:
        return 0.0, 1
    if counts[0] == 1:
        return 0.0, 1
    return sum(count == counts[0] for count in counts) / len(counts), counts[0]


def _refuse_other_delimiter(path: Path, columns: dict[str, tuple[float, int]]) -> None:
    other = max(_OTHER_DELIMITERS, key=lambda mark: columns[mark])
    share, count = columns[other]
    if share == 1.0 and count > 1:
        raise DataError(
            f"{path}: has one column, and {count} if '{other}' separates them; expected columns "
            "separated by a comma, semicolon, tab or |. Export it with one of these."
        )


def _text_batches(
    path: Path, file: Any, encoding: str, names: list[str], head: _Head
) -> Iterator[pa.RecordBatch]:
    ragged: list[Any] = []

    def note(row: Any) -> str:
        ragged.append(row)
        return "error"

    last: pa.RecordBatch | None = None
    try:
        reader = pc.open_csv(
            file,
            # One thread, so that a bad row has its line number.
            read_options=pc.ReadOptions(
                use_threads=False,
                block_size=_BLOCK_BYTES,
                skip_rows=head.blank_lines,
                column_names=names,
                skip_rows_after_names=1,
                encoding="utf8" if encoding == "utf-8" else encoding,
            ),
            parse_options=pc.ParseOptions(
                delimiter=head.delimiter,
                newlines_in_values=True,
                invalid_row_handler=note,
                # In a single column, an empty line is a missing value.
                ignore_empty_lines=len(names) > 1,
            ),
            convert_options=pc.ConvertOptions(
                column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=False
            ),
        )
        # Close it at once, also after an error: its thread would outlive the interpreter.
        with reader:
            for batch in reader:
                last = batch if len(batch) else last
                yield batch
    except UnicodeError:
        raise _not_encoded(path, encoding) from None
    except pa.ArrowInvalid as error:
        if ragged:
            raise _ragged(path, ragged[0]) from None
        if "UTF8" in str(error):
            raise _not_encoded(path, encoding) from None
        if "straddling" not in str(error):  # Arrow's word for a row without an end
            raise
        if not head.is_all:
            raise _long_row(path) from None
    if last is not None:
        _refuse_open_quote(path, last)


def _long_row(path: Path) -> DataError:
    return DataError(
        f"{path}: has a row of more than {_BLOCK_BYTES // 2**20} MB; expected shorter ones. Leave "
        "out the column that takes so much, or correct the ends of lines."
    )


def _ragged(path: Path, row: Any) -> DataError:
    return DataError(
        f"{path}: line {row.number} has {row.actual_columns} fields; expected "
        f"{row.expected_columns}, as in the heading. Correct this line, or put values that hold "
        "the delimiter into quotes."
    )


def _refuse_open_quote(path: Path, last: pa.RecordBatch) -> None:
    """Refuse a quote that is never closed: it takes in all later lines without an error."""
    ends = last.slice(len(last) - 1).to_pylist()[0].values()
    if not any("\n" in value for value in ends):
        return
    with path.open("rb") as file:
        quotes = sum(block.count(b'"') for block in iter(lambda: file.read(_BLOCK_BYTES), b""))
    if quotes % 2:
        raise DataError(
            f'{path}: its last row runs over several lines, since a quote (") is opened and never '
            "closed; expected quotes in pairs. Close it."
        )


def _not_encoded(path: Path, encoding: str) -> DataError:
    """Error for text that is not in its declared encoding, with the first bad line."""
    with path.open("rb") as file:
        start = file.read(2)
    if start in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        return DataError(
            f'{path}: is UTF-16; expected {encoding}. Write `encoding = "utf-16"` beside its '
            "`data`, or save it as UTF-8."
        )
    line = _bad_line(path, encoding)
    where = "" if line is None else f" in line {line}"
    return DataError(
        f"{path}: has bytes{where} that are not {encoding}; expected text in that encoding. Write "
        'for instance `encoding = "cp1252"` beside its `data`, or save it as UTF-8.'
    )


def _bad_line(path: Path, encoding: str) -> int | None:
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                line.decode(encoding)
            except UnicodeError:
                return number
    return None
