"""A silo's own folder: where its rows lie, its limits on what leaves, and what it has learnt.

SILO/
  silo.toml             name, data file and label keys; a person may edit it
  agreed.json           the federation's settings for which it was shown what will leave
  log.jsonl             a line per visit: what was done, and why something was refused
  runs/RUN/             what it keeps of each run (flic.flower.silo_run)
  told/                 of which rows it told sums (flic.flower.sums_history)
  key peers.json        its private key, and keys of silos it trusts (flic.flower.pinned_keys)
"""

from pathlib import Path
from typing import Any, Self

import numpy as np

from flic.data.client_data import ClientData
from flic.errors import ConfigError, FederationError, RunFolderError
from flic.files import write_atomically, write_json
from flic.flower.federation_settings import (
    FederationSettings,
    federation_settings,
)
from flic.flower.silo_engine import LinkedSiloEngine
from flic.flower.silo_file import FILE, SiloFile, silo_file, stated
from flic.flower.silo_run import FACTS, ROWS, SiloRun
from flic.flower.sums_history import SumsHistory
from flic.method_settings import Scatter
from flic.methods.linked.agreement import least_of
from flic.seeding import derive_seed
from flic.settings import read_object, read_toml, validated
from flic.silos.encoding import EncodedSilo, encode
from flic.silos.fitted import FittedClient
from flic.tables import Client, SiloTable, load_client

AGREED_FILE = "agreed.json"

MOST_RUNS = 100
"""Runs that lie in a silo's folder at most."""


class SiloFolder:
    """One silo, as its folder says."""

    def __init__(self, folder: Path, file: SiloFile) -> None:
        self.folder = folder
        self.file = file

    @classmethod
    def create(
        cls,
        folder: Path,
        client: Client,
        *,
        test_share: float = 0.25,
        scatter: Scatter | None = None,
        agreed: FederationSettings | None = None,
    ) -> Self:
        """A new folder for a client whose data file is named from there.

        `agreed` are the settings that the silo was shown: it takes part in no other federation.
        """
        if (folder / FILE).exists():
            raise ConfigError(
                f"{folder / FILE} exists already; expected none, since it would be overwritten. "
                "Edit it, move it away, or choose another folder."
            )
        own = {"test_share": test_share} | ({} if scatter is None else {"scatter": scatter})
        file, text = silo_file(client, own)
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / FILE, text.encode())
        if agreed is not None:
            write_json(folder / AGREED_FILE, agreed.model_dump(mode="json"))
        return cls(folder, file)

    @classmethod
    def open(cls, folder: Path) -> Self:
        """The silo of a folder."""
        file = validated(SiloFile, read_toml(folder / FILE), source=str(folder / FILE))
        return cls(folder, file)

    @property
    def name(self) -> str:
        """Name of the silo, from which its random numbers come too."""
        return self.file.name

    def read(self, settings: FederationSettings) -> tuple[SiloTable, list[str]]:
        """The silo's table and notices about it.

        Raises:
            DataError: listing every problem of the rows.
        """
        client = Client(**stated(self.file))
        return load_client(client, self.folder, task=settings.common_task, labels=settings.classes)

    def encoded(self, table: SiloTable, settings: FederationSettings) -> EncodedSilo:
        """Training and held-out rows."""
        rows, least = held_out(table, self.file.test_share), self.min_rows(settings)
        if settings.sends_sums and len(rows[0]) < least:
            raise FederationError(
                f"silo {self.name!r} has {len(rows[0])} training rows; expected {least} at least "
                "(min_rows), since all that leaves would be of these few. Wait for more rows."
            )
        return encode([table], settings.common_task, {table.name: rows}).silos[0]

    @property
    def history(self) -> SumsHistory:
        """Rows that sums were told of, in all runs."""
        return SumsHistory(self.folder, self.name)

    # ---- limits of what leaves -----------------------------------------------------------

    def min_rows(self, settings: FederationSettings) -> int:
        """Rows behind whatever leaves: the silo has the last word on what its rows may show."""
        return max(settings.min_rows, self.file.min_rows)

    def min_holders(self, settings: FederationSettings) -> int:
        """Silos behind every sum: the silo has the last word on who it hides among."""
        return max(settings.min_holders, self.file.min_holders)

    def max_numbers_per_value(self, settings: FederationSettings) -> float:
        """Numbers per value that leave at most: the silo's own limit, or the federation's."""
        both = (
            self.file.max_numbers_per_value,
            settings.method_settings.linked.max_numbers_per_value,
        )
        return min(limit for limit in both if limit is not None)

    def linked_engine(self, client: ClientData, settings: FederationSettings) -> LinkedSiloEngine:
        """The engine of linked columns under the stricter of the silo's and the agreed limits."""
        agreed, own = settings.method_settings.linked, self.file
        stricter = {
            "min_rows": self.min_rows(settings),
            "scatter": least_of(agreed.scatter, own.scatter),
            "max_numbers_per_value": self.max_numbers_per_value(settings),
        }
        return LinkedSiloEngine(client, settings, agreed.model_copy(update=stricter))

    @property
    def was_shown(self) -> bool:
        """True if it was shown what leaves it under the federation's settings."""
        return (self.folder / AGREED_FILE).exists()

    # ---- runs ----------------------------------------------------------------------------

    def run(self, name: str, settings: FederationSettings) -> SiloRun:
        """The folder of a run, made at the first visit."""
        self._refuse_other_than_agreed(settings)
        folder = self.folder / "runs" / name
        if not all((folder / file).exists() for file in (FACTS, ROWS)):
            self._refuse_endless_runs()
            table, _ = self.read(settings)
            encoded, least = self.encoded(table, settings), self.min_rows(settings)
            if not settings.sends_sums:  # what sums are of is known once columns are linked
                history, is_masked = self.history, settings.masks_sums
                told = history.rows_of_network if is_masked else history.held_out_of
                history.begin(told(encoded), run=name)
            SiloRun.create(folder, table, encoded, settings, least=least)
        found = SiloRun.open(folder)
        if found.settings.agreement != settings.agreement:
            raise FederationError(
                f"silo {self.name!r} is asked to go on with run {name} under another task, "
                "network, seed or min_rows; expected those it began with. Begin a new run."
            )
        return found

    def _refuse_endless_runs(self) -> None:
        """Refuse to begin more runs than a disk should hold: each keeps a copy of the rows."""
        if len(self._runs()) >= MOST_RUNS:
            raise FederationError(
                f"silo {self.name!r} has {MOST_RUNS} runs in {self.folder / 'runs'}; expected "
                "fewer, since each keeps a copy of the rows. Move those that you do not need away."
            )

    def _refuse_other_than_agreed(self, settings: FederationSettings) -> None:
        """Refuse settings other than those shown at init, for which it was said what leaves."""
        if not self.was_shown:
            return
        path = self.folder / AGREED_FILE
        agreed = federation_settings(read_object(path), source=str(path))
        if agreed.agreement != settings.agreement:
            raise FederationError(
                f"silo {self.name!r} is asked for method {settings.method!r} under settings other "
                f"than those it agreed to (method {agreed.method!r}); expected these. If you agree "
                f"to the new ones, remove {path} and see what they send: flic silo init elsewhere "
                "with their --federation."
            )

    def model(self) -> FittedClient:
        """The silo's newest model, which reads and predicts raw rows."""
        return self.newest().model()

    def newest(self) -> SiloRun:
        """The run with the newest model."""
        newest = max(self._runs(), key=lambda run: run.changed, default=None)
        if newest is None or not newest.rounds:
            raise RunFolderError(
                f"silo {self.name!r} has no model yet; expected a finished round in {self.folder}. "
                "Take part in a federation first."
            )
        return newest

    def status(self) -> dict[str, Any]:
        """Name, and by run the silo's rounds, features that others have too, and what is said."""
        runs = self._runs()
        rounds = {run.folder.name: max(run.rounds, default=0) for run in runs}
        links = {run.folder.name: run.links for run in runs if run.links}
        notes = {run.folder.name: run.notes for run in runs if run.notes}
        return {"name": self.name, "rounds": rounds, "links": links, "notes": notes}

    def _runs(self) -> list[SiloRun]:
        found = (path.parent for path in sorted((self.folder / "runs").glob(f"*/{FACTS}")))
        return [SiloRun.open(folder) for folder in found]


def held_out(table: SiloTable, share: float) -> tuple[np.ndarray, np.ndarray]:
    """Positions of a silo's training rows and of the rows it is measured on.

    In every class, and in every tenth of a response's range, those with the smallest digests of
    what is in them: no row moves because of the order of the table, and few because of others.
    """
    cells = table.frame.map(str).to_numpy(object)
    digests = np.array([derive_seed(0, *row) for row in cells])
    strata = table.y
    if strata.dtype.kind == "f":
        strata = np.searchsorted(np.quantile(strata, np.arange(1, 10) / 10), strata)
    held = np.zeros(len(table), bool)
    for stratum in np.unique(strata):
        rows = np.flatnonzero(strata == stratum)
        count = round(share * len(rows))
        if count:  # rows that are the same stay together
            held[rows] = digests[rows] <= np.sort(digests[rows])[count - 1]
    return np.flatnonzero(~held), np.flatnonzero(held)
