"""Files as data frames: CSV, TSV, Parquet, Feather, and queries on SQLite and DuckDB files.

A file that cannot be read gives a `DataError` that names it.
"""

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from flic.errors import DataError
from flic.files import BoundedFile
from flic.tables import databases
from flic.tables.arrow import Source, first_line, refuse_repeated, to_pandas, within
from flic.tables.delimited import open_delimited

MAX_BYTES = 2**30
"""Size of the largest file that is read as a whole."""

UNPACKED = 8
"""Most memory for the rows of a file, as a multiple of its size; text takes at most five times."""


def _open_parquet(path: Path, file: BoundedFile, encoding: str) -> Source:
    del path, encoding
    parquet = pq.ParquetFile(file)
    return Source(parquet.schema_arrow, map(_validated, parquet.iter_batches()))


def _open_feather(path: Path, file: BoundedFile, encoding: str) -> Source:
    del path, encoding
    feather = pa.ipc.open_file(file)
    batches = map(feather.get_batch, range(feather.num_record_batches))
    return Source(feather.schema, map(_validated, batches))


def _validated(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch, after a check of lengths, offsets and texts: Arrow takes them from the file."""
    batch.validate(full=True)
    return batch


OPENERS: dict[str, Callable[[Path, BoundedFile, str], Source]] = {
    ".csv": open_delimited,
    ".tsv": open_delimited,
    ".parquet": _open_parquet,
    ".feather": _open_feather,
    ".arrow": _open_feather,
}
"""Suffix → function that opens such a file."""

FORMATS = (*OPENERS, *databases.SUFFIXES)


def read_table(
    path: Path,
    *,
    query: str | None = None,
    encoding: str = "utf-8",
    max_bytes: int = MAX_BYTES,
    max_seconds: float = databases.MAX_SECONDS,
) -> pd.DataFrame:
    """All rows of a file, or of a query on a database file.

    `max_bytes` limits the file, or the rows of a query; `max_seconds` limits the query's time.

    Raises:
        DataError: the file cannot be read; one sentence that says why and what to do.
    """
    _refuse_no_file(path)
    suffix = path.suffix.lower()
    if suffix in databases.SUFFIXES:
        return databases.read_query(path, query, max_bytes=max_bytes, max_seconds=max_seconds)
    if query is not None:
        raise DataError(
            f"{path}: got a query; expected one only for {', '.join(databases.SUFFIXES)} files. "
            "Leave out `query`."
        )
    _refuse_large(path, max_bytes)
    with _opened(path, encoding, max_bytes) as source:
        batches = within(source.batches, UNPACKED * max_bytes, _too_large(path, max_bytes))
        return to_pandas(pa.Table.from_batches(batches, source.schema))


def stream_table(path: Path, *, chunk_rows: int, encoding: str = "utf-8") -> Iterator[pd.DataFrame]:
    """Rows of a file in order, at most `chunk_rows` at a time, in bounded memory."""
    _refuse_no_file(path)
    if path.suffix.lower() in databases.SUFFIXES:
        raise DataError(
            f"{path}: a database cannot be read in pieces; expected a CSV, TSV, Parquet or "
            "Feather file. Export the rows to one."
        )
    with _opened(path, encoding) as source:
        waiting = source.schema.empty_table()
        for batch in source.batches:
            waiting = pa.concat_tables([waiting, pa.Table.from_batches([batch])])
            while len(waiting) >= chunk_rows:
                yield to_pandas(waiting.slice(0, chunk_rows))
                waiting = waiting.slice(chunk_rows)
        if len(waiting):
            yield to_pandas(waiting)


def as_pandas(frame: Any) -> pd.DataFrame:
    """A pandas or polars frame as a pandas frame with one name per column."""
    if not isinstance(frame, pd.DataFrame):
        if not hasattr(frame, "to_arrow"):
            raise DataError(
                f"got a {type(frame).__name__}; expected a pandas or polars data frame. Convert it."
            )
        return to_pandas(frame.to_arrow())
    refuse_repeated("the frame", [str(name) for name in frame.columns])
    return frame.set_axis([str(name) for name in frame.columns], axis=1).reset_index(drop=True)


# ---- refusals ------------------------------------------------------------------------------


def _refuse_no_file(path: Path) -> None:
    if os.path.isdir(path):  # unlike Path.is_dir, accepts names that are too long for any disk
        raise DataError(f"{path}: is a folder; expected a file. Name one of the files in it.")
    if not os.path.exists(path):
        raise DataError(f"{path}: no such file. Correct the path, or put the file there.")
    if not path.is_file():
        raise DataError(
            f"{path}: is a pipe or a device, which may have no end; expected an ordinary file. "
            "Save the rows to one."
        )
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


def _too_large(path: Path, max_bytes: int) -> DataError:
    return DataError(
        f"{path}: takes more than {_megabytes(max_bytes)} MB, or {UNPACKED} times that once it is "
        "unpacked; expected less. Take a sample of its rows, leave out columns, or raise "
        "`max_file_mb`."
    )


def _megabytes(size: int) -> str:
    megabytes = size / 2**20
    return f"{megabytes:,.0f}" if megabytes >= 10 else f"{megabytes:.2g}"


# ---- files that Arrow reads ----------------------------------------------------------------


@contextmanager
def _opened(path: Path, encoding: str, max_bytes: int | None = None) -> Iterator[Source]:
    """Schema and batches of a file; errors while reading become sentences."""
    try:
        with BoundedFile(path, most=max_bytes) as file:
            source = OPENERS[path.suffix.lower()](path, file, encoding)
            refuse_repeated(path, source.schema.names)
            _refuse_nested(path, source.schema)
            yield Source(source.schema, _not_empty(path, source.batches))
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        if max_bytes is not None and getattr(error, "errno", None) == errno.EFBIG:
            raise _too_large(path, max_bytes) from None
        raise DataError(
            f"{path}: cannot be read ({first_line(error)}); expected a sound "
            f"{path.suffix.lower()} file. Export it anew."
        ) from None


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
