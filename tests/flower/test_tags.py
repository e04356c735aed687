"""Tags of totals: they fit the totals that came out of a sum, and nothing that anybody made up."""

from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
import torch

from flic.errors import FederationError
from flic.flower.pooling import SUMS
from flic.flower.secure.contribution import SumLayout
from flic.flower.secure.fixed_point import added, decoded, encoded
from flic.flower.secure.statements import Contents
from flic.flower.secure.tags import TagKey, own_tags, refuse_made_up, sent_totals, tag_words
from hospitals import SALT, settings_of

UNION = ("a" * 32, "b" * 32, "c" * 32)
KEY = bytes(range(32))
WORDS = tag_words([()])
COLUMNS = {"east": (0, 1, 2), "north": (0, 2), "south": (0, 1, 2)}


@pytest.fixture(scope="module", params=[SUMS, SUMS + 1])
def layout(request):
    settings = settings_of(method="linked", salt=SALT, network={"linked": {"random_features": 4}})
    return SumLayout(settings, "prepare", request.param, UNION)


@pytest.fixture(scope="module")
def made(layout):
    """The totals of three silos, and what each of them is to be sent with them."""
    rng = np.random.default_rng(0)
    parts = [
        rng.normal(size=layout.size) * 10.0 ** rng.integers(-6, 7, layout.size) for _ in COLUMNS
    ]
    return pooled(layout, parts)


def pooled(layout, parts):
    words = [encoded(part, members=3, silo="one") for part in parts]
    said = [Contents(names=[], columns=list(own), min_holders=2) for own in COLUMNS.values()]
    groups = layout.groups(said)
    tags = [own_tags(KEY, layout, groups, own) for own in words]
    total, tag = words[0], tags[0]
    for more, its in zip(words[1:], tags[1:], strict=True):
        total, tag = added(total, more), added(tag, its)
    found = {}
    for name, own in COLUMNS.items():
        group = layout.group_of(keys_of(own))
        place = groups.index(group)
        own = tag[place * WORDS : (place + 1) * WORDS]
        found[name] = sent_totals(layout.round, layout, total, own, group)
    return total, found


def keys_of(columns):
    return [UNION[i] for i in reversed(columns)]  # a silo's own order is any


def sent(layout, total, name):
    return layout.in_own_columns(decoded(total), keys_of(COLUMNS[name]))


def accepts(layout, name, shared, got, key=KEY, members=3):
    known = TagKey(key=key.hex(), union=list(UNION), members=members)
    with suppress(FederationError):
        refuse_made_up(name, known, layout, keys_of(COLUMNS[name]), shared, got)
        return True
    return False


@pytest.mark.parametrize("name", COLUMNS)
def test_the_totals_fit_their_tag(layout, made, name):
    total, tags = made
    assert accepts(layout, name, sent(layout, total, name), tags[name])
    assert tags[name].rests  # totals have more digits than a double, and none is lost
    # The coordinator, which lacks the key, and whoever has another one, can check nothing.
    assert not accepts(layout, name, sent(layout, total, name), tags[name], key=bytes(32))


@pytest.mark.parametrize("name", ["east", "north"])
def test_no_number_can_be_another(layout, made, name):
    total, tags = made
    shared = sent(layout, total, name)
    for tensor in shared:
        for other in (0.0, float("nan"), float("inf"), 1e300):
            changed = {**shared, tensor: shared[tensor].clone()}
            changed[tensor].view(-1)[-1] = other
            assert not accepts(layout, name, changed, tags[name])
        changed = {**shared, tensor: torch.nextafter(shared[tensor], torch.tensor(9e9).double())}
        assert not accepts(layout, name, changed, tags[name])


@pytest.mark.parametrize("members", [3, 6])
def test_totals_of_as_many_rows_again_do_not_fit_the_tag_again(layout, made, members):
    """Twice the totals have twice the tag of twice as many silos, for which no key is needed."""
    total, tags = made
    own = tags["east"]
    twice = f"{2 * int(own.tag, 16) % (2**255 - 19):064x}"
    rests = {place: str(2 * int(rest)) for place, rest in own.rests.items()}
    shared = {name: 2 * value for name, value in sent(layout, total, "east").items()}
    got = replace_with(own, tag=twice, rests=rests)
    assert accepts(layout, "east", shared, got, members=members) == (members == 6)


@pytest.mark.parametrize("power", [-10, 0, 20, 40, 61])
def test_a_change_by_a_power_of_two_is_no_easier_to_guess(layout, made, power):
    """Modulo 2^128 it would depend on few bits of a factor, and each guess show one more."""
    total, tags = made
    own, shared = tags["east"], sent(layout, total, "east")
    name = sorted(shared)[-1]
    changed = {**shared, name: shared[name].clone()}
    changed[name].view(-1)[0] += 2.0**power
    guesses = {(int(own.tag, 16) + (g << 64 + power)) % (2**255 - 19) for g in range(300)}
    assert not any(
        accepts(layout, "east", changed, replace_with(own, tag=f"{guess:064x}"))
        for guess in guesses
    )


def test_a_rest_makes_up_for_no_change(layout, made):
    total, tags = made
    shared, own = sent(layout, total, "east"), tags["east"]
    name = sorted(shared)[0]
    place = str(int(layout.places(keys_of(COLUMNS["east"]))[name].view(-1)[0]))
    changed = {**shared, name: shared[name].clone()}
    changed[name].view(-1)[0] += 1.0
    rests = {**own.rests, place: str(int(own.rests.get(place, "0")) - 2**64)}
    assert not accepts(layout, "east", changed, replace_with(own, rests=rests))


@pytest.mark.parametrize("tiny", [5e-20, -5e-20, 5e-324])
def test_a_total_of_nothing_is_no_number_below_a_step(layout, tiny):
    """As the variance of a column of zeros, it gave one row of another silo a size of 1e11."""
    nothing, tags = pooled(layout, np.zeros((len(COLUMNS), layout.size)))
    shared = sent(layout, nothing, "east")
    assert accepts(layout, "east", shared, tags["east"])
    for name in shared:
        changed = {**shared, name: shared[name].clone()}
        changed[name].view(-1)[0] = tiny
        assert not accepts(layout, "east", changed, tags["east"])


def test_a_total_is_no_other_double_with_a_rest_that_makes_up_for_it(layout, made):
    total, tags = made
    shared, own = sent(layout, total, "east"), tags["east"]
    places = layout.places(keys_of(COLUMNS["east"]))
    for name, value in shared.items():
        first = value.view(-1)[0]
        other = torch.nextafter(first, torch.tensor(9e9).double())
        place, off = str(int(places[name].view(-1)[0])), int((other - first).item() * 2**64)
        rests = {**own.rests, place: str(int(own.rests.get(place, "0")) - off)}
        changed = {**shared, name: value.clone()}
        changed[name].view(-1)[0] = other
        assert not accepts(layout, "east", changed, replace_with(own, rests=rests))


def test_silos_of_other_columns_have_other_tags(layout, made):
    _, tags = made
    assert tags["east"] == tags["south"]
    assert (tags["east"] == tags["north"]) == (not layout.is_of_columns)


def replace_with(own, **changes):
    return own.model_copy(update=changes)


def test_where_all_totals_are_averaged_there_are_no_tags(layout):
    last = replace(layout, round=0)
    assert last.groups([Contents(columns=[0], min_holders=2)]) == []
