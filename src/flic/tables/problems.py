"""Problems of clients and their rows, found before anything is learnt from them.

Each function checks one thing and gives a sentence per finding.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import combinations_with_replacement, islice, product

import numpy as np
from pandas.core.util.hashing import hash_pandas_object

from flic.data.findings import Finding
from flic.data.task import Classification, Regression, Task
from flic.notation import are, counted, quoted
from flic.tables.declared import Declared, is_unnamed
from flic.tables.federation_file import unusable_name
from flic.tables.sources import RawClient, fatal, notice
from flic.tables.table import Column, SiloTable

LEAST_ROWS = 10

MOST_PAIRS, MOST_BEFORE = 2000, 50
"""Most pairs of column sets, and most earlier tables, that are compared: time must not grow with
the square of thousands of clients."""


def about_clients(raw: Sequence[RawClient], expected: int) -> Iterator[Finding]:
    """Too few clients, and names that cannot be used."""
    if expected == 1:
        yield fatal(
            None,
            "the federation has one client; expected at least two, or there is nobody to learn "
            "with. Add a client.",
        )
    names = [client.name for client in raw]
    for name in (name for name, count in Counter(names).items() if count > 1):
        yield fatal(
            None,
            f"client name '{name}' is used more than once; expected one name per client, since "
            "results go by name. Rename all but one.",
        )
    for name in names:
        if problem := unusable_name(name):
            yield fatal(None, problem)


def about_common_classes(tables: Sequence[SiloTable], names: Sequence[str]) -> Iterator[Finding]:
    """Clients that have no class in common with any other: there is nothing to learn together."""
    held = [{*np.unique(table.y).tolist()} for table in tables]
    for table, own in zip(tables, held, strict=True):
        if not any(own & others for others in held if others is not own):
            yield fatal(
                table.name,
                f"has the classes {quoted(names[label] for label in sorted(own))}, of which no "
                "other client has a row; expected at least one class in common. If other clients "
                "have them under other names, say so in `labels`; else leave this client out.",
            )


def about_same_rows(tables: Sequence[SiloTable]) -> Iterator[Finding]:
    """Rows that two clients both have: one may train on what the other holds out."""
    alike: dict[frozenset[str], list[SiloTable]] = {}
    for table in tables:
        alike.setdefault(frozenset(table.frame.columns), []).append(table)
    for one, other in islice(combinations_with_replacement(alike, 2), MOST_PAIRS):
        if columns := sorted(one & other):
            first = [(table, _single_rows(table, columns)) for table in alike[one]]
            second = [(table, _single_rows(table, columns)) for table in alike[other]]
            yield from _within(first) if one is other else _between(first[:MOST_BEFORE], second)


_Hashed = Sequence[tuple[SiloTable, np.ndarray]]
"""Tables, and hashes of their rows."""


def _within(tables: _Hashed) -> Iterator[Finding]:
    """Pairs among some tables that have the same rows."""
    for number, own in enumerate(tables):
        yield from _between(tables[max(0, number - MOST_BEFORE) : number], [own])


def _between(ones: _Hashed, others: _Hashed) -> Iterator[Finding]:
    """Pairs of one of `ones` and one of `others` that have the same rows."""
    for (one, first), (other, second) in product(ones, others):
        same = len(np.intersect1d(first, second, assume_unique=True))
        if same >= LEAST_ROWS and 2 * same >= min(len(first), len(second)):
            yield notice(
                None,
                f"'{one.name}' and '{other.name}' have {same} rows in common. One trains on rows "
                "that the other holds out, so a verdict on them is too good. Give each row to one "
                "client.",
            )


def _single_rows(table: SiloTable, columns: list[str]) -> np.ndarray:
    """Hashes of the rows that occur once at the client, label included."""
    rows = table.frame[columns].assign(label=table.y)
    hashes, counts = np.unique(hash_pandas_object(rows, index=False), return_counts=True)
    return hashes[counts == 1]


def about_common(raw: Sequence[RawClient], common: Declared) -> Iterator[Finding]:
    """Columns that are declared for all clients and found at none, usually mistyped."""
    seen = {name for client in raw for name in client.frame.columns}
    nowhere = [name for name in common.columns if name not in seen]
    if raw and nowhere:
        yield fatal(
            None,
            f"the federation declares {quoted(nowhere)}; no client has such a column. Correct the "
            "name, or remove it.",
        )


def about_own(raw: RawClient) -> Iterator[str]:
    """Columns that a client itself declares and does not have."""
    absent = [name for name in sorted(raw.own) if name not in raw.frame.columns]
    if absent:
        yield (
            f"declares {quoted(absent)}; expected some of its columns "
            f"{quoted(raw.frame.columns)}. Correct the names."
        )


def about_links(raw: RawClient, columns: Sequence[Column]) -> Iterator[str]:
    """Links that would merge two columns, or convert the unit of a column without numbers."""
    names = [raw.declared.shared_name(column.name, raw.name) for column in columns]
    for name in (name for name, count in Counter(names).items() if count > 1):
        own = [c.name for c, shared in zip(columns, names, strict=True) if shared == name]
        yield (
            f"its columns {quoted(own)} are all shared as '{name}'; expected one of them. Correct "
            "`links`."
        )
    for column in columns:
        link = raw.declared.links.get(column.name)
        if link and column.kind != "number" and (link.factor, link.offset) != (1.0, 0.0):
            yield (
                f"column '{column.name}' is a {column.kind}, and its link has a factor or offset; "
                "expected these for numbers alone. Leave them out."
            )


def about_unnamed(raw: RawClient, columns: Sequence[Column]) -> Iterator[str]:
    """Columns without a name: no other client can know what they mean."""
    alone = [c.name for c in columns if is_unnamed(c.name) and c.name in raw.declared.unlinked]
    if alone:
        yield (
            f"{quoted(alone)}: without a name in the heading, so linked with no other client's "
            "column. Name them, drop them, or say in `links` what they are."
        )


def about_labels(
    raw: RawClient, y: np.ndarray, task: Task, names: tuple[str, ...]
) -> Iterator[Finding]:
    """Labels that are missing, too few, all the same, or beyond the range."""
    dropped = len(raw.frame) - len(y)
    if dropped:
        yield notice(raw.name, f"{counted(dropped, 'row')} without a label {are(dropped)} dropped.")
    if len(y) < LEAST_ROWS:
        yield fatal(
            raw.name,
            f"has {counted(len(y), 'row')} with a label; expected at least {LEAST_ROWS}. Add rows, "
            "or leave this client out.",
        )
    distinct = np.unique(y)
    if len(distinct) == 1:
        only = names[int(distinct[0])] if isinstance(task, Classification) else f"{distinct[0]:g}"
        what = "class" if isinstance(task, Classification) else "response"
        yield fatal(
            raw.name,
            f"has the {what} '{only}' only; expected at least two different ones. Add rows of "
            "another, or leave this client out.",
        )
    if isinstance(task, Regression):
        beyond = int(((y < task.low) | (y > task.high)).sum())
        if beyond:
            yield notice(
                raw.name,
                f"has {counted(beyond, 'response')} outside the range {task.low:g} to "
                f"{task.high:g}.",
            )
