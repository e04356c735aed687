"""Keys at a real SuperLink: admitted once, kept through an interruption, never after revocation."""

import json

import pytest

from flic.errors import ConfigError, FederationError
from flic.flower import keys
from flic.flower.coordinator_folder import Coordinator
from flic.flower.federation_settings import FederationSettings
from flic.flower.ops.deployment import Address, Deployment
from flic.flower.ops.supernode import free_port

pytestmark = [
    pytest.mark.process,
    pytest.mark.slow,
    # A supervisor outlives whoever started it: that is what it is for.
    pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning"),
]


def test_a_key_is_admitted_once_and_revoked_for_good(tmp_path):
    address = Address(hosts=("127.0.0.1",), port=free_port())
    made = Deployment.create(tmp_path / "c", FederationSettings(classes=("a", "b")), address)
    for name in ("north", "south"):
        keys.create_pair(tmp_path / name, tmp_path / f"{name}.pub")
    north, south = (str(tmp_path / f"{name}.pub") for name in ("north", "south"))
    silos = made.folder / "silos.json"
    try:
        node = made.admit("north", north)  # which starts the coordinator
        assert made.admit("north", north) == node
        with pytest.raises(ConfigError, match="is the key of silo 'north'"):
            made.admit("south", north)
        with pytest.raises(ConfigError, match="with another key"):
            made.admit("north", south)

        # As if the machine had gone down between Flower's list and ours.
        silos.write_text("{}")
        (made.folder / "flower" / "admitting.pub").write_text(
            keys.read_public(tmp_path / "north.pub")
        )
        assert made.admit("north", north) == node

        # As if it had gone down before Flower heard of a revocation: it can be repeated.
        Coordinator.open(made.folder).members.revoke("north")
        with pytest.raises(ConfigError, match="Flower has not heard of it"):
            made.admit("north", south)
        made.revoke("north")
        assert json.loads(silos.read_text()) == {}
        with pytest.raises(ConfigError, match="is not admitted, or not any more"):
            made.revoke("north")
        with pytest.raises(ConfigError, match="was revoked"):
            made.admit("north", north)
        assert made.admit("north", south) != node
        named = json.loads((made.folder / "keys.json").read_text())
        assert [*named.values()] == ["north", "north"]  # a log may show the old one yet
        with pytest.raises(FederationError, match="runs already"):
            made.start()
    finally:
        made.stop()
    assert not made.service.running
