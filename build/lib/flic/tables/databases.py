"""Queries on SQLite and DuckDB files, which can only read.

Part 1 of the flow, for tables.
"""

import re
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pandas as pd

from flic.errors import DataError
from flic.tables.arrow import first_line, refuse_repeated, to_pandas

SUFFIXES = (".sqlite", ".db", ".duckdb")
_SELECT = re.compile(r"\s*(select|with)\b", re.IGNORECASE)
_READING = {
    sqlite3.SQLITE_SELECT,
    sqlite3.SQLITE_READ,
    sqlite3.SQLITE_FUNCTION,
    sqlite3.SQLITE_RECURSIVE,
}


def read_query(path: Path, query: str | None) -> pd.DataFrame:
    """All rows that a query gives.

    Raises:
        DataError: no query, or one that fails or gives no rows.
    """
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
            refuse_repeated(path, names)
            return pd.DataFrame(cursor.fetchall(), columns=pd.Index(names))
    except sqlite3.Error as error:
        raise _failed_query(path, str(error)) from None


def _duckdb(path: Path, query: str) -> pd.DataFrame:
    try:
        import duckdb
    except ImportError:
        raise DataError(
            f"{path}: the package duckdb is not installed; expected it for .duckdb files. Run: "
            "pip install 'flic[duckdb]'"
        ) from None
    try:
        # Read-only is for this file; nor may a query read or write others.
        settings: dict[str, Any] = {"enable_external_access": "false"}
        with duckdb.connect(str(path), read_only=True, config=settings) as database:
            relation = database.sql(query)
            if relation is None:
                raise _failed_query(path, "it gives no columns")
            refuse_repeated(path, list(relation.columns))
            return to_pandas(relation.to_arrow_table())
    except duckdb.Error as error:
        raise _failed_query(path, first_line(error)) from None
