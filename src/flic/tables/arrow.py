"""What all readers of files have in common: Arrow's batches, and names that occur once.

Part 1 of the flow, for tables.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pandas as pd
import pyarrow as pa

from flic.errors import DataError


@dataclass(frozen=True)
class Source:
    """An open file: what its columns are, and its rows in batches."""

    schema: pa.Schema
    batches: Iterator[pa.RecordBatch]


def within(
    batches: Iterable[pa.RecordBatch], most: int, error: DataError
) -> Iterator[pa.RecordBatch]:
    """The batches, as long as they take at most so many bytes; then the error."""
    taken = 0
    for batch in batches:
        taken += batch.nbytes
        if taken > most:
            raise error
        yield batch


def to_pandas(table: pa.Table) -> pd.DataFrame:
    """The same rows as a pandas frame."""
    # The names of columns count, not what pandas once noted beside them about an index; it would
    # be read all the same if it were there.
    bare = table.replace_schema_metadata()
    return bare.to_pandas(ignore_metadata=True, date_as_object=False)


def refuse_repeated(who: object, names: list[str]) -> None:
    """Refuse a name that two columns have."""
    repeated = sorted(name for name, count in Counter(names).items() if count > 1)
    if repeated:
        listed = ", ".join(f"'{name}'" for name in repeated)
        raise DataError(
            f"{who}: has more than one column of the name {listed}; expected each name once. "
            "Rename all but one."
        )


def first_line(error: Exception) -> str:
    """What an error says, in one line."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
