"""Declarations about columns, made by a person before anything is inferred from the values.

They are the keys that a federation file and each of its clients share.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, Field, field_serializer, field_validator

from flic.settings import Section

Kind = Literal["number", "boolean", "category", "text", "date"]
KINDS: tuple[Kind, ...] = get_args(Kind)

Raw = bool | int | float | str
"""A value as written in a file."""

MISSING_MARKERS = ("", "NA", "N/A", "NaN", "null", "None", "?", ".")
"""Texts that mean "missing" in any column, in capital letters or not."""

EVERY_COLUMN = "*"
"""Key of `missing` that stands for all columns."""


_UNNAMED = re.compile(r"(unnamed:? \d+|__index_level_\d+__)?", re.IGNORECASE)
"""Names that flic, pandas and Arrow give to a column without a heading, and the empty name."""


def is_unnamed(column: str) -> bool:
    """Return whether a column has a position but no name, so means nothing to other clients."""
    return _UNNAMED.fullmatch(column.strip()) is not None


def is_list_of_values(value: object) -> bool:
    """Return whether it is a list of raw values, from TOML or Python."""
    return isinstance(value, list | tuple) and all(isinstance(v, Raw) for v in value)


class Link(Section):
    """Shared name of a column, and the conversion to the shared unit."""

    name: str = Field(min_length=1)
    factor: float = 1.0  # value in the shared unit = factor · value + offset
    offset: float = 0.0

    @field_validator("factor")
    @classmethod
    def _can_be_undone(cls, factor: float) -> float:
        if factor == 0:
            raise ValueError("expected a factor other than 0")
        return factor


def _link(link: object) -> object:
    return {"name": link} if isinstance(link, str) else link


class Declared(Section):
    """Columns to leave out, kinds of columns, and values that mean "not measured"."""

    drop: tuple[str, ...] = ()
    ids: tuple[str, ...] = ()  # left out as well: they identify rows and do not describe them
    dates: tuple[str, ...] = ()
    numbers: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()
    missing: dict[str, tuple[Raw, ...]] = Field(default_factory=dict)  # column, or "*" → values
    missing_markers: tuple[str, ...] = MISSING_MARKERS
    links: dict[str, Annotated[Link, BeforeValidator(_link)]] = Field(default_factory=dict)
    unlinked: tuple[str, ...] = ()  # differ in meaning from columns of the same name elsewhere

    @field_validator("missing", mode="plain")
    @classmethod
    def _lists_of_values(cls, missing: Any) -> dict[str, tuple[Raw, ...]]:
        if not isinstance(missing, dict) or not all(map(is_list_of_values, missing.values())):
            raise ValueError("expected a table of column = [values], such as { chol = [0] }")
        return {str(name): tuple(values) for name, values in missing.items()}

    @field_serializer("missing")
    def _plain_lists(self, missing: dict[str, tuple[Raw, ...]]) -> dict[str, list[Raw]]:
        return {name: list(values) for name, values in missing.items()}

    @classmethod
    def of_kinds(cls, kinds: Mapping[str, Kind]) -> "Declared":
        """Declarations of kinds; booleans are only recognised by their values."""

        def named(kind: Kind) -> tuple[str, ...]:
            return tuple(name for name, own in kinds.items() if own == kind)

        return cls(
            dates=named("date"),
            numbers=named("number"),
            categories=named("category"),
            texts=named("text"),
        )

    @property
    def left_out(self) -> tuple[str, ...]:
        """Columns that are not features."""
        return (*self.drop, *self.ids)

    @property
    def kinds(self) -> dict[str, Kind]:
        """Column → kind, where it is declared."""
        return {name: kind for kind, names in self._by_kind() for name in names}

    @property
    def columns(self) -> tuple[str, ...]:
        """Every column that is mentioned."""
        measured = [name for name in self.missing if name != EVERY_COLUMN]
        linked = [*self.links, *self.unlinked]
        return tuple(dict.fromkeys([*self.left_out, *self.kinds, *measured, *linked]))

    def shared_name(self, column: str, client: str, kind: Kind | None = None) -> str:
        """Name of a client's column among all clients.

        Dates and texts are private unless the client links them in `links`.
        """
        private = kind in ("date", "text") and column not in self.links
        if private or column in self.unlinked:
            return f"{column} of {client}"
        return self.links[column].name if column in self.links else column

    def contradictions(self) -> list[str]:
        """Columns that are declared to be two things, as sentences."""
        named = [*self.drop, *self.ids, *(name for _, names in self._by_kind() for name in names)]
        return [
            f"'{name}' is declared to be two things; expected each column in one of drop, ids, "
            "dates, numbers, categories and texts. Keep one"
            for name in dict.fromkeys(named)
            if named.count(name) > 1
        ]

    def over(self, default: "Declared") -> "Declared":
        """Merge with `default`: what is declared here for a column replaces what is there."""
        said = {*self.left_out, *self.kinds}
        lists = {
            key: (*(n for n in getattr(default, key) if n not in said), *getattr(self, key))
            for key in ("drop", "ids", "dates", "numbers", "categories", "texts")
        }
        markers = self if "missing_markers" in self.model_fields_set else default
        return Declared(
            **lists,
            missing=default.missing | self.missing,
            missing_markers=markers.missing_markers,
            links=default.links | self.links,
            unlinked=(*default.unlinked, *self.unlinked),
        )

    def apart(self, columns: Iterable[str]) -> "Declared":
        """Copy in which unnamed columns are linked with no other's, unless `links` says so."""
        unnamed = [c for c in columns if is_unnamed(c) and c not in (*self.links, *self.unlinked)]
        return self.model_copy(update={"unlinked": (*self.unlinked, *unnamed)}) if unnamed else self

    def only(self) -> "Declared":
        """Only the declarations of a description that has more keys."""
        return Declared(**{name: getattr(self, name) for name in self.model_fields_set & _KEYS})

    def _by_kind(self) -> Iterator[tuple[Kind, tuple[str, ...]]]:
        yield "date", self.dates
        yield "number", self.numbers
        yield "category", self.categories
        yield "text", self.texts


_KEYS = frozenset(Declared.model_fields)
