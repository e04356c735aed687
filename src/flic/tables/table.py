"""One client's table as it was read: typed columns and labels, nothing encoded yet.

A column has a kind, and its values have the form of that kind:

  number    float64, NaN where missing
  boolean   float64 of 0 and 1, NaN where missing
  category  text, None where missing
  text      free text, None where missing
  date      datetime64[ns], NaT where missing
"""

from dataclasses import asdict, dataclass, field, replace

import numpy as np
import pandas as pd

from flic.data.task import Task
from flic.digests import digest_of, digest_of_arrays
from flic.tables.declared import KINDS as KINDS
from flic.tables.declared import Declared, Kind
from flic.tables.labels import Labelling


@dataclass(frozen=True)
class Column:
    """A feature column of one client."""

    name: str
    kind: Kind


@dataclass(frozen=True, eq=False)
class SiloTable:
    """All data of one client; none of it leaves the client."""

    name: str
    columns: tuple[Column, ...]
    frame: pd.DataFrame  # the feature columns, in order, each in the form of its kind
    y: np.ndarray  # labels as positions in the federation's labels (int64), or responses (float64)
    declared: Declared = field(default_factory=Declared)  # how its raw rows are read, now and later
    labelling: Labelling | None = None  # how its raw labels are read

    def __len__(self) -> int:
        return len(self.y)

    @property
    def shared(self) -> tuple[Column, ...]:
        """Its columns in order, under their names among all clients."""
        name = self.declared.shared_name
        return tuple(Column(name(c.name, self.name, c.kind), c.kind) for c in self.columns)

    def take(self, rows: np.ndarray) -> "SiloTable":
        """The same client with some of its rows."""
        frame = self.frame.iloc[rows].reset_index(drop=True)
        return replace(self, frame=frame, y=self.y[rows])

    @property
    def digest(self) -> str:
        """SHA-256 of its rows and labels, and of the rules for reading them."""
        read = [own and own.model_dump(mode="json") for own in (self.declared, self.labelling)]
        columns = [asdict(column) for column in self.columns]
        values = [_digest_of(column) for _, column in self.frame.items()]
        return digest_of([self.name, read, columns, values, digest_of_arrays({"y": self.y})])


def _digest_of(column: pd.Series) -> str:
    values = column.to_numpy()
    if values.dtype.kind == "M":
        values = values.view(np.int64)
    return digest_of_arrays({"": values}) if values.dtype.kind in "biuf" else digest_of([*values])


@dataclass(frozen=True)
class TableFederation:
    """The tables of all clients and the task they share."""

    task: Task
    labels: tuple[str, ...]  # names of the classes; empty for a regression
    tables: tuple[SiloTable, ...]
    notices: tuple[str, ...] = ()  # a sentence for everything dropped while reading

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the clients, in order."""
        return tuple(table.name for table in self.tables)

    @property
    def digest(self) -> str:
        """SHA-256 of all tables and of their task."""
        return digest_of([repr(self.task), self.labels, *(table.digest for table in self.tables)])
