"""Common parts of all file readers: Arrow batches, and the check that column names are unique."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pandas as pd
import pyarrow as pa

from flic.errors import DataError


@dataclass(frozen=True)
class Source:
    """An open file: its schema, and its rows in batches."""

    schema: pa.Schema
    batches: Iterator[pa.RecordBatch]


def within(
    batches: Iterable[pa.RecordBatch], most: int, error: DataError
) -> Iterator[pa.RecordBatch]:
    """Yield batches until they take more than `most` bytes, then raise the error."""
    taken = 0
    for batch in batches:
        taken += batch.nbytes
        if taken > most:
            raise error
        yield batch


def to_pandas(table: pa.Table) -> pd.DataFrame:
    """The same rows as a pandas frame."""
    # Only the columns count. pandas stores notes about an index in the metadata, and would use
    # them even with `ignore_metadata` if they were still there.
    bare = table.replace_schema_metadata()
    return bare.to_pandas(ignore_metadata=True, date_as_object=False)


def refuse_repeated(who: object, names: list[str]) -> None:
    """Refuse a column name that occurs twice."""
    repeated = sorted(name for name, count in Counter(names).items() if count > 1)
    if repeated:
        listed = ", ".join(f"'{name}'" for name in repeated)
        raise DataError(
            f"{who}: has more than one column of the name {listed}; expected each name once. "
            "Rename all but one."
        )


def first_line(error: Exception) -> str:
    """The message of an error, in one line."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
