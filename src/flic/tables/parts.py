"""Encoders of columns of one kind: fitted on a client's training rows, made of plain values.

`encoder.py` combines them for a client.
"""

import math
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal, cast

import numpy as np
import pandas as pd
from pydantic import BaseModel, ConfigDict, Field

# Standardised values are clipped at this many deviations: a misplaced comma must not dominate.
CLIP = 5.0
TEXT_WIDTH = 256
TEXT_COMPONENTS = 8


class Fitted(BaseModel):
    """Base of fitted parts, made of plain values."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Scale(Fitted):
    """Standardisation of numeric features."""

    mean: list[float]
    deviation: list[float]

    @classmethod
    def of(cls, x: np.ndarray) -> "Scale":
        """Scale of training rows; a constant feature is only centred."""
        # Rounding gives equal values a tiny deviation, by which nothing may be divided.
        varies = np.ptp(x, 0) > 1e-12 * np.abs(x).max(0)
        return cls(mean=x.mean(0).tolist(), deviation=np.where(varies, x.std(0), 1).tolist())

    def apply(self, x: np.ndarray) -> np.ndarray:
        """Standardised rows."""
        return ((x - np.array(self.mean)) / np.array(self.deviation)).clip(-CLIP, CLIP)


class Numbers(Fitted):
    """Numbers and booleans: median where missing, standardised, with indicators of missingness."""

    kind: Literal["numbers"] = "numbers"
    columns: list[str]
    medians: list[float]
    with_indicator: list[str]  # columns in which training rows had gaps, but not only gaps
    booleans: list[str] = []  # which of the columns are
    scale: Scale

    @classmethod
    def fit(
        cls, frame: pd.DataFrame, columns: Sequence[str], booleans: Sequence[str] = ()
    ) -> "Numbers":
        """Fit to training rows."""
        x = frame[list(columns)].to_numpy(float)
        gaps = np.isnan(x).mean(0)
        medians = [float(np.nanmedian(c)) if g < 1 else 0.0 for c, g in zip(x.T, gaps, strict=True)]
        indicated = [c for c, gap in zip(columns, gaps, strict=True) if 0 < gap < 1]
        part = cls(
            columns=list(columns),
            medians=medians,
            with_indicator=indicated,
            booleans=list(booleans),
            scale=Scale(mean=[], deviation=[]),
        )
        return part.model_copy(update={"scale": Scale.of(part.plain(frame))})

    @property
    def features(self) -> list[str]:
        """Names of the encoded features."""
        return [*self.columns, *(f"{column} is missing" for column in self.with_indicator)]

    @property
    def sources(self) -> list[str]:
        """Column of each feature."""
        return [*self.columns, *self.with_indicator]

    def plain(self, frame: pd.DataFrame) -> np.ndarray:
        """Encoded rows in their own units, a column per feature."""
        x = frame[self.columns].to_numpy(float)
        gaps = np.isnan(x)
        indicated = [self.columns.index(column) for column in self.with_indicator]
        return np.hstack([np.where(gaps, np.array(self.medians), x), gaps[:, indicated]])


class Levels(Fitted):
    """A category of few levels: an indicator each, one for missing, none for an unseen level."""

    kind: Literal["levels"] = "levels"
    column: str
    levels: list[str]
    has_missing: bool
    scale: Scale

    @classmethod
    def fit(cls, frame: pd.DataFrame, column: str) -> "Levels":
        """Fit to training rows."""
        values = values_of(frame, column)
        levels = sorted(values.dropna().unique())
        part = cls(
            column=column,
            levels=levels,
            has_missing=bool(values.isna().any()),
            scale=Scale(mean=[], deviation=[]),
        )
        return part.model_copy(update={"scale": Scale.of(part.plain(frame))})

    @property
    def features(self) -> list[str]:
        """Names of the encoded features."""
        missing = [f"{self.column} is missing"] if self.has_missing else []
        return [f"{self.column} = {level}" for level in self.levels] + missing

    @property
    def sources(self) -> list[str]:
        """Column of each feature."""
        return [self.column] * len(self.features)

    def plain(self, frame: pd.DataFrame) -> np.ndarray:
        """Encoded rows in their own units, a column per feature."""
        values = values_of(frame, self.column)
        columns = [(values == level).to_numpy(bool) for level in self.levels]
        if self.has_missing:
            columns.append(values.isna().to_numpy(bool))
        return np.column_stack(columns).astype(float) if columns else np.empty((len(values), 0))


DatePart = Literal[
    "days", "season sin", "season cos", "weekday sin", "weekday cos", "hour sin", "hour cos"
]


class Dates(Fitted):
    """A date: days, and the season, weekday and hour as points on a circle."""

    kind: Literal["dates"] = "dates"
    column: str
    middle: str  # the median date, for missing ones
    parts: list[DatePart]
    scale: Scale

    @classmethod
    def fit(cls, frame: pd.DataFrame, column: str) -> "Dates":
        """Fit to training rows; parts that never vary are left out, except days."""
        known = values_of(frame, column).dropna()
        middle = known.sort_values().iloc[len(known) // 2] if len(known) else pd.Timestamp(0)
        part = cls(
            column=column,
            middle=pd.Timestamp(middle).isoformat(),
            parts=list(_DATE_PARTS),
            scale=Scale(mean=[], deviation=[]),
        )
        x = part.plain(frame)
        varies = [
            name
            for name, values in zip(_DATE_PARTS, x.T, strict=True)
            if name == "days" or np.ptp(values) > 0
        ]
        part = part.model_copy(update={"parts": varies})
        return part.model_copy(update={"scale": Scale.of(part.plain(frame))})

    @property
    def features(self) -> list[str]:
        """Names of the encoded features."""
        return [f"{self.column} {part}" for part in self.parts]

    @property
    def sources(self) -> list[str]:
        """Column of each feature."""
        return [self.column] * len(self.features)

    def plain(self, frame: pd.DataFrame) -> np.ndarray:
        """Encoded rows in their own units, a column per feature."""
        known = values_of(frame, self.column).fillna(pd.Timestamp(self.middle))
        dates = pd.DatetimeIndex(known)  # whose parts come much faster than a column's
        found = [np.asarray(_DATE_PARTS[part](dates), float) for part in self.parts]
        return np.column_stack(found) if found else np.empty((len(frame), 0))


def _angle(position: pd.Index, length: float) -> np.ndarray:
    return 2 * math.pi * position.to_numpy(float) / length


_DATE_PARTS: dict[DatePart, Callable[[Any], Any]] = {
    "days": lambda d: (d.normalize() - pd.Timestamp("2000-01-01")) / pd.Timedelta(days=1),
    "season sin": lambda d: np.sin(_angle(d.day_of_year, 365.25)),
    "season cos": lambda d: np.cos(_angle(d.day_of_year, 365.25)),
    "weekday sin": lambda d: np.sin(_angle(d.day_of_week, 7)),
    "weekday cos": lambda d: np.cos(_angle(d.day_of_week, 7)),
    "hour sin": lambda d: np.sin(_angle(d.hour, 24)),
    "hour cos": lambda d: np.cos(_angle(d.hour, 24)),
}


Direction = Annotated[list[float], Field(min_length=TEXT_WIDTH, max_length=TEXT_WIDTH)]


class Words(Fitted):
    """Free text, or a category of many levels: main directions of its character n-grams.

    The directions depend on the client's own rows, so its name is in the features.
    """

    kind: Literal["words"] = "words"
    column: str
    client: str
    levels: list[str]  # of a category; free text has none
    directions: list[Direction]
    scale: Scale

    @classmethod
    def fit(
        cls, frame: pd.DataFrame, column: str, client: str, levels: Sequence[str] = ()
    ) -> "Words":
        """Fit to training rows."""
        from sklearn.decomposition import TruncatedSVD

        grams = _ngrams(frame, column)
        size = min(TEXT_COMPONENTS, max(1, len(frame) // 5), len(frame) - 1)
        directions = np.zeros((1, TEXT_WIDTH))
        if grams.nnz:
            with np.errstate(divide="ignore", invalid="ignore"):  # equal texts have no variance
                svd = TruncatedSVD(size, random_state=0).fit(grams)
            directions = np.nan_to_num(np.asarray(svd.components_))
        # Six digits in JSON: further ones are noise, and take three times the bytes.
        rounded = np.round(directions, 6)
        scale = Scale.of(grams @ rounded.T)
        return cls(
            column=column,
            client=client,
            levels=list(levels),
            directions=rounded.tolist(),
            scale=scale,
        )

    @property
    def features(self) -> list[str]:
        """Names of the encoded features."""
        count = len(self.directions)
        return [f"{self.column} direction {i + 1} of {self.client}" for i in range(count)]

    @property
    def sources(self) -> list[str]:
        """Column of each feature."""
        return [self.column] * len(self.features)

    def plain(self, frame: pd.DataFrame) -> np.ndarray:
        """Encoded rows in their own units, a column per feature."""
        return _ngrams(frame, self.column) @ np.array(self.directions).T


def _ngrams(frame: pd.DataFrame, column: str) -> Any:
    if not len(frame):
        return np.empty((0, TEXT_WIDTH))  # the vectoriser does not accept zero rows
    from sklearn.feature_extraction.text import HashingVectorizer

    vectoriser = HashingVectorizer(analyzer="char_wb", ngram_range=(2, 4), n_features=TEXT_WIDTH)
    return vectoriser.transform(values_of(frame, column).fillna("").astype(str))


def values_of(frame: pd.DataFrame, column: str) -> pd.Series:
    """One column."""
    return cast(pd.Series, frame[column])
