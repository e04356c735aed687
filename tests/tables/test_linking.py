"""Proposals of links: what looks alike is proposed with its evidence, nothing is linked."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from flic.tables import Column, SiloTable
from flic.tables.declared import Declared, Link
from flic.tables.linking import doubtful_links, name_similarity, propose_links


def table(name, kind="number", **columns):
    frame = pd.DataFrame(columns)
    kinds = tuple(Column(c, kind) for c in columns)
    return SiloTable(name, kinds, frame, np.zeros(len(frame), np.int64))


RNG = np.random.default_rng(0)
AGES, WEIGHTS = RNG.normal(50, 9, 200), RNG.normal(75, 9, 200)


@pytest.mark.parametrize(
    ("a", "b"), [("age", "Age_years"), ("blood_pressure", "bloodpressure"), ("chol", "cholesterol")]
)
def test_names_that_people_would_match_are_alike(a, b):
    assert name_similarity(a, b) == name_similarity(b, a) > 0.5
    assert name_similarity(a, "ward") < 0.5


def test_a_renamed_column_is_proposed_with_its_evidence():
    [best] = propose_links([table("north", age=AGES), table("south", age_years=AGES + 1)])
    assert (best.first, best.second) == (("north", "age"), ("south", "age_years"))
    assert best.score > 0.8
    assert "names" in best.evidence[0]
    assert "ranges overlap" in best.evidence[1]


def test_another_unit_is_seen_whoever_comes_first():
    kilos, pounds = table("north", weight=WEIGHTS), table("south", weight_lb=WEIGHTS / 0.45359)
    [best] = propose_links([kilos, pounds])
    assert best.link.factor == pytest.approx(0.45359)
    assert "pounds to kilograms" in best.evidence[1]
    [back] = propose_links([pounds, kilos])
    assert back.link.factor == pytest.approx(1 / 0.45359)
    assert "kilograms to pounds" in back.evidence[1]


def test_a_link_between_two_units_is_doubted():
    kilos, pounds = table("north", weight=WEIGHTS), table("south", weight=WEIGHTS / 0.45359)
    [doubt] = doubtful_links([kilos, pounds])
    assert (doubt.first, doubt.second) == (("north", "weight"), ("south", "weight"))
    assert doubt.link == Link(name="weight", factor=0.45359)
    told = Declared(links={"weight": Link(name="weight", factor=0.45359)})
    assert doubtful_links([kilos, replace(pounds, declared=told)]) == []


def test_a_link_between_numbers_that_never_meet_is_doubted():
    north, south = table("north", dose=AGES), table("south", dose=-7.3 * AGES)
    [doubt] = doubtful_links([north, south])
    assert doubt.link == Link(name="dose")
    assert "overlap by 0%" in doubt.evidence[0]
    few = [t.take(np.arange(10)) for t in (north, south)]
    assert doubtful_links(few) == []


def test_a_range_within_a_far_wider_one_is_doubted():
    [doubt] = doubtful_links([table("north", dose=AGES), table("south", dose=AGES * 1e9 - 3e10)])
    assert "overlap by 0%" in doubt.evidence[0]


@pytest.mark.parametrize("place", [0, 1, 2])
def test_the_odd_one_is_doubted_wherever_it_stands(place):
    tables = [
        table(n, weight=WEIGHTS / (0.45359 if i == place else 1)) for i, n in enumerate("abc")
    ]
    [doubt] = doubtful_links(tables)
    assert doubt.second[0] == "abc"[place]
    assert doubt.link.factor == pytest.approx(0.45359)
    assert "1 more" in doubt.evidence[0]


def test_a_unit_is_mended_on_top_of_the_link_that_is_there():
    half = Declared(links={"w": Link(name="weight", factor=0.5, offset=3.0)})
    south = replace(table("south", w=(WEIGHTS / 0.45359 - 3) * 2), declared=half)
    [doubt] = doubtful_links([table("north", weight=WEIGHTS), south])
    factor, offset = doubt.link.factor, doubt.link.offset
    assert (factor, offset) == pytest.approx((0.5 * 0.45359, 3 * 0.45359))
    mended = Declared(links={"w": doubt.link})
    assert doubtful_links([table("north", weight=WEIGHTS), replace(south, declared=mended)]) == []


def test_proposals_are_under_the_name_that_is_shared():
    renamed = Declared(links={"sysbp": Link(name="pressure")})
    north = replace(table("north", sysbp=AGES), declared=renamed)
    [found] = propose_links([north, table("south", sys_bp=AGES)])
    assert found.link == Link(name="pressure")
    mended = Declared(links={"sys_bp": found.link})
    assert propose_links([north, replace(table("south", sys_bp=AGES), declared=mended)]) == []


def test_levels_that_never_meet_are_doubted():
    codes = [table(n, "category", smoker=w * 20) for n, w in [("a", ["0", "1"]), ("b", ["n", "y"])]]
    [doubt] = doubtful_links(codes)
    assert "0% of the levels" in doubt.evidence[0]


def test_links_of_one_unit_are_not_doubted():
    assert doubtful_links([table("north", age=AGES), table("south", age=AGES + 15)]) == []
    words = [table(n, "category", age=["old", n] * 30) for n in ("north", "south")]
    assert doubtful_links(words) == []
    rare, usual = (np.arange(100.0) % every == 0 for every in (33, 5))
    flags = [table(n, flag=own.astype(float)) for n, own in [("north", rare), ("south", usual)]]
    assert doubtful_links(flags) == []


def test_what_is_linked_already_is_not_proposed():
    assert propose_links([table("north", age=AGES), table("south", age=AGES)]) == []


def test_levels_speak_for_categories():
    words = {"kind": "category"}
    one = table("north", **words, smoker=["yes", "no"] * 20)
    two = table("south", **words, smokes=["yes", "no"] * 20)
    other = table("east", **words, smokery=["red", "blue"] * 20)
    found = propose_links([one, two, other])
    assert [(p.first[0], p.second[0]) for p in found if "100%" in p.evidence[1]] == [
        ("north", "south")
    ]


def test_kinds_do_not_mix():
    numbers, words = table("north", age=AGES), table("south", "category", age_group=["a", "b"] * 9)
    assert propose_links([numbers, words]) == []
