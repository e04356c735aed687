"""Peers that a silo trusts: public keys that its administrator compared and pinned.

The operator carries all messages between silos. Were its word enough for who is who, it could play
a silo, and two made-up silos beside a real one would show the sums of the real one. So a silo takes
part in a secure sum only with silos whose keys it pinned, itself among them.

SILO/peers.json   name → public key

A list of peers, as the operator hands it out, is a text of lines: kind of key, key, name.
"""

from collections.abc import Mapping
from pathlib import Path

from flic.errors import ConfigError, FederationError
from flic.files import read_bytes, write_json
from flic.flower.keys import fingerprint, line_of, public_line, read_private
from flic.settings import damaged, read_object

FILE = "peers.json"
_COMPARED = "flic silo trust SILO LIST --compared"


def peers_text(lines: Mapping[str, str]) -> str:
    """A list of peers to hand out."""
    return "".join(f"{line} {name}\n" for name, line in sorted(lines.items()))


def read_peers(path: Path) -> dict[str, str]:
    """Names and public keys of a list that somebody handed out."""
    try:
        content = read_bytes(path).decode()
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{path} cannot be read ({error}); expected the list that flic coordinator keys wrote."
        ) from None
    found: dict[str, str] = {}
    for line in filter(None, map(str.strip, content.splitlines())):
        kind, key, name = [*line.split(maxsplit=2), "", ""][:3]
        if not name or name in found:
            raise ConfigError(
                f"{path} has the line {line[:60]!r}; expected kind of key, key and a name of its "
                "own, as flic coordinator keys writes them."
            )
        found[name] = public_line(f"{kind} {key}".encode(), source=f"the key of {name!r} in {path}")
    if len({*found.values()}) < len(found):
        raise ConfigError(f"{path} has one key under two names; expected a key for each silo.")
    return found


def pinned_peers(folder: Path) -> dict[str, str]:
    """Public keys by name, as the silo's administrator pinned them."""
    path = folder / FILE
    if not path.exists():
        return {}
    found = read_object(path)
    if not all(isinstance(line, str) for line in found.values()):
        raise damaged(path, "a key is none")
    return {n: public_line(line.encode(), source=f"{n!r} in {path}") for n, line in found.items()}


def pin(folder: Path, lines: Mapping[str, str]) -> None:
    """Trust these silos from now on, beside those that are trusted already.

    Raises:
        ConfigError: the silo itself is not among them, or one is known by another key or name.
    """
    own, known = line_of(read_private(folder / "key")), pinned_peers(folder)
    if own not in lines.values():
        raise ConfigError(
            f"the list lacks this silo's own key, {fingerprint(own)}; expected it among the "
            "others, under the name by which they know it. Ask the operator for a list made after "
            "this silo was admitted."
        )
    for name, line in lines.items():
        if known.get(name, line) != line:
            raise ConfigError(
                f"silo {name!r} is pinned with the key {fingerprint(known[name])} and the list has "
                f"{fingerprint(line)}; expected the same. If that silo says that it made a new "
                f"key, remove its line from {folder / FILE} and give the command again."
            )
    every = {**known, **lines}
    if len({*every.values()}) < len(every):
        raise ConfigError(
            f"{folder / FILE} would have one key under two names; expected a key for each silo, or "
            "one could count as two. Ask the operator why the name changed; remove the old line."
        )
    write_json(folder / FILE, every)


def refuse_strangers(silo: str, invited: list[str], pinned: Mapping[str, str]) -> None:
    """Refuse a sum with silos whose keys were not pinned."""
    strangers = ", ".join(map(repr, sorted({*invited} - {*pinned})))
    if strangers:
        raise FederationError(
            f"silo {silo!r} is asked for a secure sum with {strangers[:200]}, whose keys it "
            "does not know; expected silos that its administrator trusts. Ask the operator for the "
            f"list of keys, compare fingerprints, and type: {_COMPARED}"
        )
