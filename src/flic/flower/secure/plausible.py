"""Checks of sums: what no rows can add up to, at one silo or over many.

Of masked updates nothing can be looked at but their sum. So every silo looks at its own before it
is masked, and the coordinator at the sum.
"""

import torch

from flic.flower.federation_settings import MOST_ROWS
from flic.flower.pooling import SCORES, WORST
from flic.methods.linked.link_checks import UNLIKE
from flic.methods.linked.sums import COUNTS
from flic.methods.protocol import Update

_ROUNDING = 1e-6
"""Error of a sum that is no lie: silos' floating-point numbers are rounded before they add up."""


def wrong_in_sum(update: Update, members: int) -> str | None:
    """The sign that a sum over so many silos is none, in words; None without one."""
    for name, entry in update.entries.items():
        value, part = entry.value, name.rsplit(".", 1)[-1]
        if not value.numel():
            continue
        if not bool(value.isfinite().all()):
            return f"has numbers in {name} that are none; expected numbers"
        if part in COUNTS and not _are_counts(value, members):
            return f"has counts of rows in {name} that are none; expected whole numbers from 0 on"
        if part == "variance" and float(value.min()) < -_ROUNDING * float(value.abs().max()):
            return f"has negative squares in {name}; expected none"
        if name in SCORES and not WORST - _ROUNDING <= _least(value) <= _most(value) <= _ROUNDING:
            return f"has likelihoods in {name} that are none; expected from {WORST:g} to 0"
        if name == UNLIKE and not -_ROUNDING <= _least(value) <= _most(value) <= 1 + _ROUNDING:
            return f"has shares in {name} that are none; expected from 0 to 1"
    return None


def _are_counts(value: torch.Tensor, members: int) -> bool:
    is_whole = (value - value.round()).abs() <= _ROUNDING
    return bool((is_whole & (value >= -_ROUNDING) & (value <= members * MOST_ROWS)).all())


def _least(value: torch.Tensor) -> float:
    return float(value.min())


def _most(value: torch.Tensor) -> float:
    return float(value.max())
