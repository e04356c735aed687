"""The federation's own certificate authority and the certificate of its coordinator.

A silo that holds `ca.crt` knows that it speaks to this coordinator and to nobody else.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from flic.errors import ConfigError, RunFolderError
from flic.files import read_bytes, write_atomically
from flic.flower.keys import write_secret

AUTHORITY_DAYS = 3650
SERVER_DAYS = 825  # what most systems still accept of a server's certificate
HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?")
LOOPBACK = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True)
class Certificates:
    """Files of an authority and of the server that it vouches for."""

    folder: Path

    @property
    def authority(self) -> Path:
        """The authority's certificate, which every silo needs."""
        return self.folder / "ca.crt"

    @property
    def authority_key(self) -> Path:
        """The authority's private key, which only renewal needs."""
        return self.folder / "ca.key"

    @property
    def server(self) -> Path:
        """The server's certificate, which the coordinator shows."""
        return self.folder / "server.crt"

    @property
    def server_key(self) -> Path:
        """The server's private key, which only the coordinator holds."""
        return self.folder / "server.key"

    def expires(self) -> datetime:
        """The time at which the server's certificate ends."""
        return _read(self.server).not_valid_after_utc


def create(folder: Path, hosts: Sequence[str]) -> Certificates:
    """A new authority, and a certificate for a coordinator reached under these names."""
    files = Certificates(folder)
    _general_names(hosts)  # refused before anything is written
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    key = ec.generate_private_key(ec.SECP384R1())
    name = _named("flic federation authority")
    extensions: list[tuple[x509.ExtensionType, bool]] = [
        (x509.BasicConstraints(ca=True, path_length=0), True),
        (_key_usage(authority=True), True),
    ]
    authority = _signed(name, name, key.public_key(), key, AUTHORITY_DAYS, extensions)
    write_secret(files.authority_key, _private_bytes(key))
    write_atomically(files.authority, authority.public_bytes(serialization.Encoding.PEM))
    renew(files, hosts)
    return files


def renew(files: Certificates, hosts: Sequence[str]) -> None:
    """A new key and certificate for the server, from the same authority."""
    authority, signer = _read(files.authority), _read_key(files.authority_key)
    key = ec.generate_private_key(ec.SECP384R1())
    extensions: list[tuple[x509.ExtensionType, bool]] = [
        (x509.SubjectAlternativeName(_general_names(hosts)), False),
        (x509.BasicConstraints(ca=False, path_length=None), True),
        (_key_usage(authority=False), True),
        (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False),
        (x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), False),
    ]
    subject = _named("flic coordinator")
    certificate = _signed(
        subject, authority.subject, key.public_key(), signer, SERVER_DAYS, extensions
    )
    write_secret(files.server_key, _private_bytes(key))
    write_atomically(files.server, certificate.public_bytes(serialization.Encoding.PEM))


def is_loopback(host: str) -> bool:
    """Return whether a name or address never leaves this machine."""
    address = _as_address(host)
    return host == "localhost" if address is None else address.is_loopback


def refuse_other_than_ipv4(hosts: Iterable[str]) -> None:
    """Refuse addresses at which the SuperLink, which takes one kind, would not be found."""
    for host in hosts:
        if ":" in host:
            raise ConfigError(
                f"--host {host}: an IPv6 address, or one with a port; expected a name or an IPv4 "
                "address, on all of which the coordinator listens. The port is --port."
            )


def _signed(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    signer: ec.EllipticCurvePrivateKey,
    days: int,
    extensions: Sequence[tuple[x509.ExtensionType, bool]],
) -> x509.Certificate:
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))  # clocks of silos may be behind
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )
    for extension, critical in extensions:
        builder = builder.add_extension(extension, critical=critical)
    return builder.sign(signer, hashes.SHA384())


def _key_usage(*, authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not authority,
        key_cert_sign=authority,
        crl_sign=authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _general_names(hosts: Sequence[str]) -> list[x509.GeneralName]:
    return [_general_name(host) for host in dict.fromkeys([*hosts, *LOOPBACK])]


def _general_name(host: str) -> x509.GeneralName:
    address = _as_address(host)
    if address is not None:
        return x509.IPAddress(address)
    if not HOST.fullmatch(host):
        raise ConfigError(
            f"--host {host!r} is no host name; expected letters, digits, dots and hyphens, such as "
            "coordinator.example.org, or an IP address."
        )
    return x509.DNSName(host)


def _as_address(host: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(host)
    except ValueError:
        return None


def _private_bytes(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _read(path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(read_bytes(path))
    except (OSError, ValueError) as error:
        raise RunFolderError(
            f"certificate {path} cannot be read ({error}); expected one that flic coordinator init "
            "wrote. Restore it from a back-up."
        ) from None


def _read_key(path: Path) -> ec.EllipticCurvePrivateKey:
    try:
        key = serialization.load_pem_private_key(read_bytes(path), None)
    except (OSError, ValueError, TypeError) as error:
        raise RunFolderError(
            f"key {path} cannot be read ({error}); expected the key of the authority that flic "
            "coordinator init wrote. Put it back from where it is kept."
        ) from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise RunFolderError(f"key {path} is of another kind; expected one on the curve P-384.")
    return key
