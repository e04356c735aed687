"""A federation's own authority: who holds its certificate trusts its coordinator, nobody else."""

import os
import socket
import ssl
import stat
import threading
from datetime import UTC, datetime, timedelta

import pytest

from flic.errors import ConfigError, FlicError, RunFolderError
from flic.flower import keys
from flic.flower.ops import certificates


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return certificates.create(tmp_path_factory.mktemp("own"), ["coordinator.example.org"])


def shake_hands(files, authority, host):
    """Version of TLS after a real handshake, or the client's error."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(files.server, files.server_key)
    client = ssl.create_default_context(cafile=authority)
    near, far = socket.socketpair()

    def answer():
        with far:
            try:
                server.wrap_socket(far, server_side=True).close()
            except (ssl.SSLError, OSError):
                return

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        with near, client.wrap_socket(near, server_hostname=host) as safe:
            return safe.version()
    finally:
        thread.join()


@pytest.mark.parametrize("host", ["coordinator.example.org", "localhost", "127.0.0.1"])
def test_silos_reach_the_coordinator_under_its_names(made, host):
    assert shake_hands(made, made.authority, host) == "TLSv1.3"


def test_a_name_that_is_not_its_own_is_refused(made):
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        shake_hands(made, made.authority, "elsewhere.example.org")


def test_another_authority_is_refused(made, tmp_path):
    other = certificates.create(tmp_path, ["coordinator.example.org"])
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(other, made.authority, "coordinator.example.org")


def test_silos_trust_a_renewed_certificate_for_other_names(tmp_path):
    files = certificates.create(tmp_path, ["old.example.org"])
    handed_out, first = files.authority.read_bytes(), files.server.read_bytes()
    certificates.renew(files, ["new.example.org", "192.0.2.7"])
    assert files.authority.read_bytes() == handed_out
    assert files.server.read_bytes() != first
    assert shake_hands(files, files.authority, "new.example.org")
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(files, files.authority, "old.example.org")


def test_the_server_certificate_ends_before_the_authority(made):
    left = made.expires() - datetime.now(UTC)
    assert timedelta(days=700) < left < timedelta(days=certificates.AUTHORITY_DAYS)


def test_nobody_else_reads_the_keys(made):
    for path in (made.authority_key, made.server_key):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("host", ["bad name", "ünlaut.example.org", "a/b"])
def test_a_host_that_is_none_is_refused(host, tmp_path):
    with pytest.raises(ConfigError, match="host name"):
        certificates.create(tmp_path, [host])


def test_renewal_without_the_key_says_what_is_missing(tmp_path):
    files = certificates.create(tmp_path, ["localhost"])
    files.authority_key.unlink()
    with pytest.raises(RunFolderError, match="Put it back"):
        certificates.renew(files, ["localhost"])


@pytest.mark.parametrize(
    ("host", "local"),
    [
        *[("localhost", True), ("127.0.0.9", True), ("::1", True)],
        *[("0.0.0.0", False), ("192.0.2.2", False), ("localhost.example.org", False)],
    ],
)
def test_loopback_is_told_from_the_rest(host, local):
    assert certificates.is_loopback(host) is local


def test_a_silos_key_is_its_own_and_stays(tmp_path):
    keys.create_pair(tmp_path / "key", tmp_path / "key.pub")
    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600
    assert (tmp_path / "key").read_bytes().startswith(b"-----BEGIN OPENSSH PRIVATE KEY-----")
    assert keys.read_public(tmp_path / "key.pub").startswith("ecdsa-sha2-nistp384 ")
    with pytest.raises(ConfigError, match="exists already"):
        keys.create_pair(tmp_path / "key", tmp_path / "key.pub")


ED25519 = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIBZ1aZkYk0gZ0JkKSb8Ry0j6vW5RmvZ0jvVZ3b2cVbbb"

#: A point in compressed form, which SSH does not have.
COMPRESSED = (
    "ecdsa-sha2-nistp384 AAAAE2VjZHNhLXNoYTItbmlzdHAzODQAAAAIbmlzdHAzODQAAAAxAgABAgME"
    "BQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4fICEiIyQlJicoKSorLC0uLw=="
)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("-----BEGIN OPENSSH PRIVATE KEY-----", "is a private key"),
        ("hello", "no public key"),
        (ED25519, "another kind"),
        (COMPRESSED, "no public key"),
        (None, "cannot be read"),
    ],
)
def test_what_is_no_public_key_is_refused(content, reason, tmp_path):
    path = tmp_path / "key.pub"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigError, match=reason):
        keys.read_public(path)


def test_a_key_or_certificate_that_is_a_pipe_is_refused(tmp_path):
    os.mkfifo(pipe := tmp_path / "key")
    readers = (keys.read_public, keys.read_private, certificates._read, certificates._read_key)
    for read in readers:
        with pytest.raises(FlicError, match="it is a pipe or a device"):
            read(pipe)


@pytest.mark.parametrize("host", ["::1", "[::1]", "2001:db8::7", "here.example.org:9443"])
def test_a_host_that_the_coordinator_does_not_listen_on_is_refused(host):
    with pytest.raises(ConfigError, match=r"expected a name or an IPv4 address.* --port"):
        certificates.refuse_other_than_ipv4(["localhost", host])
    certificates.refuse_other_than_ipv4(["localhost", "192.0.2.7", "here.example.org"])
