"""Laws of secure sums: fixed point, masks that cancel, shares, and what the coordinator sees."""

from itertools import combinations

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2

from flic.errors import FederationError
from flic.flower.secure.fixed_point import LARGEST_SUM, STEP, added, decoded, encoded, negated
from flic.flower.secure.masks import mask_key, masks_with_peers, own_mask, public_bytes
from flic.flower.secure.shares import opened, recovered, sealed, split, threshold

NAMES = ["east", "north", "south", "west"]


def numbers(most):
    return st.lists(st.floats(-most, most, allow_subnormal=True), min_size=1, max_size=30)


def fixed(values, members=1):
    return encoded(np.array(values), members=members, silo="north")


# ---- fixed point ---------------------------------------------------------------------------


@given(numbers(LARGEST_SUM))
def test_a_number_comes_back_within_half_a_step_and_exactly_if_it_is_not_tiny(values):
    found = decoded(fixed(values))
    assert (np.abs(found - values) <= STEP / 2).all()
    large = np.abs(values) >= 2.0**-11
    assert (found[large] == np.array(values)[large]).all()


@given(st.lists(numbers(2.0**62 / 200), min_size=1, max_size=200))
@settings(max_examples=50)
def test_a_sum_of_200_silos_is_wrong_by_half_a_step_a_silo_at_most(silos):
    width = min(map(len, silos))
    total = np.zeros((width, 2), np.uint64)
    for own in silos:
        total = added(total, fixed(own[:width], members=200))
    # Whole steps, as integers of any size: floating-point sums would be rounded themselves.
    exact = [sum(_steps(own[i]) for own in silos) for i in range(width)]
    assert [_integer(words) for words in total] == exact


def _steps(value):
    """A double in steps, rounded to the nearest."""
    numerator, denominator = value.as_integer_ratio()
    return round_half_even(numerator * 2**64, denominator)


def round_half_even(numerator, denominator):
    whole, rest = divmod(numerator, denominator)
    twice = 2 * rest
    return whole + (twice > denominator or (twice == denominator and whole % 2))


def _integer(words):
    value = int(words[1]) << 64 | int(words[0])
    return value - (value >> 127 << 128)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 2.0**62, -1.1 * 2.0**60])
def test_a_number_that_might_not_fit_is_refused_at_the_silo(value):
    with pytest.raises(
        FederationError, match=r"no number, or larger than 1.15e\+18; expected less"
    ):
        fixed([0.0, value], members=4)


@given(st.binary(min_size=16, max_size=16), st.binary(min_size=16, max_size=16))
def test_addition_is_that_of_integers_modulo_2_128(a, b):
    x, y = (np.frombuffer(own, "<u8").reshape(1, 2).copy() for own in (a, b))
    whole = (int.from_bytes(a, "little") + int.from_bytes(b, "little")) % 2**128
    assert added(x, y).astype("<u8").tobytes() == whole.to_bytes(16, "little")
    assert not added(x, negated(x)).any()


# ---- masks ---------------------------------------------------------------------------------


def masks_of(keys, numbers, occasion="sum"):
    public = {name: public_bytes(key) for name, key in keys.items()}
    return {
        name: masks_with_peers(
            key, name, [(n, p) for n, p in public.items() if n != name], occasion, numbers
        )
        for name, key in keys.items()
    }


def test_masks_of_all_silos_cancel_and_those_of_fewer_do_not():
    masks = masks_of({name: mask_key(name.encode().rjust(16)) for name in NAMES}, 50)
    total = np.zeros((50, 2), np.uint64)
    for number, mask in enumerate(masks.values(), start=1):
        total = added(total, mask)
        assert total.any(1).all() == (number < len(masks))
        assert total.any() == (number < len(masks))


def test_masks_of_another_sum_are_others():
    keys = {name: mask_key(name.encode().rjust(16)) for name in NAMES}
    first, second = (masks_of(keys, 50, occasion)["east"] for occasion in ("one", "two"))
    assert (first != second).any(1).all()


def uniformity(words):
    """p-value of a chi-square test that all bytes are equally frequent."""
    counts = np.bincount(np.frombuffer(words.tobytes(), np.uint8), minlength=256)
    expected = counts.sum() / 256
    return chi2.sf(((counts - expected) ** 2 / expected).sum(), 255)


def test_what_the_coordinator_sees_of_one_silo_is_uniform():
    """The test can fail: the same numbers without masks are far from uniform."""
    values = fixed(np.linspace(0, 900, 20_000))
    seen = added(values, own_mask(bytes(range(16)), len(values)))
    assert uniformity(values) < 1e-12
    assert 1e-4 < uniformity(seen) < 1 - 1e-4


# ---- shares --------------------------------------------------------------------------------


@pytest.mark.parametrize(("members", "needed"), [(3, 3), (4, 3), (8, 6), (32, 22), (200, 134)])
def test_more_than_two_thirds_are_needed_so_that_no_two_lists_have_as_many(members, needed):
    assert threshold(members, least=3) == needed
    assert 2 * needed - members > members / 3 - 1


def test_any_threshold_of_shares_recovers_and_fewer_do_not():
    seed, names = bytes(range(16)), [f"silo {i}" for i in range(6)]
    parts = split(seed, names, needed=4)
    for chosen in combinations(names, 4):
        assert recovered({n: parts[n] for n in chosen}, names, needed=4) == seed
    for chosen in combinations(names, 3):
        some = {n: parts[n] for n in chosen}
        with pytest.raises(FederationError, match="3 shares of a mask are there; expected 4"):
            recovered(some, names, needed=4)
        assert recovered(some, names, needed=3) != seed


def test_shares_are_for_one_receiver_and_one_sum():
    mine, peer, stranger = (X25519PrivateKey.generate() for _ in range(3))
    parts = bytes(16), bytes(range(16)), bytes(range(16, 32))
    closed = sealed(parts, mine, public_bytes(peer), "a to b")
    assert opened(closed, peer, public_bytes(mine), "a to b") == parts
    for key, direction, content in (
        (stranger, "a to b", closed),
        (peer, "a to c", closed),
        (peer, "a to b", closed[:-1] + bytes([closed[-1] ^ 1])),
    ):
        with pytest.raises(FederationError, match="cannot be opened"):
            opened(content, key, public_bytes(mine), direction)


def test_a_key_that_hides_nothing_is_refused():
    with pytest.raises(FederationError, match="none that hides anything"):
        masks_with_peers(mask_key(bytes(16)), "east", [("west", bytes(32))], "sum", 1)
