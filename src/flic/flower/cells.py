"""Digests of a table's cells, which show by how many rows two tables differ."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import product

import numpy as np

from flic.data.client_data import Split

_ODD = np.uint64(0x9E3779B97F4A7C15)

_RESPONSE = ""
"""Name of the response among the features, none of which is called so."""

_FEW_VALUES = 10
"""Columns of so many values are alike by chance, and known again by name alone."""

_MOST = 0.5
"""Share of the cells of a column by which it is known again."""


@dataclass(frozen=True)
class Cells:
    """A digest of every cell, by feature, and the class of every row."""

    features: tuple[str, ...]  # digests of their names
    digests: np.ndarray  # rows × features, uint64
    classes: np.ndarray  # of the rows, int64

    @classmethod
    def of(cls, features: Sequence[str], rows: Split, *, key: bytes) -> "Cells":
        """Digests of rows; a response is one more feature."""
        values, classes = rows.x.double().numpy(), np.zeros(len(rows), np.int64)
        if rows.y.is_floating_point():
            values = np.concatenate([values, rows.y.double().numpy()[:, None]], 1)
            features = (*features, _RESPONSE)
        else:
            classes = rows.y.numpy().astype(np.int64)
        names = (blake2b(f.encode(), key=key, digest_size=8).hexdigest() for f in features)
        digests = [_keyed(values[:, i], key) for i in range(values.shape[1])]
        return cls(tuple(names), np.column_stack(digests), classes)

    def changed(self, other: "Cells", *, least: int) -> int:
        """Fewest rows by which sums of the two differ; 0 if none do, or by `least` and more.

        Sums are told of each class and, of products, of all classes. Names and order of the classes
        may be others in another federation, and two of them one. So the rows behind each sum, and
        behind those of classes that together have the same rows, are compared with those behind
        every other, and feature by feature with those that are most like them: one column alone
        may be much alike in any two classes.
        """
        own, theirs = self._in_common(other)
        counts: list[int] = []
        for a, alike in _comparable(own, theirs, self._told(least), other._told(least), least):
            found = [_differing(own[a], theirs[b]) for b in alike]
            counts += [int(rows[-1]) for rows in found]
            counts += min(found, key=np.mean).tolist() if found else []
        return _fewest(counts, least)

    def has_sums_of(self, other: "Cells", *, least: int) -> bool:
        """Return whether a sum of this table is over the same values as one of the other."""
        own, theirs = self._in_common(other)
        for a, alike in _comparable(own, theirs, self._told(1), other._told(1), least):
            if min(min(_differing(own[a], theirs[b]).tolist()) for b in alike) == 0:
                return True
        return False

    def changed_as_a_whole(self, other: "Cells", *, least: int) -> int:
        """Fewest rows by which the tables differ, whatever the classes; 0 as in `changed`."""
        own, theirs = self._in_common(other)
        if not own.size or abs(len(own) - len(theirs)) >= least:
            return 0
        *columns, rows = _differing(own, theirs).tolist()
        telling = [n for i, n in enumerate(columns) if _has_many_values(own[:, i])]
        return _fewest([rows, *telling], least)

    def _in_common(self, other: "Cells") -> tuple[np.ndarray, np.ndarray]:
        """Columns of both tables that are the same by name, or else by what is in them.

        Names may have been exchanged, so a column most of whose cells differ from those of its
        name is looked for under others too.
        """
        position = {name: j for j, name in enumerate(other.features)}
        named = [(i, position[name]) for i, name in enumerate(self.features) if name in position]
        pairs = [(i, j) for i, j in named if _are_alike(self.digests[:, i], other.digests[:, j])]
        rest = [
            [i for i in range(side.digests.shape[1]) if i not in known]
            for side, known in ((self, {i for i, _ in pairs}), (other, {j for _, j in pairs}))
        ]
        pairs += _by_content(self.digests, other.digests, *rest)
        ours, theirs = ({*side} for side in zip(*pairs, strict=True)) if pairs else (set(), set())
        pairs += [(i, j) for i, j in named if i not in ours and j not in theirs]
        return self.digests[:, [i for i, _ in pairs]], other.digests[:, [j for _, j in pairs]]

    def _told(self, least: int) -> list[np.ndarray]:
        """Masks of the classes that are told: those of enough rows."""
        every = (self.classes == c for c in np.unique(self.classes))
        return [rows for rows in every if rows.sum() >= least]


def _keyed(column: np.ndarray, key: bytes) -> np.ndarray:
    """Digests of numbers under a key, one for each value; −0 is 0."""
    values, which = np.unique(column + 0.0, return_inverse=True)
    found = (blake2b(v.tobytes(), key=key, digest_size=8).digest() for v in values)
    return np.frombuffer(b"".join(found), np.uint64)[which]


def _fewest(counts: Iterable[int], least: int) -> int:
    return min((count for count in counts if 0 < count < least), default=0)


def _has_many_values(column: np.ndarray) -> bool:
    return len(np.unique(column)) > _FEW_VALUES


def _are_alike(own: np.ndarray, theirs: np.ndarray) -> bool:
    """Return whether columns of one name are known by it: they have few values, or common ones."""
    is_telling = _has_many_values(own) and _has_many_values(theirs)
    return not is_telling or float(np.isin(theirs, own).mean()) >= _MOST


def _by_content(
    own: np.ndarray, theirs: np.ndarray, ours: Sequence[int], others: Sequence[int]
) -> list[tuple[int, int]]:
    """Positions of columns of two tables, under other names, most of whose cells are the same."""
    others = [j for j in others if _has_many_values(theirs[:, j])]
    found: list[tuple[int, int]] = []
    for i in ours if others else ():
        shares = np.isin(theirs[:, others], own[:, i]).mean(0)
        if shares.max() >= _MOST and _has_many_values(own[:, i]):
            found.append((i, others[int(shares.argmax())]))
    return found


def _comparable(
    own: np.ndarray,
    theirs: np.ndarray,
    ours: Sequence[np.ndarray],
    others: Sequence[np.ndarray],
    least: int,
) -> list[tuple[np.ndarray, list[np.ndarray]]]:
    """Masks of the rows behind each own sum, and those of theirs of nearly as many rows."""
    if not own.size or not theirs.size or not ours or not others:
        return []
    unions = _unions(_shared(own, theirs, ours, others))
    unions.append(({*range(len(ours))}, {*range(len(others))}))
    every = [
        [*told, *(np.any([told[i] for i in sorted(one[side])], axis=0) for one in unions)]
        for side, told in enumerate((ours, others))
    ]
    first, second = ({mask.tobytes(): mask for mask in side}.values() for side in every)
    near = [(a, [b for b in second if abs(int(a.sum()) - int(b.sum())) < least]) for a in first]
    return [(a, alike) for a, alike in near if alike]


def _shared(
    own: np.ndarray, theirs: np.ndarray, ours: Sequence[np.ndarray], others: Sequence[np.ndarray]
) -> np.ndarray:
    """Number of cells that classes of two tables have in common; common values count for less."""
    found = np.zeros((len(ours), len(others)))
    for a, b in zip(own.T, theirs.T, strict=True):
        values, which = np.unique(np.concatenate([a, b]), return_inverse=True)
        ids, size = np.split(which, [len(a)]), len(values)
        first, second = (
            [np.bincount(own_ids[rows], minlength=size) for rows in told]
            for own_ids, told in zip(ids, (ours, others), strict=True)
        )
        every = np.bincount(which, minlength=size)
        for (i, x), (j, y) in product(enumerate(first), enumerate(second)):
            found[i, j] += (np.minimum(x, y) / every).sum()
    return found


def _unions(shared: np.ndarray) -> list[tuple[set[int], set[int]]]:
    """Classes of two tables put together, those that have most in common first."""
    groups = [({i}, set[int]()) for i in range(shared.shape[0])]
    groups += [(set[int](), {j}) for j in range(shared.shape[1])]
    found: list[tuple[set[int], set[int]]] = []
    order = np.argsort(-shared, axis=None, kind="stable").tolist()
    for i, j in (divmod(at, shared.shape[1]) for at in order):
        both = [group for group in groups if i in group[0] or j in group[1]]
        if shared[i, j] > 0 and len(both) == 2:
            one, two = both
            found.append((one[0] | two[0], one[1] | two[1]))
            groups = [*(group for group in groups if group not in both), found[-1]]
    return found


def _joined(digests: np.ndarray) -> np.ndarray:
    """One digest per row."""
    odd = 2 * np.arange(1, digests.shape[1] + 1, dtype=np.uint64) * _ODD + np.uint64(1)
    mixed = digests ^ digests >> np.uint64(29)
    return (mixed * odd).sum(1, dtype=np.uint64)


def _differing(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Rows by which two tables differ in each feature, and in all of them together."""
    a, b = (np.column_stack([side, _joined(side)]) for side in (a, b))
    width = a.shape[1]
    # One search for all features: their digests are made to differ.
    salt = np.arange(1, width + 1, dtype=np.uint64) * _ODD
    cells = np.concatenate([(side ^ salt).ravel() for side in (a, b)])
    feature = np.tile(np.arange(width), len(a) + len(b))
    _, first, which = np.unique(cells, return_index=True, return_inverse=True)
    more = np.bincount(which[: a.size], minlength=len(first)) - np.bincount(
        which[a.size :], minlength=len(first)
    )
    only = [
        np.bincount(feature[first], weights=side.clip(0), minlength=width) for side in (more, -more)
    ]
    return np.maximum(*only).astype(int)
