"""Proposals of links: what looks alike is proposed with its evidence, nothing is linked."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from flic.data.tables import Column, SiloTable
from flic.data.tables.declared import Declared, Link
from flic.data.tables.linking import doubtful_links, name_similarity, propose_links


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
    assert best.factor == pytest.approx(0.45359)
    assert "pounds to kilograms" in best.evidence[1]
    [back] = propose_links([pounds, kilos])
    assert back.factor == pytest.approx(1 / 0.45359)
    assert "kilograms to pounds" in back.evidence[1]


def test_a_link_between_two_units_is_doubted():
    kilos, pounds = table("north", weight=WEIGHTS), table("south", weight=WEIGHTS / 0.45359)
    [doubt] = doubtful_links([kilos, pounds])
    assert (doubt.first, doubt.second) == (("north", "weight"), ("south", "weight"))
    assert doubt.factor == pytest.approx(0.45359)
    told = Declared(links={"weight": Link(name="weight", factor=0.45359)})
    assert doubtful_links([kilos, replace(pounds, declared=told)]) == []


def test_a_link_between_numbers_that_never_meet_is_doubted():
    north, south = table("north", dose=AGES), table("south", dose=-7.3 * AGES)
    [doubt] = doubtful_links([north, south])
    assert doubt.factor == 1
    assert "overlap by 0%" in doubt.evidence[0]
    few = [t.take(np.arange(10)) for t in (north, south)]
    assert doubtful_links(few) == []


def test_links_of_one_unit_are_not_doubted():
    assert doubtful_links([table("north", age=AGES), table("south", age=AGES + 15)]) == []
    words = [table(n, "category", age=[n] * 30) for n in ("north", "south")]
    assert doubtful_links(words) == []


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
