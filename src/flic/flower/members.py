"""Members of a federation: admitted silos with their nodes, and the offences of each.

DIR/
  silos.json        name → node, by which alone an answer is given a name; and whether it was
                    revoked, until Flower has heard of it
  offences.json     refused updates of each silo, and the last reason
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flic.errors import ConfigError
from flic.files import write_json
from flic.flower.log import note
from flic.settings import damaged, read_object

SILOS, OFFENCES = "silos.json", "offences.json"


@dataclass(frozen=True)
class Members:
    """The list of a coordinator's silos, as the files say now: they may change during a run."""

    folder: Path
    max_offences: int

    def create(self) -> None:
        """A list with nobody on it."""
        write_json(self.folder / SILOS, {})

    @property
    def silos(self) -> dict[str, int]:
        """Node of every admitted silo."""
        return {name: node for name, (node, revoked) in self._entries().items() if not revoked}

    @property
    def leaving(self) -> dict[str, int]:
        """Node of every silo that was revoked, where Flower may not have heard of it."""
        return {name: node for name, (node, revoked) in self._entries().items() if revoked}

    def admit(self, name: str, node: int) -> None:
        """Let a silo take part, or do so again; old offences are forgiven."""
        others = {n: other for n, other in self.silos.items() if n != name}
        if node in others.values():
            raise ConfigError(
                f"silo {name!r} has the key of silo {_name_of(others, node)!r}; expected a key of "
                "its own. Make one with: flic silo init"
            )
        write_json(self.folder / SILOS, {**read_object(self.folder / SILOS), name: {"node": node}})
        offences = self._offences()
        if offences.pop(name, None) is not None:
            write_json(self.folder / OFFENCES, offences)
        note(self.folder, "admitted", silo=name)

    def revoke(self, name: str) -> int:
        """Let a silo take part no more; the number of its node, until it is forgotten."""
        silos = read_object(self.folder / SILOS)
        if name not in silos:
            known = ", ".join(map(repr, silos)) or "none so far"
            raise ConfigError(
                f"silo {name!r} is not admitted, or not any more; expected one of {known}. Nothing "
                "is left to do, unless the name is wrong."
            )
        if name in self.silos:
            silos[name]["revoked"] = True
            write_json(self.folder / SILOS, silos)
            note(self.folder, "revoked", silo=name)
        return self.leaving[name]

    def forget(self, name: str) -> None:
        """Drop a silo that was revoked, once its node is of no use to anybody."""
        silos = read_object(self.folder / SILOS)
        del silos[name]
        write_json(self.folder / SILOS, silos)

    def welcome(self) -> dict[str, int]:
        """Admitted silos that are not suspended, and their nodes."""
        return {name: node for name, node in self.silos.items() if not self.is_suspended(name)}

    def why_not(self, name: str) -> str | None:
        """The reason why a silo may not take part; None if it may."""
        if name not in self.silos:
            return f"silo {name!r} is not admitted any more; expected one that is. Admit it again."
        if self.is_suspended(name):
            return f"silo {name!r} is suspended; expected one that is not. Admit it again."
        return None

    def is_suspended(self, name: str) -> bool:
        """Return whether a silo offended too often."""
        return self.offences(name) >= self.max_offences

    def offences(self, name: str) -> int:
        """Number of a silo's updates that were refused."""
        return self._offences().get(name, {}).get("count", 0)

    def last_refusal(self, name: str) -> str | None:
        """The reason why the silo's latest update was not counted; None if it was."""
        return self._offences().get(name, {}).get("last")

    def offend(self, name: str, why: str, *, round: int) -> None:
        """Count a refused update against its silo."""
        offences = self._offences()
        count = offences.get(name, {}).get("count", 0) + 1
        write_json(self.folder / OFFENCES, {**offences, name: {"count": count, "last": why}})
        note(self.folder, "refused", round=round, silo=name, message=why, offences=count)
        if count == self.max_offences:
            message = f"silo {name!r} is suspended after {count} refused updates."
            note(self.folder, "suspended", round=round, silo=name, message=message)

    def clear(self, names: Iterable[str]) -> None:
        """Forget the reasons that were told, but not the offences."""
        offences = self._offences()
        told = {name for name in names if offences.get(name, {}).get("last")}
        for name in told:
            offences[name] = {"count": offences[name]["count"], "last": None}
        if told:
            write_json(self.folder / OFFENCES, offences)

    def _entries(self) -> dict[str, tuple[int, bool]]:
        """Every silo of the file: its node, and whether it was revoked."""
        try:
            silos = read_object(self.folder / SILOS)
            return {n: (int(own["node"]), bool(own.get("revoked"))) for n, own in silos.items()}
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise damaged(self.folder / SILOS, error) from error

    def _offences(self) -> dict[str, Any]:
        path = self.folder / OFFENCES
        return read_object(path) if path.exists() else {}


def _name_of(silos: Mapping[str, int], node: int) -> str:
    return next(name for name, own in silos.items() if own == node)
