"""A whole federation on this machine: every process, key and certificate of a real one.

For trials and measurements; only the machines in between are missing.
"""

from collections.abc import Generator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flic.flower.federation_settings import FederationSettings
from flic.flower.ops.deployment import Address, Deployment
from flic.flower.ops.membership import Membership, ServerAddress
from flic.flower.ops.supernode import free_port
from flic.flower.silo_folder import SiloFolder
from flic.tables import Client

LET_IN_S = 180.0


@dataclass(frozen=True)
class Loopback:
    """A coordinator and its silos, all running here."""

    deployment: Deployment
    members: Mapping[str, Membership]

    @property
    def server(self) -> ServerAddress:
        """The coordinator's address, as silos are given it."""
        port = self.deployment.address.port
        return ServerAddress(f"127.0.0.1:{port}", self.deployment.certificates.authority)


@contextmanager
def on_loopback(
    root: Path, settings: FederationSettings, clients: Mapping[str, Client], **rules: Any
) -> Generator[Loopback]:
    """A running federation under `root`, all of whose processes end with the block.

    Args:
        root: where the coordinator and a folder per silo go.
        settings: what all silos agree on.
        clients: their tables, named from their folders.
        rules: of the coordinator's address, other than the usual ones.
    """
    address = Address(hosts=("127.0.0.1",), port=free_port(), **rules)
    deployment = Deployment.create(root / "coordinator", settings, address)
    members = {
        name: Membership(SiloFolder.create(root / name, client)) for name, client in clients.items()
    }
    running = Loopback(deployment, members)
    try:
        deployment.start()
        for name, member in members.items():
            member.make_key()
            deployment.admit(name, str(member.public_key))
        for member in members.values():
            member.trust(deployment.lines())
        with ThreadPoolExecutor(max(1, len(members))) as pool:
            list(pool.map(lambda m: m.start(running.server, seconds=LET_IN_S), members.values()))
        yield running
    finally:
        for member in members.values():
            member.leave()
        deployment.stop()
