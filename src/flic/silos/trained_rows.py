"""Digests of a model's training rows, by which these are known again in any file."""

from collections import Counter
from hashlib import blake2b

import numpy as np

from flic.data.client_data import Split

FILE = "trained.digests"

Trained = Counter[int]
"""Digest of an encoded row and its label → how many training rows have it."""


def digests_of(rows: Split) -> Trained:
    """Digests of encoded training rows."""
    return Counter(row_digests(rows.x.numpy(), rows.y.numpy()))


def row_digests(x: np.ndarray, y: np.ndarray) -> list[int]:
    """Digest of each encoded row and its label."""
    rows = np.hstack([x, y[:, None]]).astype("<f4")
    digests = (blake2b(row.tobytes(), digest_size=8).digest() for row in rows)
    return _numbers(b"".join(digests))


def packed(trained: Trained) -> bytes:
    """Digests as a file holds them, in no order of the rows."""
    return np.array(sorted(trained.elements()), "<i8").tobytes()


def unpacked(content: bytes) -> Trained:
    """Digests of a file.

    Raises:
        ValueError: its length is not that of whole digests.
    """
    return Counter(_numbers(content))


def _numbers(content: bytes) -> list[int]:
    return np.frombuffer(content, "<i8").tolist()
