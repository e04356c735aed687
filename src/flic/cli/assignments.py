"""Options about reading a new table; each may be repeated."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from flic.errors import ConfigError

if TYPE_CHECKING:
    from flic.tables.declared import Raw

Classes = Annotated[
    list[str] | None,
    typer.Option(
        "--class",
        metavar="NAME=VALUES",
        help="Labels that mean a class, such as ill=1,2; may be repeated.",
    ),
]
Missing = Annotated[
    list[str] | None,
    typer.Option(metavar="COLUMN=VALUE", help='Value that means "not measured"; may be repeated.'),
]
Dropped = Annotated[
    list[str] | None,
    typer.Option(metavar="COLUMN", help="Column to leave out; may be repeated."),
]


def values_of_classes(assignments: Sequence[str] | None) -> "dict[str, tuple[Raw, ...]]":
    """Class → raw labels that mean it."""
    found: dict[str, tuple[Raw, ...]] = {}
    for text in assignments or ():
        name, values = _split(text, "--class", "NAME=VALUES, such as ill=1,2")
        found[name] = (*found.get(name, ()), *(value.strip() for value in values.split(",")))
    return found


def missing_values(assignments: Sequence[str] | None) -> "dict[str, tuple[Raw, ...]]":
    """Column → values that mean "not measured"."""
    found: dict[str, tuple[Raw, ...]] = {}
    for text in assignments or ():
        column, value = _split(text, "--missing", "COLUMN=VALUE, such as chol=0")
        found[column] = (*found.get(column, ()), value)
    return found


def _split(text: str, option: str, expected: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator or not name or not value:
        raise ConfigError(f"{option} is {text!r}; expected {expected}. Correct it.")
    return name, value
