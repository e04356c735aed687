"""Keys of silos: each is registered with Flower once, under a name, and for good.

DIR/
  keys.json              public key → name, of all that were ever admitted, for the log
  flower/admitting.pub   the key that is being registered
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flic.errors import ConfigError, FederationError
from flic.files import alone_in, write_atomically, write_json
from flic.flower.keys import read_public
from flic.flower.members import Members
from flic.settings import read_object

KEYS = "keys.json"


@dataclass(frozen=True)
class Admission:
    """Lets silos in by their keys, and out again."""

    folder: Path
    members: Members
    ensure_running: Callable[[], None]
    ask: Callable[..., dict[str, Any]]  # a command of Flower's, by its words

    def admit(self, name: str, key: str) -> int:
        """Let the silo with this key file take part; the number of its node."""
        line = read_public(Path(key))
        known = self.lines()
        if known.get(name) == line:
            node = self.members.silos[name]
            self.members.admit(name, node)  # which forgives its offences
            return node
        self._refuse_taken(name, key, line, known)
        self.ensure_running()
        with alone_in(self.folder / "flower"):
            node = self._register(line)
            write_json(self.folder / KEYS, {**self._keys(), line: name})
            self.members.admit(name, node)
            self._intent.unlink()
        return node

    def lines(self) -> dict[str, str]:
        """Public keys of the silos that are admitted, by name."""
        latest = {name: own for own, name in self._keys().items()}  # the last to be admitted
        return {name: latest[name] for name in self.members.silos if name in latest}

    def revoke(self, name: str) -> None:
        """Let a silo take part no more; asked again, go on where it was interrupted."""
        node = self.members.revoke(name)  # first: it holds even where Flower does not answer
        self.ensure_running()
        with alone_in(self.folder / "flower"):
            if node in self._registered():
                self.ask("supernode", "unregister", str(node))
            self.members.forget(name)

    def _refuse_taken(self, name: str, key: str, line: str, known: dict[str, str]) -> None:
        if name in self.members.leaving:
            raise ConfigError(
                f"silo {name!r} was revoked, and Flower has not heard of it; expected it to be "
                f"done with. First run once more: flic coordinator revoke {self.folder} {name}"
            )
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
            left = self._registered() - {
                *self.members.silos.values(),
                *self.members.leaving.values(),
            }
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

    def _registered(self) -> set[int]:
        """Nodes that Flower lets in."""
        nodes = self.ask("supernode", "list")["nodes"]
        return {int(n["node-id"]) for n in nodes if n["status"] != "unregistered"}

    def _keys(self) -> dict[str, str]:
        return read_object(self.folder / KEYS)
