"""Results of all splits as one tidy table, from which verdict, report and files are made."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from io import BytesIO

import numpy as np
import pandas as pd

Means = dict[str, dict[str, dict[str, float]]]
"""candidate → client → metric → mean over the splits."""

KINDS = ("alone", "federated", "kept")
"""Choices that a client makes on every split."""

_TYPES = {
    "split": "int64",
    "candidate": "object",
    "client": "object",
    "metric": "object",
    "value": "float64",
    "test_share": "float64",
    **dict.fromkeys(KINDS, "bool"),
}


@dataclass(frozen=True, eq=False)
class Results:
    """Figures of held-out rows: one row per split, candidate, client and metric.

    Columns: split, candidate, client, metric, value, test_share (of the client's rows), and for
    each kind of choice whether the client chose this candidate on that split.
    """

    table: pd.DataFrame

    @classmethod
    def of_split(
        cls,
        figures: Mapping[str, Mapping[str, Mapping[str, float]]],
        chosen: Mapping[str, Mapping[str, str]],
        test_share: Mapping[str, float],
    ) -> "Results":
        """Results of one split: candidate → client → metric, and kind → client → candidate."""
        rows = [
            (0, candidate, client, metric, value, test_share[client], *is_chosen)
            for candidate, by_client in figures.items()
            for client, own in by_client.items()
            for is_chosen in [[chosen[kind].get(client) == candidate for kind in KINDS]]
            for metric, value in own.items()
        ]
        return cls(pd.DataFrame(rows, columns=[*_TYPES]).astype(_TYPES))

    @classmethod
    def of_splits(cls, parts: "Sequence[Results]") -> "Results":
        """Results of several splits, numbered in their order."""
        numbered = [part.table.assign(split=number) for number, part in enumerate(parts)]
        return cls(pd.concat(numbered, ignore_index=True))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Results) and self.table.equals(other.table)

    __hash__ = None  # pyright: ignore[reportAssignmentType]

    def with_more(self, other: "Results") -> "Results":
        """These results and those of other clients."""
        return Results(pd.concat([self.table, other.table], ignore_index=True))

    @property
    def num_splits(self) -> int:
        """Number of splits."""
        return len(set(self.table["split"]))

    @property
    def mean_test_share(self) -> float:
        """Mean share of held-out rows, over splits and clients."""
        shares = self.table.drop_duplicates(["split", "client"])["test_share"]
        return float(np.mean(shares.to_numpy()))

    def values(self, candidate: str, client: str, metric: str) -> np.ndarray:
        """A candidate's figure of a client on every split."""
        table = self.table
        wanted = (table["candidate"] == candidate) & (table["client"] == client)
        return table.loc[wanted & (table["metric"] == metric), "value"].to_numpy()

    def served(self) -> dict[str, list[str]]:
        """Clients that each candidate serves."""
        return {name: [*own] for name, own in self.means.items()}

    def chosen(self, kind: str, client: str) -> pd.Series:
        """The candidate that the client chose on each split, where there was one."""
        table = self.table
        rows = table.loc[(table["client"] == client) & table[kind], ["split", "candidate"]]
        return rows.drop_duplicates().set_index("split")["candidate"]

    def chosen_values(self, kind: str, client: str, metric: str) -> np.ndarray:
        """The figure of the client's choice on every split.

        A client that no candidate of that kind serves stays alone.
        """
        table = self.table
        own = table[(table["client"] == client) & (table["metric"] == metric)].set_index("split")
        chosen, alone = own.loc[own[kind], "value"], own.loc[own["alone"], "value"]
        left = alone[~alone.index.isin(chosen.index)]
        return pd.concat([chosen, left]).sort_index().to_numpy()

    @cached_property
    def means(self) -> Means:
        """Mean figures over the splits on which they are defined."""
        found: Means = {}
        for candidate, own in self._parts("candidate"):
            for client, figures in own._parts("client"):
                found.setdefault(candidate, {})[client] = {
                    metric: nanmean(part.table["value"].to_numpy())
                    for metric, part in figures._parts("metric")
                }
        return found

    def _parts(self, column: str) -> "list[tuple[str, Results]]":
        """The results by the values of a column, in the order of their first rows."""
        parts = self.table.groupby(column, sort=False)
        return [(str(value), Results(part)) for value, part in parts]

    def dump(self) -> bytes:
        """The table as a Parquet file."""
        buffer = BytesIO()
        self.table.to_parquet(buffer, index=False)
        return buffer.getvalue()

    @classmethod
    def load(cls, content: bytes) -> "Results":
        """The table from a Parquet file.

        Raises:
            ValueError: it is not one that `dump` wrote.
        """
        from pyarrow import ArrowException

        # What pyarrow raises, beside ValueError: for a torn file, for an encoding it lacks, and
        # for words that are not UTF-8, which it looks at only when they are needed.
        try:
            table = pd.read_parquet(BytesIO(content))
            if [*table.columns] != [*_TYPES]:
                raise ValueError("the results have other columns than flic writes")
            return cls(table.astype(_TYPES))
        except (OSError, NotImplementedError, ArrowException) as error:
            raise ValueError(f"the results cannot be read ({error})") from error


def nanmean(values: np.ndarray) -> float:
    """Mean of the values that are known; NaN without any."""
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else float("nan")
