"""A silo's place in a federation: its key, and the supervised SuperNode that waits for requests.

SILO/               beside what `silo` keeps there
  key key.pub       the private key, which never leaves; the public one, for the operator
  flower/           Flower's private folder
  supernode.log .pid
"""

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography.x509 import load_pem_x509_certificate

from flic.errors import ConfigError, FederationError
from flic.files import read_bytes
from flic.flower import keys
from flic.flower.log import events
from flic.flower.ops.certificates import is_loopback
from flic.flower.ops.processes import Service, environment, script
from flic.flower.pinned_keys import pin
from flic.flower.silo_folder import SiloFolder
from flic.flower.sum_visit import KEY
from flic.notation import toml_text

NODE = re.compile(r"SuperNode ID: (\d+)")
LET_IN = re.compile(r"SuperNode ID: \d+|Connection successful|(?:Received|Sent) successfully")
ADDRESS = re.compile(r"(?P<host>\[[0-9a-fA-F:]+\]|[^:\s]+):(?P<port>\d{1,5})")

#: Signs in Flower's log that there is no use in trying again, and what they mean.
FINAL = {
    "CERTIFICATE_VERIFY_FAILED": "the coordinator's certificate is not of the authority in --ca, "
    "has ended, or is for another name. Ask the operator for ca.crt and the right name",
    "WRONG_VERSION_NUMBER": "the coordinator does not speak TLS. Ask the operator for its port",
    "[code: 2001]": "the coordinator takes no silo without a key. Leave out --insecure",
}
#: Signs that may pass: a silo is refused for 45 s after it was killed, or until it is admitted.
NOT_ADMITTED = "[code: 2004]"
NOT_REACHED = "Connection attempt failed"
PASSING = {
    NOT_ADMITTED: "the coordinator does not know this silo's key, or takes it for its former self. "
    "After a crash this passes within a minute; else ask the operator whether it is admitted",
    NOT_REACHED: "the coordinator does not answer. Ask the operator whether it runs",
}


@dataclass(frozen=True)
class ServerAddress:
    """A coordinator's address as a silo uses it, and the authority that vouches for it."""

    address: str
    authority: Path | None  # None: plain text

    @classmethod
    def of(cls, address: str, authority: Path | None, *, insecure: bool) -> "ServerAddress":
        """The coordinator's address, if it may be used like this."""
        found = ADDRESS.fullmatch(address)
        if found is None:
            raise ConfigError(f"--server {address!r}: expected HOST:PORT.")
        if insecure and not is_loopback(found["host"].strip("[]")):
            raise ConfigError(
                f"--insecure with --server {address}: plain text is for this machine alone; "
                "expected localhost. Leave out --insecure and give --ca."
            )
        if insecure == (authority is not None):
            got = "both" if insecure else "neither"
            raise ConfigError(f"got {got} of --ca and --insecure; expected --ca ca.crt.")
        if authority is not None:
            _refuse_no_certificate(authority)
        return cls(address, authority)


def _refuse_no_certificate(path: Path) -> None:
    if not path.is_file():
        raise ConfigError(f"--ca {path}: no such file; expected the operator's ca.crt.")
    try:
        load_pem_x509_certificate(read_bytes(path))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"--ca {path}: no certificate ({error}); expected the operator's ca.crt."
        ) from None


@dataclass(frozen=True)
class Membership:
    """A silo's folder as a member of a federation."""

    silo: SiloFolder

    @property
    def folder(self) -> Path:
        """The silo's folder."""
        return self.silo.folder.resolve()

    @property
    def public_key(self) -> Path:
        """The public key file, which the operator needs to admit the silo."""
        return self.folder / "key.pub"

    @property
    def service(self) -> Service:
        """The SuperNode under its supervisor."""
        return Service(
            f"silo {self.silo.name!r}",
            self.folder / "supernode.pid",
            self.folder / "supernode.log",
            f"flic silo leave {self.folder}",
        )

    def make_key(self) -> None:
        """The pair by which the coordinator will know this silo."""
        keys.create_pair(self.folder / KEY, self.public_key)

    def fingerprint(self) -> str:
        """Fingerprint of the silo's own key."""
        return keys.fingerprint(keys.read_public(self.public_key))

    def trust(self, lines: Mapping[str, str]) -> None:
        """Pin the keys of silos, the silo's own among them, for secure sums with these."""
        pin(self.folder, lines)

    def start(self, server: ServerAddress, *, seconds: float) -> int:
        """Start the SuperNode in the background; the number of its node once it is let in.

        Raises:
            FederationError: it was not let in; nothing is left running.
        """
        before = self.service.log_size()
        self.service.start(self._command(server), self._environment)
        try:
            return self._let_in(server, before, time.monotonic() + seconds)
        except BaseException:
            self.service.stop()
            raise

    def become(self, server: ServerAddress) -> None:
        """Go on as the SuperNode's supervisor, in the foreground; it tries again for ever."""
        self.service.become(self._command(server), self._environment)

    def leave(self) -> bool:
        """Stop taking part; the folder stays. False if the silo did not run."""
        return self.service.stop()

    def status(self) -> dict[str, Any]:
        """State of the silo and its last visits, ready for JSON."""
        visits = [e for e in events(self.folder) if e["event"] in ("trained", "evaluated")]
        refusals = [e for e in events(self.folder) if e["event"] in ("refused", "failed")]
        return {
            **self.silo.status(),
            "running": self.service.running,
            "standing": standing(self.service.tail()) if self.service.running else None,
            "last_visit": visits[-1] if visits else None,
            "last_refusal": refusals[-1] if refusals else None,
        }

    def _let_in(self, server: ServerAddress, before: int, until: float) -> int:
        while True:
            said = self.service.tail(start=before)
            if found := NODE.search(said):
                return int(found[1])
            for sign, meaning in FINAL.items():
                if sign in said:
                    raise self._refused(server, meaning)
            if time.monotonic() > until:
                raise self._refused(server, self._not_let_in(server, said))
            time.sleep(0.2)

    def _not_let_in(self, server: ServerAddress, said: str) -> str:
        """The reason why the time ran out, by Flower's log."""
        if NOT_ADMITTED in said:
            return (
                "the coordinator does not know this silo's key. Have the operator admit it: flic "
                f"coordinator admit DIR {self.silo.name} {self.public_key.name}"
            )
        reason = "there was no answer. Check the address, and that the coordinator runs"
        if server.authority is None:
            reason += "; one that speaks TLS hangs up on --insecure: give it --ca instead"
        return reason

    def _refused(self, server: ServerAddress, reason: str) -> FederationError:
        return FederationError(
            f"silo {self.silo.name!r} was not let in by {server.address}: {reason}. Flower's own "
            f"words are in {self.service.log}."
        )

    @property
    def _environment(self) -> dict[str, str]:
        home = self.folder / "flower"
        home.mkdir(mode=0o700, exist_ok=True)
        return environment(home)

    def _command(self, server: ServerAddress) -> list[str]:
        key = self.folder / KEY
        if server.authority is None:
            safety = ["--insecure"]
        else:
            if not key.exists():
                raise ConfigError(
                    f"silo {self.silo.name!r} has no key: {key} is missing; expected the one that "
                    "flic silo init made. Restore it, or make a new silo."
                )
            safety = [
                *("--root-certificates", str(server.authority.resolve())),
                *("--auth-supernode-private-key", str(key)),
            ]
        return [
            *script("supernode"),
            *("--superlink", server.address),
            *("--node-config", f"silo={toml_text(str(self.folder))}"),
            *safety,
        ]


def standing(said: str) -> str:
    """A silo's standing with its coordinator, by the latest sign of it in Flower's log."""
    signs = {said.rfind(sign): meaning for sign, meaning in {**FINAL, **PASSING}.items()}
    last = max(signs)
    let_in = max((found.start() for found in LET_IN.finditer(said)), default=-1)
    if last < 0 and let_in < 0:
        return "is starting"
    return "is let in" if let_in > last else f"is not let in: {signs[last]}"
