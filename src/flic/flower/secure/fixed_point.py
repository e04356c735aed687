"""Fixed-point numbers modulo 2^128, in which masked numbers are added.

A number x is the integer round(x · 2^64) modulo 2^128, as two words of 64 bits, the lower first. A
double is exact here from 2^-11 in size on; below that the error is 2^-65 at most, so that a sum of
n numbers is wrong by n · 2^-65 at most. Sums lie within ±2^62; of n silos each may add 2^62 / n.

One scale serves all: counts of rows, and squares of columns in any unit. With 64 bits each column
would need a scale of its own, which would have to be agreed on, and would tell how large it is.
"""

import numpy as np

from flic.errors import FederationError

LARGEST_SUM = 2.0**62
"""Size below which sums lie."""

STEP = 2.0**-64
"""Distance of two neighbouring numbers."""

NUMBER_BYTES = 16
"""Size of a number on the wire."""

Words = np.ndarray
"""Numbers as uint64 of shape (numbers, 2), the lower word first."""

_WORD = np.float64(2.0**64)


def encoded(values: np.ndarray, *, members: int, silo: str) -> Words:
    """Numbers of one of so many silos.

    Raises:
        FederationError: one is not finite, or so large that the sum might not fit.
    """
    most = LARGEST_SUM / members
    if not bool((np.abs(values) <= most).all()):  # NaN is not either
        raise FederationError(
            f"silo {silo!r} has a sum that is no number, or larger than {most:.3g}; expected less, "
            f"so that {members} of them fit into one sum. Use larger units for its largest columns."
        )
    sizes = np.abs(values)  # of which the fraction is exact
    whole = np.floor(sizes)
    lower = np.rint((sizes - whole) * _WORD)
    found = np.stack([lower.astype(np.uint64), whole.astype(np.uint64)], 1)
    return np.where((values < 0)[:, None], negated(found), found)


def decoded(words: Words) -> np.ndarray:
    """Numbers as doubles."""
    is_negative = words[:, 1] >> np.uint64(63) == 1
    sizes = np.where(is_negative[:, None], negated(words), words)
    found = sizes[:, 1].astype(np.float64) + sizes[:, 0].astype(np.float64) / _WORD
    return np.where(is_negative, -found, found)


def added(a: Words, b: Words) -> Words:
    """Sum modulo 2^128."""
    lower = a[:, 0] + b[:, 0]
    return np.stack([lower, a[:, 1] + b[:, 1] + (lower < a[:, 0])], 1)


def negated(a: Words) -> Words:
    """The number that gives 0 with this one."""
    lower = ~a[:, 0] + np.uint64(1)
    return np.stack([lower, ~a[:, 1] + (lower == 0)], 1)
