"""Encoder of a client's columns as numbers: fitted on its training rows, kept by the client.

Every part is a small frozen model of plain values. So a fitted encoder is saved as readable JSON,
and loading it runs no code. Features are named after their column and mean the same at every
client that has the column. The exception are features that depend on all rows of one client: they
have the client's name, and are never shared.

skrub's TableVectorizer does the same job. It is not used because its fitted state needs a pickle
or megabytes of skops per client, and because its parts cannot name features across clients.
"""

from collections.abc import Iterator
from typing import Annotated, Self

import numpy as np
import pandas as pd
from pydantic import Field, model_validator

from flic.tables.declared import Kind
from flic.tables.parts import Dates, Fitted, Levels, Numbers, Words, values_of
from flic.tables.suspicions import beyond_ranges, swapped
from flic.tables.table import SiloTable

# Categories with more levels are encoded as text: one-hot columns would have a row or two each.
ONE_HOT_LEVELS = 20


def _kind_of(part: "AnyPart", source: str) -> Kind:
    """Kind of a column that a part encodes."""
    if isinstance(part, Numbers):
        return "boolean" if source in part.booleans else "number"
    if isinstance(part, Dates):
        return "date"
    return "text" if isinstance(part, Words) and not part.levels else "category"


AnyPart = Annotated[Numbers | Levels | Dates | Words, Field(discriminator="kind")]


class TableEncoder(Fitted):
    """All parts of one client's encoding, in the order of its features."""

    parts: list[AnyPart]
    ranges: dict[str, tuple[float, float]] = Field(default_factory=dict)  # of numbers at the fit

    @model_validator(mode="after")
    def _scales_each_feature(self) -> Self:
        """Refuse parts that a file describes otherwise than a fit does."""
        for part in self.parts:
            sizes = {len(part.features), len(part.scale.mean), len(part.scale.deviation)}
            if isinstance(part, Numbers):
                strange = [c for c in part.with_indicator if c not in part.columns]
                sizes |= {len(part.medians) + len(part.with_indicator), *([-1] if strange else [])}
            if len(sizes) > 1 or (isinstance(part, Dates) and not part.parts):
                raise ValueError(f"the features of its {part.kind} have other scales or columns")
        return self

    @classmethod
    def fit(cls, table: SiloTable) -> "TableEncoder":
        """Fit to a client's training rows."""
        of_kind = {kind: [c.name for c in table.columns if c.kind == kind] for kind in _ORDER}
        numbers = of_kind["number"] + of_kind["boolean"]
        parts: list[AnyPart] = []
        if numbers:
            parts.append(Numbers.fit(table.frame, numbers, of_kind["boolean"]))
        for column in of_kind["category"]:
            levels = sorted({*values_of(table.frame, column).dropna()})
            if len(levels) <= ONE_HOT_LEVELS:
                parts.append(Levels.fit(table.frame, column))
            else:
                parts.append(Words.fit(table.frame, column, table.name, levels))
        parts += [Dates.fit(table.frame, column) for column in of_kind["date"]]
        parts += [Words.fit(table.frame, column, table.name) for column in of_kind["text"]]
        lows, highs = (getattr(table.frame[numbers], end)() for end in ("min", "max"))
        ranges = {c: (float(lows[c]), float(highs[c])) for c in numbers if lows[c] < highs[c]}
        return cls(parts=parts, ranges=ranges)

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the encoded features; their number is k_i."""
        return tuple(name for part in self.parts for name in part.features)

    @property
    def sources(self) -> tuple[str, ...]:
        """Column that each feature comes from."""
        return tuple(name for part in self.parts for name in part.sources)

    @property
    def source_numbers(self) -> tuple[int, ...]:
        """Number of the column that each feature comes from."""
        number = {name: i for i, name in enumerate(dict.fromkeys(self.sources))}
        return tuple(number[name] for name in self.sources)

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """Kind of the column that each feature comes from."""
        return tuple(_kind_of(part, source) for part in self.parts for source in part.sources)

    def unseen(self, frame: pd.DataFrame) -> dict[str, list[str]]:
        """Levels that no training row had, by column."""
        parts = [
            p for p in self.parts if isinstance(p, Levels) or (isinstance(p, Words) and p.levels)
        ]
        new = {p.column: {*values_of(frame, p.column).dropna()} - {*p.levels} for p in parts}
        return {column: sorted(levels) for column, levels in new.items() if levels}

    def unlike(self, frame: pd.DataFrame) -> Iterator[str]:
        """Signs that columns of these rows are not those of the fit, as sentences."""
        for part in self.parts:
            if isinstance(part, Numbers):
                x = frame[part.columns].to_numpy(float)
                yield from beyond_ranges(part.columns, x, self.ranges)
                yield from swapped(part.columns, x, part.scale.mean, part.scale.deviation)
        dates = [part for part in self.parts if isinstance(part, Dates)]
        if dates:  # the first feature of a date is its day
            x = np.column_stack([part.plain(frame)[:, 0] for part in dates])
            means = [part.scale.mean[0] for part in dates]
            deviations = [part.scale.deviation[0] for part in dates]
            yield from swapped([part.column for part in dates], x, means, deviations)

    @property
    def read_by_letters(self) -> frozenset[str]:
        """Columns encoded by letters, so that new levels resemble known ones."""
        return frozenset(part.column for part in self.parts if isinstance(part, Words))

    def transform(self, frame: pd.DataFrame) -> np.ndarray:
        """Encoded rows as float32, a column per feature, standardised by the client's own rows."""
        return self._joined(frame, [part.scale.apply(part.plain(frame)) for part in self.parts])

    def plain(self, frame: pd.DataFrame) -> np.ndarray:
        """The same rows in their own units, which mean the same at every client."""
        return self._joined(frame, [part.plain(frame) for part in self.parts])

    def _joined(self, frame: pd.DataFrame, parts: list[np.ndarray]) -> np.ndarray:
        return np.hstack([np.empty((len(frame), 0)), *parts]).astype(np.float32)


_ORDER = ("number", "boolean", "category", "date", "text")
