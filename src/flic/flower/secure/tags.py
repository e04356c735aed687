"""Tags of totals: by them a silo knows that pooled sums are those that came out of the sums.

Whoever makes up pooled sums chooses what a silo's likelihoods answer, and can ask on which side of
a border a person lies. So the silos of a sum share a key that the coordinator lacks. With it each
adds one more number for each group of silos that are sent the same columns: Σ_p r_p x_p + s modulo
2^128, of its numbers x in fixed point and of r and s that follow from the key. Tags add up as the
numbers do, so that the sum of the tags fits the totals, and no others: a total that is changed by
less than 2^40 passes with a probability of 2^-24 at most.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Annotated

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from flic.errors import FederationError
from flic.flower.secure.contribution import Group, SumLayout
from flic.flower.secure.fixed_point import LARGEST_SUM, NUMBER_BYTES, STEP, Words, decoded
from flic.flower.secure.masks import derived, stream
from flic.flower.secure.statements import Occasion
from flic.shapes import Named

_MODULUS = 2 ** (8 * NUMBER_BYTES)

_BITS = 64  # behind the point

_ROUNDED = 2**-52
"""Share of a double that its rounding can take from a total."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class TaggedTotals(_Strict):
    """The tag of a round's totals as one silo is sent them, and what doubles leave of them."""

    round: int
    tag: Annotated[str, Field(pattern=f"^[0-9a-f]{{{2 * NUMBER_BYTES}}}$")]
    rests: dict[str, Annotated[str, Field(pattern="^-?[0-9]{1,40}$")]] = {}  # by place in the sum


class AllTotals(_Strict):
    """Tags of all sums that a silo is sent."""

    rounds: list[TaggedTotals] = []


class TagKey(_Strict):
    """A silo's key to the tags of one sum."""

    key: str
    union: list[str]  # keys of all linked columns
    most: int  # silos that may be in the sum


def tag_key(seeds: Mapping[str, bytes], occasion: Occasion) -> bytes:
    """The key of a sum, to which every silo gave a seed."""
    together = b"".join(seeds[name] for name in sorted(seeds))
    return derived(together, f"tags {occasion.digest}")


def own_tags(key: bytes, layout: SumLayout, groups: Sequence[Group], words: Words) -> Words:
    """Tags of a silo's numbers, one for each group; `words` are of the whole layout."""
    products = _whole(words) * _factors(key, layout) if groups else np.zeros(0, object)
    tags = [int(products[layout.places_of(g)].sum()) + _pad(key, g) for g in groups]
    return _words(tags)


def sent_totals(
    round: int, layout: SumLayout, totals: Words, tag: Words, group: Group
) -> TaggedTotals:
    """The tag of a group, and the rests of those of its totals that no double holds."""
    places = layout.places_of(group)
    exact = _whole(totals[places], signed=True)
    rests = exact - _exact(decoded(totals[places]))
    rests = {str(p): str(rest) for p, rest in zip(places, rests, strict=True) if rest}
    return TaggedTotals(round=round, tag=f"{_whole(tag)[0]:032x}", rests=rests)


def refuse_made_up(
    silo: str,
    known: TagKey,
    layout: SumLayout,
    keys: Sequence[str],
    shared: Named,
    got: TaggedTotals,
) -> None:
    """Refuse pooled sums of a silo's columns that are not those of the sum it was in."""
    if not _fits(known, layout, keys, shared, got):
        raise FederationError(
            f"silo {silo!r} is sent pooled sums of round {got.round} that do not fit their tag; "
            "expected the totals that came out of the secure sum it was in. The coordinator made "
            "them up, or a silo of the sum lied: ask the operator, and begin a new run."
        )


def _fits(
    known: TagKey, layout: SumLayout, keys: Sequence[str], shared: Named, got: TaggedTotals
) -> bool:
    """Return whether totals are those of the tag, whichever silos of the sum are in it."""
    own, key = layout.places(keys), bytes.fromhex(known.key)
    places = np.concatenate([own[name].numpy().ravel() for name in sorted(own)]).astype(np.int64)
    values = np.concatenate([shared[name].double().numpy().ravel() for name in sorted(own)])
    rests = np.array([int(got.rests.get(str(place), "0")) for place in places], object)
    if not (np.abs(values) <= LARGEST_SUM).all():  # NaN is not either
        return False
    if (np.abs(rests) > np.abs(values) * (_ROUNDED / STEP)).any():
        return False
    totals, pad = _exact(values) + rests, _pad(key, layout.group_of(keys))
    left = int(got.tag, 16) - int((totals * _factors(key, layout)[places]).sum())
    return any((left - members * pad) % _MODULUS == 0 for members in range(1, known.most + 1))


def _exact(values: np.ndarray) -> np.ndarray:
    """Doubles as whole numbers of steps."""
    return np.array([int(math.ldexp(value, _BITS)) for value in values], object)


def _factors(key: bytes, layout: SumLayout) -> np.ndarray:
    return _whole(stream(derived(key, "factors of tags"), layout.size))


def _pad(key: bytes, group: Group) -> int:
    return int.from_bytes(derived(key, f"pad of the tag of {group}")[:NUMBER_BYTES])


def _whole(words: Words, *, signed: bool = False) -> np.ndarray:
    """Numbers as whole numbers of Python."""
    upper = words[:, 1].view(np.int64) if signed else words[:, 1]
    return (upper.astype(object) << 64) + words[:, 0].astype(object)


def _words(numbers: Sequence[int]) -> Words:
    content = b"".join((number % _MODULUS).to_bytes(NUMBER_BYTES, "little") for number in numbers)
    return np.frombuffer(content, "<u8").reshape(-1, 2).astype(np.uint64)
