"""History of the rows whose sums a silo sent, so that it sends no sums of almost the same ones.

Sums of two tables that differ by one row differ by that row, and so do those of two classes. A silo
therefore keeps a digest of every cell that its sums were of, in its own folder, and refuses to tell
sums of rows that differ from those behind any earlier sum by a few.

SILO/told/RUN.safetensors   a digest per row and feature, and the class of each row
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from flic.data.client_data import Split
from flic.errors import FederationError
from flic.files import parse_json, write_atomically
from flic.settings import damaged

_ODD = np.uint64(0x9E3779B97F4A7C15)

_RESPONSE = ""
"""Name of the response among the features, none of which is called so."""


def _bits(values: np.ndarray) -> np.ndarray:
    """Numbers as their bits, one pattern for each; −0 is 0."""
    return np.ascontiguousarray(values + 0.0).view(np.uint64)


@dataclass(frozen=True)
class Cells:
    """A digest of every cell, by feature, and the class of every row."""

    features: tuple[str, ...]
    digests: np.ndarray  # rows × features, uint64
    classes: np.ndarray  # of the rows, int64

    @classmethod
    def of(cls, features: Sequence[str], rows: Split) -> "Cells":
        """Of rows as sums are told of them; a response is one more feature."""
        values, classes = rows.x.double().numpy(), np.zeros(len(rows), np.int64)
        if rows.y.is_floating_point():
            values = np.concatenate([values, rows.y.double().numpy()[:, None]], 1)
            features = (*features, _RESPONSE)
        else:
            classes = rows.y.numpy().astype(np.int64)
        return cls(tuple(features), _bits(values) * _ODD, classes)

    def changed(self, other: "Cells", *, least: int) -> int:
        """Fewest rows by which sums of the two differ; 0 if none do, or by `least` and more.

        Sums are told of each class and, of products, of all classes. Names and order of the classes
        may be others in another federation, so the rows behind each sum are compared with those
        behind every other, and feature by feature with those that are most like them: one column
        alone may be much alike in any two classes.
        """
        both = sorted({*self.features} & {*other.features})
        own, theirs = (
            side.digests[:, [side.features.index(f) for f in both]] for side in (self, other)
        )
        counts: list[int] = []
        for a in self._sums(least) if both else ():
            alike = [b for b in other._sums(least) if abs(int(a.sum()) - int(b.sum())) < least]
            found = [_differing(own[a], theirs[b]) for b in alike]
            counts += [int(rows[-1]) for rows in found]
            counts += min(found, key=np.mean).tolist() if found else []
        return min((count for count in counts if 0 < count < least), default=0)

    def _sums(self, least: int) -> list[np.ndarray]:
        """Masks of the rows behind each sum: the classes of enough rows, and all of these."""
        every = [self.classes == c for c in np.unique(self.classes)]
        told = [rows for rows in every if rows.sum() >= least]
        return [*told, np.any(told, axis=0)] if len(told) > 1 else told


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


class SumsHistory:
    """Digests of the rows behind all sums that a silo sent, in its folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "told"

    def refuse_almost_the_same(self, cells: Cells, *, silo: str, least: int) -> None:
        """Refuse rows that differ from an earlier run's by fewer than `least`."""
        for path in sorted(self._folder.glob("*.safetensors")):
            count = cells.changed(_load(path), least=least)
            if count:
                raise FederationError(
                    f"silo {silo!r} told sums in run {path.stem} of rows that differ from these by "
                    f"{count}; expected the same rows, or {least} changed ones at least, since the "
                    "difference of both sums would show them. Take the table as it was, or wait "
                    "for more rows."
                )

    def keep(self, cells: Cells, run: str) -> None:
        """Remember what a run's sums are of."""
        self._folder.mkdir(mode=0o700, exist_ok=True)
        digests = torch.from_numpy(cells.digests.view(np.int64).copy())
        tensors = {"digests": digests, "classes": torch.from_numpy(cells.classes)}
        facts = {"features": json.dumps(list(cells.features))}
        write_atomically(self._folder / f"{run}.safetensors", save(tensors, facts))


def _load(path: Path) -> Cells:
    try:
        with safe_open(path, "np") as file:
            features = parse_json(file.metadata()["features"])
            digests = file.get_tensor("digests").view(np.uint64)
            return Cells(tuple(features), digests, file.get_tensor("classes"))
    except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
        remedy = "Restore it from a copy: without it the silo cannot know what it told."
        raise damaged(path, error, remedy=remedy) from error
