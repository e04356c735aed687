"""How much a client tells of its rows: sums as detailed as it wants, and as its rows can hide in.

A table can be solved for from sums that are more numbers than it has values: 60 rows of ten
columns from the products of 512 random features, to the last digit. From half as many numbers as
values nothing better than chance came back (SECURITY.md).
"""

import torch
from jaxtyping import Int
from torch import Tensor

from flic.algorithms.agreed import Agreed, class_of
from flic.alignment.moments import SENT, Detail
from flic.data.client_data import ClientData


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


def told_detail(agreed: Agreed, client: ClientData) -> Detail:
    """What a client tells of the scatter of its features as they are.

    All of its features count, since a silo does not know beforehand which of them are linked.
    """
    wanted, limit = agreed.detail("linear"), agreed.settings.told_per_value
    if limit is None:
        return wanted
    (rows, classes), width = _told_rows(agreed, client), client.schema.dim + agreed.responses
    # Sums alone are told by every class that has enough rows.
    return within(limit * rows * width, wanted, width=width, classes=classes) or "off"


def told_of_map(agreed: Agreed, client: ClientData, *, linked: int) -> Detail | None:
    """What a client tells of random features of so many linked ones, beside all of its own."""
    wanted, limit = agreed.detail("mapped"), agreed.settings.told_per_value
    if limit is None:
        return wanted
    (rows, classes), width = _told_rows(agreed, client), client.schema.dim + agreed.responses
    told = numbers_told(told_detail(agreed, client), width=width, classes=classes)
    left = limit * rows * (linked + agreed.responses) - told
    mapped = agreed.settings.random_features + agreed.responses
    return within(left, wanted, width=mapped, classes=classes)


def _told_rows(agreed: Agreed, client: ClientData) -> tuple[int, int]:
    """Rows and classes behind a client's sums."""
    rows = enough(agreed, client)
    return len(rows), len(class_of(agreed, client.train)[rows].unique())


def enough(agreed: Agreed, client: ClientData) -> Int[Tensor, " rows"]:
    """Rows of the classes that have enough of them to be sent in a sum."""
    least = agreed.settings.min_rows_per_class
    classes = [c for c, count in client.class_counts.items() if count >= least]
    return (
        torch.isin(class_of(agreed, client.train), torch.tensor(classes, dtype=torch.int64))
        .nonzero()
        .flatten()
    )
