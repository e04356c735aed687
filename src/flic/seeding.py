"""Tree of random generators: run → purpose → round → client.

A client's draws depend only on its name, the run's seed, the round and the purpose. So results
do not depend on its cohort, the order or the workers, except by rounding.
"""

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def derive_seed(seed: int, *path: str | int) -> int:
    """Seed of the node `path` below the run's `seed`, 63 bits from a hash of the path."""
    text = "\x1f".join([str(seed), *map(str, path)])
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def generator(seed: int, *path: str | int) -> "torch.Generator":
    """Fresh generator at the node `path` below the run's `seed`."""
    import torch  # here, since commands that draw nothing also need seeds

    return torch.Generator().manual_seed(derive_seed(seed, *path))
