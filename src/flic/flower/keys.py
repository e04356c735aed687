"""A silo's key pair, by which others know it: made, read, and used to sign."""

import base64
import os
from hashlib import sha256
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from flic.errors import ConfigError
from flic.files import read_bytes, write_atomically

CURVE = ec.SECP384R1()


def write_secret(path: Path, content: bytes) -> None:
    """Write a file that nobody but its owner may read, at no moment."""
    before = os.umask(0o077)
    try:
        write_atomically(path, content)
    finally:
        os.umask(before)


def create_pair(private: Path, public: Path) -> None:
    """A new ECDSA P-384 pair as OpenSSH writes it; an existing private key is kept."""
    if private.exists():
        raise ConfigError(
            f"key {private} exists already; expected none, since a silo is known by its key. "
            "Move it away to become another silo."
        )
    key = ec.generate_private_key(CURVE)
    write_secret(
        private,
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.OpenSSH,
            serialization.NoEncryption(),
        ),
    )
    line = key.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
    write_atomically(public, line + b"\n")


#: What `cryptography` raises for keys in SSH's form; the last, for a point that is not written out.
UNREADABLE = (ValueError, UnsupportedAlgorithm, NotImplementedError)


def read_public(path: Path) -> str:
    """The line of a silo's public key, if it is one."""
    try:
        content = read_bytes(path)
    except OSError as error:
        raise ConfigError(f"key {path} cannot be read ({error}); expected KEY.pub.") from None
    if b"PRIVATE" in content:
        raise ConfigError(
            f"{path} is a private key; expected the public one, which ends in .pub. The private "
            "one stays with its silo: if it was sent here, make a new one."
        )
    return public_line(content, source=str(path))


def public_line(content: bytes, *, source: str) -> str:
    """The line of a public key, without its comment, which anyone may change."""
    try:
        key = serialization.load_ssh_public_key(content)
        line = " ".join(content.decode().split()[:2])
    except UNREADABLE as error:
        raise ConfigError(
            f"{source} is no public key ({error}); expected the .pub file that flic silo init "
            "wrote."
        ) from None
    if not isinstance(key, ec.EllipticCurvePublicKey) or key.curve.name != CURVE.name:
        raise _of_another_kind(source)
    return line


def read_private(path: Path) -> ec.EllipticCurvePrivateKey:
    """The silo's private key."""
    try:
        key = serialization.load_ssh_private_key(read_bytes(path), None)
    except (OSError, *UNREADABLE) as error:
        raise ConfigError(
            f"key {path} cannot be read ({error}); expected the one that flic silo init made. "
            "Restore it, or make a new silo."
        ) from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.curve.name != CURVE.name:
        raise _of_another_kind(str(path))
    return key


def _of_another_kind(source: str) -> ConfigError:
    return ConfigError(f"{source} is a key of another kind; expected ecdsa-sha2-nistp384.")


def line_of(key: ec.EllipticCurvePrivateKey) -> str:
    """The line of the public key that belongs to a private one."""
    line = key.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
    return line.decode()


def fingerprint(line: str) -> str:
    """Fingerprint of a public key, as ssh-keygen -lf prints it."""
    blob = base64.b64decode(line.split()[1])
    return "SHA256:" + base64.b64encode(sha256(blob).digest()).decode().rstrip("=")


def sign(key: ec.EllipticCurvePrivateKey, content: bytes) -> bytes:
    """Signature under a silo's key."""
    return key.sign(content, ec.ECDSA(hashes.SHA384()))


def is_signed(line: str, signature: bytes, content: bytes) -> bool:
    """Return whether the owner of a public key signed this."""
    key = serialization.load_ssh_public_key(line.encode())
    assert isinstance(key, ec.EllipticCurvePublicKey)
    try:
        key.verify(signature, content, ec.ECDSA(hashes.SHA384()))
    except InvalidSignature:
        return False
    return True
