"""Cache of a fit: its finished parts on disk, so that the same command goes on after `kill -9`.

.NAME.unfinished/      beside the folder of the fit; deleted once that is written
  .lock                held by the process that works on the fit
  ORIGIN/              digest of settings, tables and code: a different fit reads none of it
    KEY.safetensors    predictions of held-out rows by one candidate, learnt from some rows
"""

from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from flic.digests import digest_of, digest_of_arrays, digest_of_code
from flic.files import alone_in, make_folder, write_atomically
from flic.silos.fit_settings import FitSettings
from flic.silos.splits import Rows
from flic.tables import TableFederation

Said = dict[str, np.ndarray]
"""client → predictions of its held-out rows."""


@dataclass(frozen=True)
class FitCache:
    """Finished parts of one fit."""

    folder: Path

    @classmethod
    def of(cls, folder: Path, federation: TableFederation, settings: FitSettings) -> "FitCache":
        """The cache of a fit of these tables with these settings, by this code."""
        made_with = [settings.model_dump(mode="json"), federation.digest]
        return cls(folder / digest_of([*made_with, digest_of_code("silos", "tables")])[:32])

    @property
    def is_begun(self) -> bool:
        """True if an interrupted fit left finished parts."""
        return any(self.folder.glob("*.safetensors"))

    @contextmanager
    def alone(self) -> Generator[None]:
        """Keep a second process from fitting into the same folder."""
        make_folder(self.folder)
        with alone_in(self.folder.parent):
            yield

    def find(self, key: str, clients: Sequence[str]) -> Said | None:
        """Predictions kept under a key for these clients; None if missing or damaged."""
        names = [str(number) for number in range(len(clients))]
        try:
            with safe_open(self.folder / f"{key}.safetensors", framework="numpy") as file:
                arrays = {name: file.get_tensor(name) for name in names}
                sound = (file.metadata() or {}).get("sha256") == digest_of_arrays(arrays)
        except (SafetensorError, OSError):
            return None
        return dict(zip(clients, arrays.values(), strict=True)) if sound else None

    def keep(self, key: str, said: Said) -> None:
        """Write predictions under a key, whole or not at all."""
        arrays = {str(number): array for number, array in enumerate(said.values())}
        content = save(arrays, {"sha256": digest_of_arrays(arrays)})
        # On a full disk the part is not kept; the fit can still finish.
        with suppress(OSError):
            write_atomically(self.folder / f"{key}.safetensors", content)


def key_of(candidate: str, rows: Rows, *, seed: int) -> str:
    """Key of a candidate learnt from some rows with a seed."""
    arrays = {
        f"{client} {part}": own
        for client, parts in rows.items()
        for part, own in zip(("train", "test"), parts, strict=True)
    }
    return digest_of([candidate, seed, digest_of_arrays(arrays)])[:32]
