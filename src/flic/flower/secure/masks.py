"""Masks of a sum: streams of ChaCha20 under keys that HKDF makes of seeds and of X25519.

A silo's numbers carry one mask of its own, and one for each peer that the peer's numbers carry with
the opposite sign. Masks are uniform modulo 2^128, so whoever lacks one of them learns nothing.
"""

from collections.abc import Iterable

import numpy as np
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from flic.errors import FederationError
from flic.flower.secure.fixed_point import NUMBER_BYTES, Words, added, negated

SEED_BYTES = 16
"""Size of a seed, which is what is shared among peers."""

_KEY_BYTES = 32
_START = bytes(16)  # counter and nonce; every key is used for one stream


def derived(secret: bytes, purpose: str) -> bytes:
    """A key for one purpose."""
    kdf = HKDF(hashes.SHA256(), _KEY_BYTES, salt=None, info=f"flic {purpose}".encode())
    return kdf.derive(secret)


def mask_key(seed: bytes) -> X25519PrivateKey:
    """The key by which a silo agrees on masks with its peers; it is shared as its seed."""
    return X25519PrivateKey.from_private_bytes(derived(seed, "mask key"))


def public_bytes(key: X25519PrivateKey) -> bytes:
    """The public key that belongs to a private one."""
    return key.public_key().public_bytes_raw()


def agreed(key: X25519PrivateKey, public: bytes) -> bytes:
    """The secret that two key pairs have in common."""
    try:
        return key.exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError:
        raise FederationError(
            "a silo's key for this sum is none that hides anything; expected one of X25519. Ask "
            "the operator who sent it."
        ) from None


def own_mask(seed: bytes, numbers: int) -> Words:
    """The mask that only one silo's numbers carry."""
    return stream(derived(seed, "own mask"), numbers)


def masks_with_peers(
    key: X25519PrivateKey, own: str, peers: Iterable[tuple[str, bytes]], occasion: str, numbers: int
) -> Words:
    """The masks that a silo's numbers carry for peers; theirs carry the opposite.

    Args:
        key: the silo's mask key.
        own: its name.
        peers: names and public mask keys of the others.
        occasion: digest of the sum that it is for.
        numbers: how many numbers there are.
    """
    total = np.zeros((numbers, 2), np.uint64)
    for name, public in peers:
        secret = agreed(key, public)
        first, second = sorted((own, name))
        mask = stream(derived(secret, f"mask {occasion} {first!r} {second!r}"), numbers)
        total = added(total, mask if own == first else negated(mask))
    return total


def stream(key: bytes, numbers: int) -> Words:
    """So many pseudorandom numbers of a key."""
    encryptor = Cipher(ChaCha20(key, _START), mode=None).encryptor()
    content = encryptor.update(bytes(NUMBER_BYTES * numbers))
    return np.frombuffer(content, "<u8").reshape(-1, 2).astype(np.uint64)
