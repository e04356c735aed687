"""Keys of silos: each is registered with Flower once, under a name, and for good.

DIR/
  keys.json              name → public key of every silo that was ever admitted, for the log
  flower/admitting.pub   the key that is being registered
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flic.errors import ConfigError, FederationError
from flic.federation.checkpoint import write_atomically
from flic.flower.keys import read_public
from flic.flower.roll import Roll, write_json
from flic.report.run_folder import alone_in

KEYS = "keys.json"


@dataclass(frozen=True)
class Admission:
    """Lets silos in by their keys."""

    folder: Path
    roll: Roll
    ensure_running: Callable[[], None]
    ask: Callable[..., dict[str, Any]]  # a command of Flower's, by its words

    def admit(self, name: str, key: str) -> int:
        """Let the silo with this key file take part; the number of its node."""
        line, keys = read_public(Path(key)), self._keys()
        known = {name: keys[name] for name in self.roll.silos if name in keys}
        if known.get(name) == line:
            node = self.roll.silos[name]
            self.roll.admit(name, node)  # which forgives its offences
            return node
        self._refuse_taken(name, key, line, known)
        self.ensure_running()
        with alone_in(self.folder / "flower"):
            node = self._register(line)
            write_json(self.folder / KEYS, {**self._keys(), name: line})
            self.roll.admit(name, node)
            self._intent.unlink()
        return node

    def _refuse_taken(self, name: str, key: str, line: str, known: dict[str, str]) -> None:
        if name in known:
            raise ConfigError(
                f"silo {name!r} is admitted with another key; expected a new name, or that one "
                f"again. First run: flic coordinator revoke {self.folder} {name}"
            )
        for other, own in known.items():
            if own == line:
                raise ConfigError(f"{key} is the key of silo {other!r}; expected a key of its own.")

    @property
    def _intent(self) -> Path:
        """The key that is being registered; Flower takes it once, and we may be interrupted."""
        return self.folder / "flower" / "admitting.pub"

    def _register(self, line: str) -> int:
        if self._intent.exists() and self._intent.read_text().strip() == line:
            nodes = self.ask("supernode", "list")["nodes"]
            known = {int(n["node-id"]) for n in nodes if n["status"] != "unregistered"}
            left = known - {*self.roll.silos.values()}
            if len(left) == 1:
                return left.pop()
        write_atomically(self._intent, f"{line}\n".encode())
        try:
            return int(self.ask("supernode", "register", str(self._intent))["node-id"])
        except FederationError as error:
            if "already in use" not in str(error):
                raise
            raise ConfigError(
                "this key was revoked, and Flower takes no key a second time; expected a new one. "
                'The silo makes it with: ssh-keygen -t ecdsa -b 384 -N "" -f key'
            ) from None

    def _keys(self) -> dict[str, str]:
        return json.loads((self.folder / KEYS).read_bytes())
