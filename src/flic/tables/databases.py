"""Queries on SQLite and DuckDB files: read-only, and limited in time and memory."""

import re
import sqlite3
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from pathlib import Path
from threading import Event, Timer
from typing import Any
from urllib.parse import quote

import pandas as pd
import pyarrow as pa

from flic.errors import DataError
from flic.tables.arrow import first_line, refuse_repeated, to_pandas, within

SUFFIXES = (".sqlite", ".db", ".duckdb")

MAX_SECONDS = 60.0
"""Longest time that a query may take."""

MEMORY_MB = 1024
"""Memory that DuckDB may use."""

_ROW_BYTES = 2**26
"""Largest row in SQLite, including columns that are not asked for."""

_SELECT = re.compile(r"\s*(select|with)\b", re.IGNORECASE)
_READING = {
    sqlite3.SQLITE_SELECT,
    sqlite3.SQLITE_READ,
    sqlite3.SQLITE_FUNCTION,
    sqlite3.SQLITE_RECURSIVE,
}


def read_query(
    path: Path, query: str | None, *, max_bytes: int, max_seconds: float
) -> pd.DataFrame:
    """All rows that a query gives.

    Raises:
        DataError: no query, or one that fails, gives no rows, or too many or too late.
    """
    if query is None:
        raise DataError(
            f'{path}: is a database; expected a `query` beside it, such as "SELECT * FROM '
            'visits". Add one.'
        )
    if not _SELECT.match(query):
        raise _failed_query(path, f"it begins with {query.split()[:1]}")
    read = _duckdb if path.suffix.lower() == ".duckdb" else _sqlite
    frame = read(path, query, max_bytes, max_seconds)
    if not len(frame):
        raise DataError(f"{path}: the query gives no rows; expected some. Correct it.")
    return frame


def _only_reading(action: int, *about: object) -> int:
    """Refuse all writing, in this file or another: read-only mode protects only this file."""
    del about
    return sqlite3.SQLITE_OK if action in _READING else sqlite3.SQLITE_DENY


def _failed_query(path: Path, why: str) -> DataError:
    return DataError(
        f"{path}: the query failed ({why}); expected a SELECT on a table of this file. Correct it."
    )


def _too_long(path: Path, max_seconds: float) -> DataError:
    return DataError(
        f"{path}: the query takes longer than {max_seconds:g} s; expected its rows by then. Ask "
        "for less, save its rows to a file, or raise `max_query_s`."
    )


def _too_many(path: Path, max_bytes: int) -> DataError:
    return DataError(
        f"{path}: the query gives more than {max_bytes / 2**20:,.4g} MB of rows; expected fewer. "
        "Ask for fewer rows or columns, or raise `max_file_mb`."
    )


@contextmanager
def _stopped_after(seconds: float, stop: Callable[[], None]) -> Generator[Event]:
    """Call `stop` from another thread after some seconds; the event is set if it was called."""
    stopped = Event()

    def end() -> None:
        stopped.set()
        stop()

    timer = Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield stopped
    finally:
        timer.cancel()
        timer.join()  # a closed database cannot be interrupted any more


def _sqlite(path: Path, query: str, max_bytes: int, max_seconds: float) -> pd.DataFrame:
    try:
        # Read-only, whatever the query says.
        with closing(sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True)) as database:
            database.set_authorizer(_only_reading)
            database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _ROW_BYTES)
            with _stopped_after(max_seconds, database.interrupt) as stopped:
                try:
                    return _rows(path, database.execute(query), max_bytes)
                except sqlite3.OperationalError:
                    if stopped.is_set():
                        raise _too_long(path, max_seconds) from None
                    raise
    except (sqlite3.Error, UnicodeDecodeError) as error:
        raise _failed_query(path, str(error)) from None


def _rows(path: Path, cursor: sqlite3.Cursor, max_bytes: int) -> pd.DataFrame:
    if cursor.description is None:
        raise _failed_query(path, "it gives no columns")
    names = [str(column[0]) for column in cursor.description]
    refuse_repeated(path, names)
    rows: list[tuple[Any, ...]] = []
    taken = 0
    for row in cursor:
        taken += sum(len(value) if isinstance(value, str | bytes) else 8 for value in row)
        if taken > max_bytes:
            raise _too_many(path, max_bytes)
        rows.append(row)
    return pd.DataFrame(rows, columns=pd.Index(names))


def _duckdb(path: Path, query: str, max_bytes: int, max_seconds: float) -> pd.DataFrame:
    try:
        import duckdb
    except ImportError:
        raise DataError(
            f"{path}: the package duckdb is not installed; expected it for .duckdb files. Run: "
            "pip install 'flic[duckdb]'"
        ) from None
    settings: dict[str, Any] = {
        # Read-only protects only this file. A query must not read or write other files either,
        # not even when memory runs out.
        "enable_external_access": "false",
        "temp_directory": "",
        "memory_limit": f"{MEMORY_MB}MB",
        "lock_configuration": "true",
    }
    try:
        with (
            duckdb.connect(str(path), read_only=True, config=settings) as database,
            _stopped_after(max_seconds, database.interrupt) as stopped,
        ):
            try:
                relation = database.sql(query)
                if relation is None:
                    raise _failed_query(path, "it gives no columns")
                refuse_repeated(path, list(relation.columns))
                # Close this before the database: an open reader keeps the file locked.
                with pa.RecordBatchReader.from_stream(relation) as reader:
                    batches = within(reader, max_bytes, _too_many(path, max_bytes))
                    return to_pandas(pa.Table.from_batches(batches, reader.schema))
            except (duckdb.InterruptException, pa.ArrowException, OSError):
                if stopped.is_set():
                    raise _too_long(path, max_seconds) from None
                raise
    except (duckdb.Error, pa.ArrowException, OSError) as error:
        raise _failed_query(path, first_line(error)) from None
