"""The active set A_t+1.  Paper: algo:FLIC-FEDREP, step 2."""

import math
from collections.abc import Sequence

import torch

from flic.errors import ConfigError
from flic.seeding import generator


def num_active(num_clients: int, participation: float) -> int:
    """Number of active clients in a round, ⌊r b⌋.  Paper: ass."""
    # 0.29 · 100 is 28.999999999999996, but means 29.
    count = math.floor(participation * num_clients + 1e-9)
    if count < 1:
        raise ConfigError(
            f"training.participation = {participation} of {num_clients} clients rounds to no "
            f"client; expected at least {1 / num_clients:.3g}. Raise it or add clients."
        )
    return count


def active_clients(
    names: Sequence[str], participation: float, *, seed: int, round: int
) -> list[str]:
    """Names of the clients of one round, drawn without replacement.

    The draw depends on the set of names, not on their order.
    """
    ordered = sorted(names)
    rng = generator(seed, "sampling", round)
    chosen = torch.randperm(len(ordered), generator=rng)[: num_active(len(names), participation)]
    return [ordered[i] for i in sorted(chosen.tolist())]
