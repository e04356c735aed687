"""Proposals of further links between columns, and doubts about existing ones, for a person.

Columns of the same name and kind are linked already. Proposals and doubts change no link.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import combinations

import numpy as np

from flic.tables.declared import Link
from flic.tables.table import Column, SiloTable

LIKELY = 0.6
NAME_SHARE = 0.6  # weight of the names in the score; the rest is for the values

_UNITS = {
    ("pounds", "kilograms"): 0.45359,
    ("inches", "centimetres"): 2.54,
    ("feet", "metres"): 0.3048,
    ("thousands", "ones"): 1000.0,
    ("hundreds", "ones"): 100.0,
    ("mmol/l of cholesterol", "mg/dl"): 38.67,
    ("mmol/l of glucose", "mg/dl"): 18.02,
}
CONVERSIONS = {f"{a} to {b}": factor for (a, b), factor in _UNITS.items()}
CONVERSIONS |= {f"{b} to {a}": 1 / factor for (a, b), factor in _UNITS.items()}
"""Factors between common units of columns."""

FEW, DISTINCT = 20, 5
"""Least values, and least distinct values, that can make a link doubtful."""

HARDLY = 0.01
"""Overlap below which two ranges hardly meet."""


@dataclass(frozen=True)
class Proposal:
    """Two columns of two clients that seem to mean the same."""

    score: float
    first: tuple[str, str]  # client, column
    second: tuple[str, str]
    evidence: tuple[str, ...]
    link: Link  # of the second, under the first's name and in its unit


def propose_links(tables: Sequence[SiloTable]) -> list[Proposal]:
    """Likely links between columns that are not linked by their names, best first."""
    found = [
        proposal
        for one, other in combinations(tables, 2)
        for proposal in _between(one, other)
        if proposal.score >= LIKELY
    ]
    return sorted(found, key=lambda p: (-p.score, p.first, p.second))


def doubtful_links(tables: Sequence[SiloTable]) -> list[Proposal]:
    """Links that another unit would mend, or between values that never meet; odd column second."""
    holders: dict[Column, list[tuple[SiloTable, Column]]] = {}
    for table in tables:
        for shared, own in zip(table.shared, table.columns, strict=True):
            holders.setdefault(shared, []).append((table, own))
    return [doubt for every in holders.values() for doubt in _doubts(every)]


def _doubts(holders: Sequence[tuple[SiloTable, Column]]) -> Iterator[Proposal]:
    """Doubts about one shared column: the client that differs from most others, then the rest."""
    left = [(a, b) for a, b in combinations(holders, 2) if _is_doubtful(*a, *b)]
    while left:
        counts = [sum(any(one is own for one, _ in pair) for pair in left) for own, _ in holders]
        odd, column = max(zip(counts, range(len(holders)), holders, strict=True))[2]
        mine = [pair for pair in left if any(one is odd for one, _ in pair)]
        left = [pair for pair in left if not any(one is odd for one, _ in pair)]
        other, theirs = next(own for own in mine[0] if own[0] is not odd)
        score, said, factor = _values(other, theirs, odd, column)
        more = f" (and so with {len(mine) - 1} more)" if len(mine) > 1 else ""
        yield _proposal(score, other, theirs, odd, column, (said + more,), factor)


def _is_doubtful(one: SiloTable, a: Column, other: SiloTable, b: Column) -> bool:
    values = [t.frame[c.name].dropna() for t, c in ((one, a), (other, b))]
    if min(map(len, values)) < FEW or a.kind not in ("number", "category"):
        return False
    alike, _, factor = _values(one, a, other, b)
    if a.kind == "category":
        return alike == 0
    # The range of a flag only tells how rare it is.
    return min(len({*own}) for own in values) >= DISTINCT and (factor != 1 or alike < HARDLY)


def _proposal(
    score: float,
    one: SiloTable,
    a: Column,
    other: SiloTable,
    b: Column,
    evidence: tuple[str, ...],
    factor: float,
) -> Proposal:
    """Proposal for the second client's column, combined with the link that it has."""
    link = other.declared.links.get(b.name, Link(name=b.name))
    name = one.declared.shared_name(a.name, one.name, a.kind)
    mended = Link(name=name, factor=factor * link.factor, offset=factor * link.offset)
    return Proposal(round(score, 3), (one.name, a.name), (other.name, b.name), evidence, mended)


def _between(one: SiloTable, other: SiloTable) -> Iterator[Proposal]:
    own, theirs = set(one.shared), set(other.shared)
    for a, known_a in zip(one.columns, one.shared, strict=True):
        for b, known_b in zip(other.columns, other.shared, strict=True):
            apart = a.name in one.declared.unlinked or b.name in other.declared.unlinked
            is_new = known_a not in theirs and known_b not in own and not apart
            if a.kind == b.kind != "text" and is_new:
                yield _compare(one, a, other, b)


def _compare(one: SiloTable, a: Column, other: SiloTable, b: Column) -> Proposal:
    by_name = name_similarity(a.name, b.name)
    by_value, said, factor = _values(one, a, other, b)
    score = NAME_SHARE * by_name + (1 - NAME_SHARE) * by_value
    evidence = (f"names {by_name:.0%} alike", said)
    return _proposal(score, one, a, other, b, evidence, factor)


def name_similarity(a: str, b: str) -> float:
    """Similarity of two names, 0 to 1: letters in order, or words in common."""
    words = [re.findall(r"[a-z]+|\d+", name.casefold()) for name in (a, b)]
    letters = SequenceMatcher(None, "".join(words[0]), "".join(words[1])).ratio()
    sets = [set(w) for w in words]
    common = len(sets[0] & sets[1]) / max(1, min(map(len, sets)))
    return max(letters, 0.9 * common)


def _values(one: SiloTable, a: Column, other: SiloTable, b: Column) -> tuple[float, str, float]:
    """Similarity of the values, the evidence as text, and a factor between their units."""
    x, y = one.frame[a.name].dropna(), other.frame[b.name].dropna()
    if not len(x) or not len(y):
        return 0.0, "no values to compare", 1.0
    if a.kind == "category":
        levels = set(x), set(y)
        share = len(levels[0] & levels[1]) / len(levels[0] | levels[1])
        return share, f"{share:.0%} of the levels in common", 1.0
    numbers = [np.asarray(v.astype("int64") if a.kind == "date" else v, float) for v in (x, y)]
    for i, (table, column) in enumerate(((one, a), (other, b))):
        if link := table.declared.links.get(column.name):
            numbers[i] = link.factor * numbers[i] + link.offset
    plain = _overlap(*numbers)
    best = max(CONVERSIONS.items(), key=lambda unit: _overlap(numbers[0], numbers[1] * unit[1]))
    converted = _overlap(numbers[0], numbers[1] * best[1])
    if a.kind == "number" and converted > plain + 0.5:
        return converted, f"ranges overlap by {converted:.0%} after {best[0]}", best[1]
    return plain, f"ranges overlap by {plain:.0%}", 1.0


def _overlap(x: np.ndarray, y: np.ndarray) -> float:
    """Share of the joint range between the 5 % and 95 % quantiles that both have."""
    (a, b), (c, d) = np.quantile(x, [0.05, 0.95]), np.quantile(y, [0.05, 0.95])
    whole = max(b, d) - min(a, c)
    return float(max(0.0, min(b, d) - max(a, c)) / whole) if whole > 0 else float(a == c)
