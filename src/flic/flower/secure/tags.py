"""Tags of totals: by them a silo knows that pooled sums are those that came out of the sums.

Whoever makes up pooled sums chooses what a silo's likelihoods answer, and can ask on which side of
a border a person lies. So the silos of a sum share a key that the coordinator lacks. With it each
adds a tag for each group of silos that are sent the same columns: Σ_p r_p x_p + s, of its numbers x
in fixed point and of r and s that follow from the key. Tags add up as the numbers do, so that the
sum of the tags fits the totals, and no others. They are counted in a field of more elements than
there are numbers: modulo 2^128, a change by 2^k would depend on few bits of r, which can be tried.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Annotated

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from flic.flower.secure.contribution import Group, SumLayout
from flic.flower.secure.fixed_point import LARGEST_SUM, NUMBER_BYTES, STEP, Words, decoded
from flic.flower.secure.masks import derived, stream
from flic.flower.secure.statements import FalseTotals, Occasion
from flic.shapes import Named

_PRIME = 2**255 - 19

_LIMBS, _LIMB_BITS = 3, 96
"""A tag travels as numbers of so many bits, whose sums over silos have room in 128."""

_BITS = 64  # behind the point


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class TaggedTotals(_Strict):
    """The tag of a round's totals as one silo is sent them, and what doubles leave of them."""

    round: int
    tag: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    rests: dict[str, Annotated[str, Field(pattern="^-?[0-9]{1,40}$")]] = {}  # by place in the sum


class AllTotals(_Strict):
    """Tags of all sums that a silo is sent."""

    rounds: list[TaggedTotals] = []


class GroupTotals(_Strict):
    """Totals of a group of silos that are sent the same ones."""

    names: list[str]
    totals: TaggedTotals


class KnownTotals(_Strict):
    """Totals of all groups and rounds, as the coordinator keeps them."""

    groups: list[GroupTotals] = []


class TagKey(_Strict):
    """A silo's key to the tags of one sum."""

    key: str
    union: list[str]  # keys of all linked columns
    members: int  # silos in the sum


def tag_key(seeds: Mapping[str, bytes], occasion: Occasion) -> bytes:
    """The key of a sum, to which every silo gave a seed."""
    together = b"".join(seeds[name] for name in sorted(seeds))
    return derived(together, f"tags {occasion.digest}")


def committed(seed: bytes) -> str:
    """A digest of a silo's seed for tags, so that it gives all peers the same one."""
    return derived(seed, "commitment to a seed of tags").hex()


def tag_words(groups: Sequence[Group]) -> int:
    """Count of the numbers that the tags of these groups travel as."""
    return _LIMBS * len(groups)


def own_tags(key: bytes, layout: SumLayout, groups: Sequence[Group], words: Words) -> Words:
    """Tags of a silo's numbers, one after the other; `words` are of the whole layout."""
    weighed = _whole(words) * _factors(key, layout) if groups else np.zeros(0, object)
    tags = [int(weighed[layout.places_of(g)].sum()) + _pad(key, g) for g in groups]
    mask = 2**_LIMB_BITS - 1
    limbs = [tag % _PRIME >> _LIMB_BITS * i & mask for tag in tags for i in range(_LIMBS)]
    content = b"".join(limb.to_bytes(NUMBER_BYTES, "little") for limb in limbs)
    return np.frombuffer(content, "<u8").reshape(-1, 2).astype(np.uint64)


def sent_totals(
    round: int, layout: SumLayout, totals: Words, tag: Words, group: Group
) -> TaggedTotals:
    """The tag of a group, and the rests of those of its totals that no double holds."""
    places = layout.places_of(group)
    exact = _whole(totals[places])
    rests = exact - _exact(decoded(totals[places]))
    rests = {str(p): str(rest) for p, rest in zip(places, rests, strict=True) if rest}
    limbs = (int(limb) << _LIMB_BITS * i for i, limb in enumerate(_whole(tag)))
    return TaggedTotals(round=round, tag=f"{sum(limbs) % _PRIME:064x}", rests=rests)


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
        raise FalseTotals(
            f"silo {silo!r} is sent pooled sums of round {got.round} that do not fit their tag; "
            "expected the totals that came out of the secure sum it was in. The coordinator made "
            "them up, or a silo of the sum lied: ask the operator, and begin a new run.",
            got.round,
        )


def _fits(
    known: TagKey, layout: SumLayout, keys: Sequence[str], shared: Named, got: TaggedTotals
) -> bool:
    """Return whether totals are those of the tag."""
    own, key = layout.places(keys), bytes.fromhex(known.key)
    places = np.concatenate([own[name].numpy().ravel() for name in sorted(own)]).astype(np.int64)
    values = np.concatenate([shared[name].double().numpy().ravel() for name in sorted(own)])
    rests = np.array([int(got.rests.get(str(place), "0")) for place in places], object)
    if not (np.abs(values) <= LARGEST_SUM).all():  # NaN is not either
        return False
    totals = _exact(values) + rests
    if (values != _doubles(totals)).any():  # only these doubles do they travel as
        return False
    weighed = int((totals * _factors(key, layout)[places]).sum())
    pads = known.members * _pad(key, layout.group_of(keys))
    return (int(got.tag, 16) - weighed - pads) % _PRIME == 0


def _exact(values: np.ndarray) -> np.ndarray:
    """Doubles as whole numbers of steps; what is below a step is cut off."""
    return np.array([int(math.ldexp(value, _BITS)) for value in values], object)


def _doubles(totals: np.ndarray) -> np.ndarray:
    """Whole numbers of steps as doubles, rounded as `decoded` rounds them."""
    sizes = np.abs(totals)
    whole, rest = (sizes >> _BITS).astype(float), (sizes & 2**_BITS - 1).astype(float)
    return np.where(totals < 0, -1.0, 1.0) * (whole + rest * STEP)


def _factors(key: bytes, layout: SumLayout) -> np.ndarray:
    """A number below 2^256 for each place, which is as good as an element of the field."""
    words = stream(derived(key, "factors of tags"), 2 * layout.size).astype(object).reshape(-1, 4)
    return (words << np.array([0, 64, 128, 192], object)).sum(1)


def _pad(key: bytes, group: Group) -> int:
    return int.from_bytes(derived(key, f"pad of the tag of {group}"))


def _whole(words: Words) -> np.ndarray:
    """Numbers as whole numbers of Python, with their signs."""
    return (words[:, 1].view(np.int64).astype(object) << 64) + words[:, 0].astype(object)
