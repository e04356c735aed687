"""History of the rows whose sums a silo sent, so that it sends no sums of almost the same ones.

Sums of two tables that differ by one row differ by that row, and so do those of two classes. A silo
therefore keeps a digest of every cell that its sums were of, in its own folder, and refuses to tell
sums of rows that differ from those behind any earlier sum by a few.

SILO/told/RUN.safetensors   digests of cells by row and feature, and the class of each row
SILO/told/secret            the key of all digests: without it nobody can tell what they are of
"""

import json
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from itertools import product
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from flic.data.client_data import ClientData, Split
from flic.errors import FederationError
from flic.files import make_folder, parse_json, write_atomically
from flic.settings import damaged

SECRET, SECRET_BYTES = "secret", 32

_COPY = "Restore it from a copy: without it the silo cannot know what it told."

_ODD = np.uint64(0x9E3779B97F4A7C15)

_RESPONSE = ""
"""Name of the response among the features, none of which is called so."""

_FEW_VALUES = 10
"""Columns of so many values are alike by chance, and known again by name alone."""


@dataclass(frozen=True)
class Cells:
    """A digest of every cell, by feature, and the class of every row."""

    features: tuple[str, ...]  # digests of their names
    digests: np.ndarray  # rows × features, uint64
    classes: np.ndarray  # of the rows, int64

    @classmethod
    def of(cls, features: Sequence[str], rows: Split, *, key: bytes) -> "Cells":
        """Of rows as sums are told of them; a response is one more feature."""
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

    def changed_as_a_whole(self, other: "Cells", *, least: int) -> int:
        """Fewest rows by which the tables differ, whatever the classes; 0 as in `changed`."""
        own, theirs = self._in_common(other)
        if not own.size or abs(len(own) - len(theirs)) >= least:
            return 0
        *columns, rows = _differing(own, theirs).tolist()
        telling = [n for i, n in enumerate(columns) if _has_many_values(own[:, i])]
        return _fewest([rows, *telling], least)

    def _in_common(self, other: "Cells") -> tuple[np.ndarray, np.ndarray]:
        """Columns of both tables that are the same by name, or else by what is in them."""
        place = {name: j for j, name in enumerate(other.features)}
        pairs = [(i, place[name]) for i, name in enumerate(self.features) if name in place]
        rest = [
            [i for i in range(side.digests.shape[1]) if i not in known]
            for side, known in ((self, {i for i, _ in pairs}), (other, {j for _, j in pairs}))
        ]
        pairs += _by_content(self.digests, other.digests, *rest)
        return self.digests[:, [i for i, _ in pairs]], other.digests[:, [j for _, j in pairs]]

    def _told(self, least: int) -> list[np.ndarray]:
        """Masks of the classes that are told: those of enough rows."""
        every = (self.classes == c for c in np.unique(self.classes))
        return [rows for rows in every if rows.sum() >= least]


@dataclass(frozen=True)
class Told:
    """What a run told of: training rows in sums, held-out rows in figures."""

    train: Cells
    held_out: Cells
    rows: str  # a digest of all of them
    beginnings: int = 1  # and how often it was begun anew, as if it were another run

    @classmethod
    def of(cls, features: Sequence[str], client: ClientData, *, key: bytes) -> "Told":
        """Of a client's rows; of those held out the label is one more feature."""
        test = Split(client.test.x, client.test.y.double())
        train, held_out = (Cells.of(features, rows, key=key) for rows in (client.train, test))
        return cls(train, held_out, _digest_of_rows(client, key))


class SumsHistory:
    """Digests of the rows behind all sums that a silo sent, in its folder."""

    def __init__(self, folder: Path, silo: str) -> None:
        self._folder, self._silo = folder / "told", silo

    def refuse_almost_the_same(self, told: Told, run: str, *, least: int) -> None:
        """Refuse training rows that differ from another run's by fewer than `least`."""
        for path in self._others(run):
            count = told.train.changed(self._load(path).train, least=least)
            if count:
                raise FederationError(
                    f"silo {self._silo!r} told sums in run {path.stem} of rows that differ from "
                    f"these by {count}; expected the same rows, or {least} changed ones at least, "
                    "since the difference of both sums would show them. Take the table as it was, "
                    "or wait for more rows."
                )

    def refuse_too_many(self, run: str, beginnings: int, *, most: int) -> None:
        """Refuse a run beyond those that the silo's owner allows; one begun anew is one more."""
        others = sum(self._load(path).beginnings for path in self._others(run))
        if others + beginnings > most:
            raise FederationError(
                f"silo {self._silo!r} told sums in {others + beginnings - 1} runs, those begun "
                f"anew counted again; expected {most} at most (max_runs), since every one tells "
                "more of the rows. If you agree to more, raise max_runs in silo.toml."
            )

    def rows_of(self, features: Sequence[str], client: ClientData) -> Told:
        """What a run of these rows tells of."""
        return Told.of(features, client, key=self._secret)

    def told_in(self, run: str) -> Told | None:
        """What a run told of; None if nothing yet."""
        path = self._file(run)
        return self._load(path) if path.exists() else None

    def are_of(self, told: Told, client: ClientData) -> bool:
        """Return whether that was told of these rows."""
        return told.rows == _digest_of_rows(client, self._secret)

    def keep(self, told: Told, run: str) -> None:
        """Remember what a run's sums are of."""
        tensors = {
            "train": _signed(told.train.digests),
            "classes": torch.from_numpy(told.train.classes),
            "held_out": _signed(told.held_out.digests),
        }
        facts = {
            "key": self._known_key,
            "rows": told.rows,
            "beginnings": str(told.beginnings),
            "features": json.dumps([told.train.features, told.held_out.features]),
        }
        write_atomically(self._file(run), save(tensors, facts))

    def are_almost_held_out(self, told: Told, run: str, *, least: int) -> bool:
        """Return whether held-out rows differ from another run's by fewer than `least`."""
        others = (self._load(path).held_out for path in self._others(run))
        return any(told.held_out.changed_as_a_whole(other, least=least) for other in others)

    def _others(self, run: str) -> list[Path]:
        return [path for path in self._files() if path.stem != run]

    def _files(self) -> list[Path]:
        return sorted(self._folder.glob("*.safetensors"))

    def _file(self, run: str) -> Path:
        return self._folder / f"{run}.safetensors"

    @cached_property
    def _secret(self) -> bytes:
        """The key of the digests, made before the first of them."""
        path = self._folder / SECRET
        if not path.exists() and not self._files():
            make_folder(self._folder)
            write_atomically(path, secrets.token_bytes(SECRET_BYTES))
        try:
            found = path.read_bytes()
        except OSError as error:
            raise damaged(path, error, remedy=_COPY) from error
        if len(found) != SECRET_BYTES:
            raise damaged(path, f"it has {len(found)} bytes", remedy=_COPY)
        return found

    @property
    def _known_key(self) -> str:
        """A digest by which files of the same key are known."""
        return blake2b(b"", key=self._secret, digest_size=8).hexdigest()

    def _load(self, path: Path) -> Told:
        try:
            with safe_open(path, "np") as file:
                facts = file.metadata()
                if facts.get("key") != self._known_key:
                    raise self._of_another_key(path)
                train, held_out = map(tuple, parse_json(facts["features"]))
                digests = {n: file.get_tensor(n).view(np.uint64) for n in ("train", "held_out")}
                classes = file.get_tensor("classes")
                nowhere = np.zeros(len(digests["held_out"]), np.int64)
                return Told(
                    Cells(train, digests["train"], classes),
                    Cells(held_out, digests["held_out"], nowhere),
                    facts["rows"],
                    int(facts["beginnings"]),
                )
        except (SafetensorError, OSError, KeyError, TypeError, ValueError, AttributeError) as error:
            raise damaged(path, error, remedy=_COPY) from error

    def _of_another_key(self, path: Path) -> FederationError:
        return FederationError(
            f"silo {self._silo!r} cannot compare its rows with {path}, which an earlier version of "
            f"flic wrote or another {SECRET} was the key of; expected digests under this "
            "folder's own. Earlier versions kept rows readable: remove the file once no federation "
            "can be compared with that run, or put the right secret beside it."
        )


def _keyed(column: np.ndarray, key: bytes) -> np.ndarray:
    """Digests of numbers under a key, one for each value; −0 is 0."""
    values, which = np.unique(column + 0.0, return_inverse=True)
    found = (blake2b(v.tobytes(), key=key, digest_size=8).digest() for v in values)
    return np.frombuffer(b"".join(found), np.uint64)[which]


def _digest_of_rows(client: ClientData, key: bytes) -> str:
    found = blake2b(key=key, digest_size=16)
    for rows in (client.train, client.test):
        for tensor in (rows.x, rows.y):
            found.update(repr((tensor.dtype, tensor.shape)).encode())
            found.update(tensor.contiguous().numpy().tobytes())
    return found.hexdigest()


def _signed(digests: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(digests.view(np.int64).copy())


def _fewest(counts: Iterable[int], least: int) -> int:
    return min((count for count in counts if 0 < count < least), default=0)


def _has_many_values(column: np.ndarray) -> bool:
    return len(np.unique(column)) > _FEW_VALUES


def _by_content(
    own: np.ndarray, theirs: np.ndarray, ours: Sequence[int], others: Sequence[int]
) -> list[tuple[int, int]]:
    """Places of columns of two tables, under other names, most of whose cells are the same."""
    others = [j for j in others if _has_many_values(theirs[:, j])]
    found: list[tuple[int, int]] = []
    for i in ours if others else ():
        shares = np.isin(theirs[:, others], own[:, i]).mean(0)
        if shares.max() >= 0.5 and _has_many_values(own[:, i]):
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
    """How much classes of two tables have in common: cells, common values counting for less."""
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
    place = np.arange(1, width + 1, dtype=np.uint64) * _ODD
    cells = np.concatenate([(side ^ place).ravel() for side in (a, b)])
    feature = np.tile(np.arange(width), len(a) + len(b))
    _, first, which = np.unique(cells, return_index=True, return_inverse=True)
    more = np.bincount(which[: a.size], minlength=len(first)) - np.bincount(
        which[a.size :], minlength=len(first)
    )
    only = [
        np.bincount(feature[first], weights=side.clip(0), minlength=width) for side in (more, -more)
    ]
    return np.maximum(*only).astype(int)
