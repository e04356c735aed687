"""A coordinator on a machine of its own: files, certificates, SuperLink, keys of silos, runs.

DIR/                 beside what `rounds` keeps there
  deployment.json    names, port, how many may connect, and whether it is all in plain text
  certificates/      the authority, and the server's own (`certificates`)
  keys.json          keys of silos (`admission`)
  app/               what Flower calls an app: settings and no code
  flower/            Flower's private folder: how its commands find this SuperLink
  wanted             there while a run is to go on (`run_request`, `restarter`)
  superlink.db .log .pid
"""

import ssl
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self
from urllib.error import URLError
from urllib.request import urlopen

from pydantic import Field

from flic.errors import ConfigError, FederationError, RunFolderError
from flic.files import read_json, refuse_occupied, write_atomically, write_json
from flic.flower.coordinator_folder import Coordinator
from flic.flower.federation_settings import FederationSettings
from flic.flower.ops import certificates
from flic.flower.ops.admission import KEYS, Admission
from flic.flower.ops.certificates import Certificates, is_loopback, refuse_other_than_ipv4
from flic.flower.ops.processes import Service, ask_flower, environment, script
from flic.flower.ops.restarter import superlink
from flic.flower.ops.run_follower import OnRound, RunFollower, Tell
from flic.flower.ops.supernode import COMPONENTS
from flic.flower.run_request import clear_request, is_requested
from flic.notation import toml_text
from flic.settings import Section, validated

FACTS = "deployment.json"
READY_S = 90.0
TRIES = 3  # to get hold of the port


class Address(Section):
    """A coordinator's port, the names it is reached under, and how many may connect."""

    hosts: tuple[str, ...] = ("localhost",)
    port: int = Field(default=9443, ge=1, le=65535)
    insecure: bool = False
    max_connections: int = Field(default=512, ge=16)
    max_connections_per_silo: int = Field(default=32, ge=4)  # and per address of strangers

    @property
    def is_local(self) -> bool:
        """True if silos run on the same machine only."""
        return all(map(is_loopback, self.hosts))


@dataclass(frozen=True)
class Deployment:
    """One coordinator's folder, and what can be done with it."""

    folder: Path
    address: Address

    @classmethod
    def create(cls, folder: Path, settings: FederationSettings, address: Address) -> Self:
        """A new folder with everything that a coordinator needs to start."""
        refuse_occupied(folder, remedy="Choose another.")
        refuse_other_than_ipv4(address.hosts)
        if address.insecure and not address.is_local:
            raise ConfigError(
                f"--insecure with the hosts {', '.join(address.hosts)}: plain text is for this "
                "machine alone; expected localhost. Leave out --insecure."
            )
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)
        made = cls(folder.resolve(), address)
        if not address.insecure:
            certificates.create(made.certificates.folder, address.hosts)
        made._write_app()
        made._write_connection()
        write_json(made.folder / KEYS, {})
        Coordinator.create(made.folder, settings)
        write_json(made.folder / FACTS, address.model_dump(mode="json"))
        return made

    @classmethod
    def open(cls, folder: Path) -> Self:
        """The coordinator of a folder."""
        path = folder / FACTS
        try:
            raw = read_json(path)
        except (OSError, ValueError) as error:
            raise RunFolderError(
                f"{folder} holds no coordinator ({error}); expected a folder that flic coordinator "
                "init made."
            ) from None
        made = cls(folder.resolve(), validated(Address, raw, source=str(path)))
        made._write_connection()
        return made

    @property
    def certificates(self) -> Certificates:
        """Files of the authority and the server."""
        return Certificates(self.folder / "certificates")

    @property
    def service(self) -> Service:
        """The SuperLink under its supervisor."""
        return superlink(self.folder)

    # ---- processes -----------------------------------------------------------------------

    def start(self) -> None:
        """Start the SuperLink in the background; it answers when this returns."""
        self._refuse_expired()
        before = self.service.log_size()
        self.service.start(self._command(), self._environment, self._restarter)
        try:
            self._wait_for_answer(before, time.monotonic() + READY_S)
        except BaseException:  # an operator who interrupts it leaves nothing running
            self.service.stop()
            raise

    def _wait_for_answer(self, before: int, until: float) -> None:
        while not self._answers():
            # One that ends may hold the port for a moment, and the supervisor tries again.
            occupied = self.service.tail(start=before).count("address already in use") >= TRIES
            if occupied or time.monotonic() > until:
                reason = (
                    f"port {self.address.port} is in use by another program; expected it to be "
                    f"free. Stop that program, or change port in {self.folder / FACTS}."
                    if occupied
                    else f"no answer within {READY_S:.0f} s. Look at {self.service.log}."
                )
                raise FederationError(f"{self.service.name} did not start: {reason}")
            time.sleep(0.2)

    def become(self) -> None:
        """Go on as the SuperLink's supervisor, in the foreground."""
        self._refuse_expired()
        self.service.become(self._command(), self._environment, self._restarter)

    @property
    def _restarter(self) -> list[str]:
        return [*script("restarter"), str(self.folder)]

    def stop(self) -> bool:
        """End the SuperLink and the run under way; False if it did not run."""
        clear_request(self.folder)
        return self.service.stop()

    def renew(self, hosts: tuple[str, ...]) -> Self:
        """A new server certificate, for other names if any are given."""
        if self.address.insecure:
            raise ConfigError(f"{self.folder} has no certificates: it was made with --insecure.")
        hosts = hosts or self.address.hosts
        refuse_other_than_ipv4(hosts)
        certificates.renew(self.certificates, hosts)
        address = self.address.model_copy(update={"hosts": hosts})
        write_json(self.folder / FACTS, address.model_dump(mode="json"))
        return type(self)(self.folder, address)

    # ---- silos ---------------------------------------------------------------------------

    def admit(self, name: str, key: str) -> int:
        """Let the silo with this key file take part; the number of its node.

        Without encryption Flower knows no keys: then `key` is the number of the silo's node.
        """
        if not self.address.insecure:
            return self._admission.admit(name, key)
        if not key.isdecimal():
            raise ConfigError(
                f"got {key!r}; expected the number that flic silo start printed, since this "
                "coordinator was made with --insecure and knows no keys."
            )
        Coordinator.open(self.folder).members.admit(name, int(key))
        return int(key)

    def revoke(self, name: str) -> None:
        """Let a silo take part no more; its key opens nothing any longer."""
        if not self.address.insecure:
            self._admission.revoke(name)
            return
        members = Coordinator.open(self.folder).members
        members.revoke(name)
        members.forget(name)

    def lines(self) -> dict[str, str]:
        """Public keys of the silos that are admitted, by name, for silos to compare."""
        if self.address.insecure:
            raise ConfigError(
                f"{self.folder} was made with --insecure and knows no keys; expected one with TLS. "
                "Secure sums need keys: make it anew without --insecure."
            )
        return self._admission.lines()

    @property
    def _admission(self) -> Admission:
        members = Coordinator.open(self.folder).members
        return Admission(self.folder, members, self._ensure_running, self._ask)

    # ---- runs ----------------------------------------------------------------------------

    def train(
        self,
        on_round: OnRound = lambda record, total, done: None,
        tell: Tell = lambda message: None,
    ) -> None:
        """Start the run or go on with it, and tell of it until all rounds are done.

        Raises:
            FederationError: the run ended before its last round.
        """
        coordinator = Coordinator.open(self.folder)
        if coordinator.status()["done"]:
            return
        if not coordinator.members.silos:
            raise FederationError(
                f"{self.folder} has no silos; expected some. Run: flic coordinator admit "
                f"{self.folder} NAME KEY.pub"
            )
        self._ensure_running()
        RunFollower(self.folder, self.service, self._ensure_running).follow(on_round, tell)

    def status(self) -> dict[str, Any]:
        """State of the coordinator, the run and its silos, ready for JSON."""
        coordinator = Coordinator.open(self.folder)
        running = self._answers()
        nodes = self._ask("supernode", "list")["nodes"] if running else []
        online = {int(node["node-id"]) for node in nodes if node["status"] == "online"}
        found = coordinator.status()
        return {
            **found,
            "running": running,
            "training": running and is_requested(self.folder),
            "address": f"{self.address.hosts[0]}:{self.address.port}",
            "certificate_ends": None
            if self.address.insecure
            else self.certificates.expires().isoformat(),
            "silos": {
                name: {**own, "online": own["node"] in online}
                for name, own in found["silos"].items()
            },
        }

    # ---- inside --------------------------------------------------------------------------

    @property
    def _environment(self) -> dict[str, str]:
        return environment(self.folder / "flower")

    def _ask(self, *arguments: str) -> dict[str, Any]:
        return ask_flower(self.folder / "flower", *arguments)

    def _ensure_running(self) -> None:
        if not self.service.running:
            self.start()
        until = time.monotonic() + READY_S
        while not self._answers():  # its supervisor may be bringing it back
            if time.monotonic() > until:
                raise FederationError(
                    f"{self.service.name} does not answer; expected it to within {READY_S:.0f} s. "
                    f"Look at {self.service.log}."
                )
            time.sleep(0.5)

    def _answers(self) -> bool:
        if not self.service.running:
            return False
        scheme = "http" if self.address.insecure else "https"
        safe = None
        if not self.address.insecure:
            safe = ssl.create_default_context(cafile=self.certificates.authority)
        try:
            with urlopen(
                f"{scheme}://127.0.0.1:{self.address.port}/health", timeout=5, context=safe
            ) as answer:
                return answer.status == 200
        except (URLError, OSError):
            return False

    def _command(self) -> list[str]:
        settings = Coordinator.open(self.folder).settings
        largest = int(settings.max_message_mb * 2**20)
        files = self.certificates
        # Without keys all silos are one to the gate.
        share = self.address.max_connections
        if not self.address.insecure:
            share = self.address.max_connections_per_silo
        safety = (
            ["--insecure"]
            if self.address.insecure
            else [
                *("--ssl-ca-certfile", str(files.authority)),
                *("--ssl-certfile", str(files.server)),
                *("--ssl-keyfile", str(files.server_key)),
                "--enable-supernode-auth",
            ]
        )
        return [
            *script("superlink"),
            *(str(largest), str(self.folder / KEYS)),
            *(str(self.address.max_connections), str(share)),
            # Of all addresses or of none but loopback: by any single other one, Flower's own
            # processes would look like strangers to the gate.
            *("--host", "127.0.0.1" if self.address.is_local else "0.0.0.0"),
            *("--port", str(self.address.port)),
            *("--database", str(self.folder / "superlink.db")),
            "--disable-runtime-dependency-installation",
            *safety,
        ]

    def _refuse_expired(self) -> None:
        if not self.address.insecure and self.certificates.expires().timestamp() < time.time():
            raise FederationError(
                f"the certificate in {self.certificates.folder} ended on "
                f"{self.certificates.expires():%Y-%m-%d}; expected a valid one. Run: flic "
                f"coordinator renew {self.folder}"
            )

    def _write_app(self) -> None:
        """Write the bundle that Flower asks for: the app to run, and no code."""
        parts = [f"{part} = {toml_text(module)}" for part, module in COMPONENTS.items()]
        lines = [
            *("[project]", 'name = "flic-federation"', 'version = "1.0.0"', 'license = "MIT"'),
            *("dependencies = []", "", "[tool.flwr.app]", 'publisher = "flic"', ""),
            *("[tool.flwr.app.components]", *parts, ""),
            *("[tool.flwr.app.config]", 'coordinator-dir = ""', ""),
        ]
        (self.folder / "app").mkdir(mode=0o700)
        write_atomically(self.folder / "app" / "pyproject.toml", "\n".join(lines).encode())

    def _write_connection(self) -> None:
        """Tell Flower's commands this SuperLink's address, wherever the folder is by now."""
        home = self.folder / "flower"
        home.mkdir(mode=0o700, exist_ok=True)
        safety = (
            "insecure = true"
            if self.address.insecure
            else f"root-certificates = {toml_text(str(self.certificates.authority))}"
        )
        lines = [
            *("[superlink]", 'default = "flic"', "", "[superlink.flic]"),
            *(f'address = "127.0.0.1:{self.address.port}"', safety, ""),
        ]
        path, content = home / "config.toml", "\n".join(lines).encode()
        if not path.exists() or path.read_bytes() != content:
            write_atomically(path, content)
