"""How much a client tells of its rows: sums as detailed as it wants, and as its rows can hide in.

A table can be solved for from sums that are more numbers than it has values: 60 rows of ten
columns from the products of 512 random features, to the last digit. From half as many numbers as
values nothing better than chance came back (docs/linked-features.md).
"""

from collections.abc import Mapping
from typing import Literal

from flic.algorithms.settings import Scatter
from flic.alignment.moments import SENT, Detail

Kind = Literal["linear", "mapped"]
"""Sums of the features as they are, or under the random map."""

DETAILS: Mapping[Scatter, Mapping[Kind, Detail]] = {
    "off": {"linear": "off", "mapped": "off"},
    "diagonal": {"linear": "diagonal", "mapped": "diagonal"},
    "projected": {"linear": "diagonal", "mapped": "full"},
    "full": {"linear": "full", "mapped": "full"},
}
"""What is told of the scatter of each kind of sums, from least to most."""


def numbers_told(detail: Detail, *, width: int, classes: int) -> int:
    """How many numbers tell of so many columns and classes, rows that were counted aside."""
    beside = {"off": 0, "diagonal": width, "full": width * (width + 1) // 2}
    return classes * width + beside[detail]


def within(budget: float, wanted: Detail, *, width: int, classes: int) -> Detail | None:
    """The most of what is wanted that so many numbers tell; None if they do not tell sums."""
    most: Detail | None = None
    for detail in SENT:
        if numbers_told(detail, width=width, classes=classes) <= budget:
            most = detail
        if detail == wanted:
            break
    return most
