"""Files as data frames: CSV, TSV, Parquet, Feather, and queries on SQLite and DuckDB files.

Part 1 of the flow, for tables. Values of a CSV or TSV file stay text: what they are is judged once,
by `columns`. Whatever cannot be read is a `DataError` that names the file.
"""

import codecs
import csv
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pandas as pd
import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq

from flic.errors import DataError

MAX_BYTES = 2**30
"""Largest file that is read as a whole."""

_DELIMITERS = (",", ";", "\t", "|")
_OTHER_DELIMITERS = (":", "^", "~", " ")  # recognised to be told, not read
_HEAD_ROWS = 50
_BLOCK_BYTES = 2**22

_TEXT = (".csv", ".tsv")
_DATABASES = (".sqlite", ".db", ".duckdb")
FORMATS = (*_TEXT, ".parquet", ".feather", ".arrow", *_DATABASES)


def read_table(
    path: Path, *, query: str | None = None, encoding: str = "utf-8", max_bytes: int = MAX_BYTES
) -> pd.DataFrame:
    """All rows of a file, or of a query on a database file.

    Raises:
        DataError: the file cannot be read; one sentence that says why and what to do.
    """
    _refuse_no_file(path)
    suffix = path.suffix.lower()
    if suffix in _DATABASES:
        return _read_query(path, query)
    if query is not None:
        raise DataError(
            f"{path}: got a query; expected one only for {', '.join(_DATABASES)} files. Leave out "
            "`query`."
        )
    _refuse_large(path, max_bytes)
    with _opened(path, encoding) as source:
        return _to_pandas(pa.Table.from_batches(source.batches, source.schema))


def stream_table(path: Path, *, chunk_rows: int, encoding: str = "utf-8") -> Iterator[pd.DataFrame]:
    """Rows of a file in order, at most `chunk_rows` at a time, in bounded memory."""
    _refuse_no_file(path)
    if path.suffix.lower() in _DATABASES:
        raise DataError(
            f"{path}: a database cannot be read in pieces; expected a CSV, TSV, Parquet or "
            "Feather file. Export the rows to one."
        )
    with _opened(path, encoding) as source:
        waiting = source.schema.empty_table()
        for batch in source.batches:
            waiting = pa.concat_tables([waiting, pa.Table.from_batches([batch])])
            while len(waiting) >= chunk_rows:
                yield _to_pandas(waiting.slice(0, chunk_rows))
                waiting = waiting.slice(chunk_rows)
        if len(waiting):
            yield _to_pandas(waiting)


def as_pandas(frame: Any) -> pd.DataFrame:
    """A pandas or polars frame as a pandas frame with one name per column."""
    if not isinstance(frame, pd.DataFrame):
        if not hasattr(frame, "to_arrow"):
            raise DataError(
                f"got a {type(frame).__name__}; expected a pandas or polars data frame. Convert it."
            )
        return _to_pandas(frame.to_arrow())
    _refuse_repeated("the frame", [str(name) for name in frame.columns])
    return frame.set_axis([str(name) for name in frame.columns], axis=1).reset_index(drop=True)


# ---- refusals ------------------------------------------------------------------------------


def _refuse_no_file(path: Path) -> None:
    if path.is_dir():
        raise DataError(f"{path}: is a folder; expected a file. Name one of the files in it.")
    if not path.exists():
        raise DataError(f"{path}: no such file. Correct the path, or put the file there.")
    if path.suffix.lower() not in FORMATS:
        raise DataError(
            f"{path}: got a file that ends in '{path.suffix}'; expected one of "
            f"{', '.join(FORMATS)}. Export the table to one of these."
        )


def _refuse_large(path: Path, max_bytes: int) -> None:
    size = path.stat().st_size
    if size > max_bytes:
        raise DataError(
            f"{path}: has {_megabytes(size)} MB; expected at most {_megabytes(max_bytes)}. Take a "
            "sample of its rows, leave out columns, or raise `max_file_mb`."
        )


def _megabytes(size: int) -> str:
    megabytes = size / 2**20
    return f"{megabytes:,.0f}" if megabytes >= 10 else f"{megabytes:.2g}"


def _refuse_repeated(who: object, names: list[str]) -> None:
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        listed = ", ".join(f"'{name}'" for name in repeated)
        raise DataError(
            f"{who}: has more than one column of the name {listed}; expected each name once. "
            "Rename all but one."
        )


# ---- files that Arrow reads ----------------------------------------------------------------


@dataclass(frozen=True)
class _Source:
    schema: pa.Schema
    batches: Iterator[pa.RecordBatch]


@contextmanager
def _opened(path: Path, encoding: str) -> Iterator[_Source]:
    """Schema and batches of a file; errors while they are read become sentences."""
    try:
        with path.open("rb") as file:
            if path.suffix.lower() in _TEXT:
                source = _open_text(path, file, encoding)
            elif path.suffix.lower() == ".parquet":
                parquet = pq.ParquetFile(file)
                source = _Source(parquet.schema_arrow, parquet.iter_batches())
            else:
                feather = pa.ipc.open_file(file)
                count = range(feather.num_record_batches)
                source = _Source(feather.schema, (feather.get_batch(i) for i in count))
            _refuse_repeated(path, source.schema.names)
            _refuse_nested(path, source.schema)
            yield _Source(source.schema, _not_empty(path, source.batches))
    except (pa.ArrowException, OSError) as error:
        raise DataError(
            f"{path}: cannot be read ({_first_line(error)}); expected a sound "
            f"{path.suffix.lower()} file. Export it anew."
        ) from None


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _not_empty(path: Path, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    rows = 0
    for batch in batches:
        rows += len(batch)
        yield batch
    if not rows:
        raise DataError(f"{path}: has a heading and no rows; expected some. Export it anew.")


def _refuse_nested(path: Path, schema: pa.Schema) -> None:
    nested = [field.name for field in schema if pa.types.is_nested(field.type)]
    if nested:
        listed = ", ".join(f"'{name}'" for name in nested)
        raise DataError(
            f"{path}: has lists or records in {listed}; expected one value per cell. Split or "
            "leave out these columns when you export the table."
        )


def _to_pandas(table: pa.Table) -> pd.DataFrame:
    # The names of columns count, not what pandas once noted beside them about an index.
    return table.to_pandas(ignore_metadata=True, date_as_object=False)


# ---- text files ----------------------------------------------------------------------------


def _open_text(path: Path, file: Any, encoding: str) -> _Source:
    encoding = _codec(path, encoding)
    rows, delimiter = _head(path, encoding)
    names = [name.strip() or f"unnamed {i}" for i, name in enumerate(rows[0], start=1)]
    _refuse_repeated(path, names)
    schema = pa.schema([(name, pa.string()) for name in names])
    return _Source(schema, _text_batches(path, file, encoding, names, delimiter))


def _codec(path: Path, encoding: str) -> str:
    """The encoding by its own name; plain UTF-8 may begin with a byte-order mark."""
    try:
        return codecs.lookup(encoding).name
    except LookupError:
        raise DataError(
            f"{path}: got encoding '{encoding}', which is unknown; expected a name such as "
            "'utf-8', 'latin-1', 'cp1252' or 'utf-16'."
        ) from None


def _head(path: Path, encoding: str) -> tuple[list[list[str]], str]:
    """First rows of a text file, and what separates its columns."""
    opened = "utf-8-sig" if encoding == "utf-8" else encoding
    try:
        with path.open(encoding=opened, newline="") as file:
            lines = [line for line in islice(file, _HEAD_ROWS) if line.strip()]
    except UnicodeError:
        raise _not_encoded(path, encoding) from None
    if not lines:
        raise DataError(f"{path}: is empty; expected a heading and rows. Export it anew.")
    columns = {mark: _columns(lines, mark) for mark in (*_DELIMITERS, *_OTHER_DELIMITERS)}
    delimiter = max(_DELIMITERS, key=lambda mark: columns[mark])
    if columns[delimiter][1] < 2:
        _refuse_other_delimiter(path, columns)
    return list(csv.reader(lines, delimiter=delimiter)), delimiter


def _columns(lines: list[str], delimiter: str) -> tuple[float, int]:
    """Share of rows that have as many fields as the heading, and that number; the more the better.

    One column comes last: any text splits into one field per row.
    """
    try:
        counts = [len(row) for row in csv.reader(lines, delimiter=delimiter) if row]
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
    path: Path, file: Any, encoding: str, names: list[str], delimiter: str
) -> Iterator[pa.RecordBatch]:
    ragged: list[Any] = []

    def note(row: Any) -> str:
        ragged.append(row)
        return "error"

    last: pa.RecordBatch | None = None
    try:
        reader = pc.open_csv(
            file,
            # One thread, so that a bad row is known by its number.
            read_options=pc.ReadOptions(
                use_threads=False,
                block_size=_BLOCK_BYTES,
                column_names=names,
                skip_rows_after_names=1,
                encoding="utf8" if encoding == "utf-8" else encoding,
            ),
            parse_options=pc.ParseOptions(
                delimiter=delimiter,
                newlines_in_values=True,
                invalid_row_handler=note,
                # In a single column, an empty line is a missing value.
                ignore_empty_lines=len(names) > 1,
            ),
            convert_options=pc.ConvertOptions(
                column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=False
            ),
        )
        # Closed at once, also after an error: its thread would outlive the interpreter.
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
        if "straddling" in str(error):  # Arrow's words for a heading without an end of line
            return
        raise
    if last is not None:
        _refuse_open_quote(path, last)


def _ragged(path: Path, row: Any) -> DataError:
    return DataError(
        f"{path}: line {row.number} has {row.actual_columns} fields; expected "
        f"{row.expected_columns}, as in the heading. Correct this line, or put values that hold "
        "the delimiter into quotes."
    )


def _refuse_open_quote(path: Path, last: pa.RecordBatch) -> None:
    """Refuse a quote that is never closed: it swallows all lines after it without an error."""
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
    """Where the text is not what its encoding says."""
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


# ---- databases -----------------------------------------------------------------------------


def _read_query(path: Path, query: str | None) -> pd.DataFrame:
    if query is None:
        raise DataError(
            f'{path}: is a database; expected a `query` beside it, such as "SELECT * FROM '
            'visits". Add one.'
        )
    if not _SELECT.match(query):
        raise _failed_query(path, f"it begins with {query.split()[:1]}")
    frame = _duckdb(path, query) if path.suffix.lower() == ".duckdb" else _sqlite(path, query)
    if not len(frame):
        raise DataError(f"{path}: the query gives no rows; expected some. Correct it.")
    return frame


_SELECT = re.compile(r"\s*(select|with)\b", re.IGNORECASE)
_READING = {
    sqlite3.SQLITE_SELECT,
    sqlite3.SQLITE_READ,
    sqlite3.SQLITE_FUNCTION,
    sqlite3.SQLITE_RECURSIVE,
}


def _only_reading(action: int, *about: object) -> int:
    """Refuse whatever writes, in this file or another: read-only mode stops the first alone."""
    del about
    return sqlite3.SQLITE_OK if action in _READING else sqlite3.SQLITE_DENY


def _failed_query(path: Path, why: str) -> DataError:
    return DataError(
        f"{path}: the query failed ({why}); expected a SELECT on a table of this file. Correct it."
    )


def _sqlite(path: Path, query: str) -> pd.DataFrame:
    try:
        # Read-only, whatever the query says.
        with closing(sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True)) as database:
            database.set_authorizer(_only_reading)
            cursor = database.execute(query)
            if cursor.description is None:
                raise _failed_query(path, "it gives no columns")
            names = [str(column[0]) for column in cursor.description]
            _refuse_repeated(path, names)
            return pd.DataFrame(cursor.fetchall(), columns=pd.Index(names))
    except sqlite3.Error as error:
        raise _failed_query(path, str(error)) from None


def _duckdb(path: Path, query: str) -> pd.DataFrame:
    try:
        import duckdb
    except ImportError:
        raise DataError(
            f"{path}: the package duckdb is not installed; expected it for .duckdb files. Run: "
            "pip install duckdb"
        ) from None
    try:
        # Read-only is for this file; nor may a query read or write others.
        settings: dict[str, Any] = {"enable_external_access": "false"}
        with duckdb.connect(str(path), read_only=True, config=settings) as database:
            relation = database.sql(query)
            if relation is None:
                raise _failed_query(path, "it gives no columns")
            _refuse_repeated(path, list(relation.columns))
            return _to_pandas(relation.to_arrow_table())
    except duckdb.Error as error:
        raise _failed_query(path, _first_line(error)) from None
