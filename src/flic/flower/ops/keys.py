"""A silo's key pair, by which the coordinator knows it, and files only their owner may read."""

import os
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from flic.errors import ConfigError
from flic.files import write_atomically


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
    key = ec.generate_private_key(ec.SECP384R1())
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


def read_public(path: Path) -> str:
    """The line of a silo's public key, if it is one."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"key {path} cannot be read ({error}); expected KEY.pub.") from None
    if b"PRIVATE" in content:
        raise ConfigError(
            f"{path} is a private key; expected the public one, which ends in .pub. The private "
            "one stays with its silo: if it was sent here, make a new one."
        )
    try:
        key = serialization.load_ssh_public_key(content)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise ConfigError(
            f"{path} is no public key ({error}); expected the .pub file that flic silo init wrote."
        ) from None
    if not isinstance(key, ec.EllipticCurvePublicKey) or key.curve.name != "secp384r1":
        raise ConfigError(f"{path} is a key of another kind; expected ecdsa-sha2-nistp384.")
    return " ".join(content.decode().split()[:2])  # without the comment, which anyone may change
