"""Secret shares of the seeds of masks, encrypted from one silo to another, and a seed for all.

Any `threshold` shares give a seed (Shamir's scheme, of pycryptodome), fewer give nothing.
"""

from collections.abc import Mapping, Sequence

from Crypto.Protocol.SecretSharing import Shamir
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from flic.errors import FederationError
from flic.flower.secure.masks import SEED_BYTES, agreed, derived

_ONCE = bytes(12)  # nonce; every key encrypts one message


def threshold(members: int, least: int) -> int:
    """Number of shares that give a seed: more than two thirds of the silos, `least` at least.

    A silo gives a share of one of a peer's two seeds, never of both. To get both, the operator
    needs this many silos twice, so at least a third of them would have to take its side.
    """
    return max(least, 2 * members // 3 + 1)


def split(seed: bytes, holders: Sequence[str], needed: int) -> dict[str, bytes]:
    """A share of a seed for each holder."""
    parts = Shamir.split(needed, len(holders), seed, ssss=False)
    return {name: part for name, (_, part) in zip(holders, parts, strict=True)}


def recovered(parts: Mapping[str, bytes], holders: Sequence[str], needed: int) -> bytes:
    """The seed, from the shares of enough holders."""
    places = {name: place for place, name in enumerate(holders, start=1)}
    chosen = sorted(parts)[:needed]
    if len(chosen) < needed:
        raise FederationError(
            f"{len(chosen)} shares of a mask are there; expected {needed}. Start the silos that "
            "are missing, and go on."
        )
    return Shamir.combine([(places[name], parts[name]) for name in chosen], ssss=False)


Parts = tuple[bytes, bytes, bytes]
"""Parts that a silo gives another: shares of the seeds of its two masks, and its seed for tags."""


def sealed(parts: Parts, key: X25519PrivateKey, peer: bytes, direction: str) -> bytes:
    """The parts, encrypted to a peer's public key; `direction` names sum, sender and receiver."""
    cipher = ChaCha20Poly1305(derived(agreed(key, peer), f"shares {direction}"))
    return cipher.encrypt(_ONCE, b"".join(parts), direction.encode())


def opened(content: bytes, key: X25519PrivateKey, peer: bytes, direction: str) -> Parts:
    """The parts that a peer encrypted.

    Raises:
        FederationError: they are not for this silo and this sum, or were changed on the way.
    """
    cipher = ChaCha20Poly1305(derived(agreed(key, peer), f"shares {direction}"))
    try:
        found = cipher.decrypt(_ONCE, content, direction.encode())
    except InvalidTag:
        found = b""
    if len(found) != 3 * SEED_BYTES:
        raise FederationError(
            f"the shares {direction} cannot be opened; expected those that this peer encrypted for "
            "this sum, and that both were sent the same pooled sums. Somebody changed or exchanged "
            "them: ask the operator."
        )
    return found[:SEED_BYTES], found[SEED_BYTES : 2 * SEED_BYTES], found[2 * SEED_BYTES :]
