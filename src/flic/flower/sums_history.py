"""History of the rows whose sums a silo sent, so that it sends no sums of almost the same ones.

Sums of two tables that differ by one row differ by that row. A silo therefore keeps a digest of
every cell that its sums were of, in its own folder, and refuses to tell sums of rows that differ
from those of an earlier run by a few.

SILO/told/RUN.safetensors   a digest per row and feature
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
from flic.errors import FederationError, RunFolderError
from flic.files import write_atomically

_ODD = np.uint64(0x9E3779B97F4A7C15)


def _bits(values: np.ndarray) -> np.ndarray:
    """Numbers as their bits, one pattern for each; −0 is 0."""
    return np.ascontiguousarray(values + 0.0).view(np.uint64)


@dataclass(frozen=True)
class Cells:
    """A digest of every cell, its row's label included, by feature."""

    features: tuple[str, ...]
    digests: np.ndarray  # rows × features, uint64

    @classmethod
    def of(cls, features: Sequence[str], rows: Split) -> "Cells":
        """Of rows as sums are told of them."""
        label = _bits(rows.y.double().numpy()) * _ODD
        values = rows.x.double().numpy()
        return cls(tuple(features), (_bits(values) ^ label[:, None]) * _ODD)

    def changed(self, other: "Cells") -> int:
        """Fewest rows by which a feature, or all that both have, differ; 0 if none does."""
        both = sorted({*self.features} & {*other.features})
        own, theirs = (
            side.digests[:, [side.features.index(f) for f in both]] for side in (self, other)
        )
        pairs = [*zip(own.T, theirs.T, strict=True), (_joined(own), _joined(theirs))]
        counts = [_differing(a, b) for a, b in pairs]
        return min((count for count in counts if count), default=0)


def _joined(digests: np.ndarray) -> np.ndarray:
    """One digest per row."""
    odd = 2 * np.arange(1, digests.shape[1] + 1, dtype=np.uint64) * _ODD + np.uint64(1)
    mixed = digests ^ digests >> np.uint64(29)
    return (mixed * odd).sum(1, dtype=np.uint64)


def _differing(a: np.ndarray, b: np.ndarray) -> int:
    """Rows that one has more than the other, the larger of the two numbers."""
    values, which = np.unique(np.concatenate([a, b]), return_inverse=True)
    counts = [
        np.bincount(part, minlength=len(values)) for part in (which[: len(a)], which[len(a) :])
    ]
    more = (counts[0] - counts[1]).clip(0).sum(), (counts[1] - counts[0]).clip(0).sum()
    return int(max(more))


class SumsHistory:
    """Digests of the rows behind all sums that a silo sent, in its folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "told"

    def refuse_almost_the_same(self, cells: Cells, *, silo: str, least: int) -> None:
        """Refuse rows that differ from an earlier run's by fewer than `least`."""
        for path in sorted(self._folder.glob("*.safetensors")):
            count = cells.changed(_load(path))
            if 0 < count < least:
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
        facts = {"features": json.dumps(list(cells.features))}
        write_atomically(self._folder / f"{run}.safetensors", save({"digests": digests}, facts))


def _load(path: Path) -> Cells:
    try:
        with safe_open(path, "np") as file:
            features = json.loads(file.metadata()["features"])
            return Cells(tuple(features), file.get_tensor("digests").view(np.uint64))
    except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
        raise RunFolderError(
            f"{path} cannot be read ({error}); expected it as flic wrote it. Restore it from a "
            "copy: without it the silo cannot know what it told."
        ) from error
