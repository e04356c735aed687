"""History of the rows whose sums a silo sent, so that it sends no sums of almost the same ones.

Sums of two tables that differ by one row differ by that row, and so do those of two classes. A silo
therefore keeps a digest of every cell that its sums were of, in its own folder, and refuses to tell
sums of rows that differ from those behind any earlier sum by a few.

With secure sums a silo also keeps who else was behind each sum: sums over several sets of silos can
show the part of one (`refuse_subtraction`).

SILO/told/RUN.safetensors   digests of cells by row and feature, the class of each row, and the
                            members behind each sum that was unmasked
SILO/told/secret            the key of all digests: without it nobody can tell what they are of
"""

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import blake2b
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from flic.data.client_data import ClientData, Split
from flic.errors import FederationError
from flic.files import make_folder, parse_json, read_bytes, write_atomically
from flic.flower.cells import Cells
from flic.settings import damaged
from flic.silos.encoding import EncodedSilo, in_shared_units, linked_names

SECRET, SECRET_BYTES = "secret", 32

_COPY = "Restore it from a copy: without it the silo cannot know what it told."


Sets = Mapping[str, Mapping[str, Sequence[Sequence[str]]]]
"""Step → what was summed ("" all of it, a tensor, a column's digest) → members, set by set."""


@dataclass(frozen=True)
class Told:
    """Rows that a run told of: training rows in sums, held-out rows in figures."""

    train: Cells
    held_out: Cells
    rows: str  # a digest of all of them
    beginnings: int = 1  # and how often it told sums, each time as if it were another run
    sets: "Sets" = field(default_factory=dict)  # behind the sums that were unmasked

    @classmethod
    def of(cls, features: Sequence[str], client: ClientData, *, key: bytes) -> "Told":
        """Rows of a client; the label of those held out is one more feature."""
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

    def refuse_subtraction(
        self,
        run: str,
        step: str,
        behind: Mapping[str, frozenset[str]],
        *,
        least: int,
        min_rows: int,
    ) -> None:
        """Refuse to unmask a sum over other silos than an earlier one of the same rows.

        Sums over several sets can show the part of one silo, though each silo finds its own sums
        harmless: of seven, all less three less three others leave one, and no silo is in all three
        sums. A silo knows of no sums that it is not in. So each is in sums of one set alone. Then
        no two sets have a common member, and whatever is made of the sums by adding and subtracting
        has all of a set or nobody of it.

        Args:
            run: the run.
            step: the round whose sum it is; only sums of the same numbers can be subtracted.
            behind: the members behind all that the silo adds, and behind each part of it.
            least: members that every set must have.
            min_rows: rows by which tables must differ not to count as the same.
        """
        for label, members in behind.items():
            before = self._sets_before(run, step, label, least, min_rows)
            apart = frozenset[str]().union(*(members ^ own for own in before))
            if len(members) < least:
                raise FederationError(
                    f"silo {self._silo!r} is asked to unmask a sum of {len(members)} silos; "
                    f"expected {least} at least (min_holders). Wait for more silos."
                )
            if apart:
                raise FederationError(
                    f"silo {self._silo!r} is asked to unmask a sum of {len(members)} silos and "
                    f"was in a sum of the same rows without, or with, "
                    f"{', '.join(sorted(apart))[:200]}; expected the same silos as before, since "
                    "sums over different sets can show the part of one. Begin with the same silos."
                )

    def keep_sets(self, run: str, step: str, behind: Mapping[str, frozenset[str]]) -> None:
        """Remember the members behind a sum before it is unmasked."""
        told = self.told_in(run)
        assert told is not None  # its rows were kept before they were masked
        known = {label: [*sets] for label, sets in told.sets.get(step, {}).items()}
        for label, members in behind.items():
            if sorted(members) not in known.setdefault(label, []):
                known[label].append(sorted(members))
        self.keep(replace(told, sets={**told.sets, step: known}), run)

    def _sets_before(
        self, run: str, step: str, label: str, least: int, min_rows: int
    ) -> list[frozenset[str]]:
        """Members behind sums of the same rows, or nearly so, in this run and in others."""
        own = self.told_in(run)
        assert own is not None
        others = (o for o in map(self._load, self._others(run)) if label in o.sets.get(step, {}))
        alike = [own] + [
            other
            for other in others
            if own.train.has_sums_of(other.train, least=least)
            or own.train.changed(other.train, least=min_rows)
        ]
        return [frozenset(s) for told in alike for s in told.sets.get(step, {}).get(label, [])]

    def refuse_too_many(self, run: str, beginnings: int, *, most: int) -> None:
        """Refuse a run beyond those that the silo's owner allows; one begun anew is one more."""
        others = sum(self._load(path).beginnings for path in self._others(run))
        if others + beginnings > most:
            raise FederationError(
                f"silo {self._silo!r} told sums in {others + beginnings - 1} runs (a run that "
                f"begins anew counts again); expected at most {most} (max_runs), since every run "
                "tells more of the rows. If you agree to more, raise max_runs in silo.toml."
            )

    def rows_of(self, features: Sequence[str], client: ClientData) -> Told:
        """Digests of the rows that a run of this client tells of."""
        return Told.of(features, client, key=self._secret)

    def held_out_of(self, silo: EncodedSilo) -> Told:
        """Digests of the held-out rows of a run that tells figures alone."""
        found = self.rows_of_network(silo)
        nothing = replace(
            found.train, digests=found.train.digests[:0], classes=found.train.classes[:0]
        )
        return replace(found, train=nothing)

    def rows_of_network(self, silo: EncodedSilo) -> Told:
        """Digests of the rows of a run that trains a network.

        They are of cells as linked columns have them: a network's are in units of the whole table.
        """
        names = linked_names(silo.encoder, silo.declared, silo.name)
        return replace(self.rows_of(names, in_shared_units(silo, silo.name)), beginnings=0)

    def told_in(self, run: str) -> Told | None:
        """Digests of the rows that a run told of; None if it told of none yet."""
        path = self._file(run)
        return self._load(path) if path.exists() else None

    def are_of(self, told: Told, client: ClientData) -> bool:
        """Return whether that was told of these rows."""
        return told.rows == _digest_of_rows(client, self._secret)

    def begin(self, told: Told, run: str) -> None:
        """Remember what a run is of; its sums stay known where its folder was moved away."""
        known = self.told_in(run)
        self.keep(replace(told, sets=known.sets if known is not None else {}), run)

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
            "sets": json.dumps(told.sets),
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
        if not path.exists():
            if files := self._files():
                raise self._of_another_key(files[0])
            make_folder(self._folder)
            write_atomically(path, secrets.token_bytes(SECRET_BYTES))
        try:
            found = read_bytes(path)
        except OSError as error:
            raise damaged(path, error, remedy=_COPY) from error
        if len(found) != SECRET_BYTES:
            raise damaged(path, f"it has {len(found)} bytes", remedy=_COPY)
        return found

    @property
    def rounding_key(self) -> bytes:
        """A key by which figures are rounded: the folder's own, so that nobody can do it again."""
        return blake2b(b"figures", key=self._secret, digest_size=SECRET_BYTES).digest()

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
                    parse_json(facts.get("sets", "{}")),
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


def _digest_of_rows(client: ClientData, key: bytes) -> str:
    found = blake2b(key=key, digest_size=16)
    for rows in (client.train, client.test):
        for tensor in (rows.x, rows.y):
            found.update(repr((tensor.dtype, tensor.shape)).encode())
            found.update(tensor.contiguous().numpy().tobytes())
    return found.hexdigest()


def _signed(digests: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(digests.view(np.int64).copy())
