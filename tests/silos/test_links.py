"""Links that are declared: other names, other units, and columns that mean something else."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from flic.data.task import Classification, Regression
from flic.methods.linked.linked_client import LinkedClient
from flic.silos.candidates import LINKED
from flic.silos.encoding import encode, linked_features
from flic.silos.explanations import explanations
from flic.silos.fit_settings import FitSettings
from flic.tables import Column, Declared, SiloTable

SETTINGS = FitSettings(network={"linked": {"random_features": 16}})
COLUMNS = ("weight", "height")


def ward(name, seed, columns=COLUMNS, rows=24):
    rng = np.random.default_rng(seed)
    y = np.arange(rows) % 2
    x = rng.normal(size=(rows, 2)) * [8, 5] + [70, 170] + np.outer(y, [6, -3])
    frame = pd.DataFrame(x, columns=list(columns))
    return SiloTable(name, tuple(Column(c, "number") for c in columns), frame, y)


def encoded(tables):
    rows = {t.name: (np.arange(16), np.arange(16, len(t))) for t in tables}
    return encode(tables, Classification(2), rows)


def scores(tables):
    """Held-out scores of every served client."""
    together = encoded(tables)
    models = LINKED.learn(together, SETTINGS, seed=0).models
    rows = {silo.name: silo.held_out for silo in together.silos}
    return {name: model.predict(rows[name]) for name, model in models.items()}


@pytest.fixture
def plain():
    return [ward(name, seed) for seed, name in enumerate("abc")]


def in_pounds(table):
    """The same client with other names and units, and links that say so."""
    frame = table.frame.rename(columns={"weight": "lbs", "height": "tall"})
    frame["lbs"] = frame["lbs"] / 0.4536
    declared = Declared.model_validate(
        {"links": {"lbs": {"name": "weight", "factor": 0.4536}, "tall": "height"}}
    )
    columns = tuple(Column(c, "number") for c in ("lbs", "tall"))
    return replace(table, frame=frame, columns=columns, declared=declared)


@pytest.mark.slow
def test_another_name_and_unit_change_nothing(plain):
    expected = scores(plain)
    got = scores([in_pounds(plain[0]), *plain[1:]])
    for name in expected:
        np.testing.assert_allclose(got[name], expected[name], atol=2e-3)


def test_without_the_links_nobody_learns_from_it(plain):
    apart = replace(in_pounds(plain[0]), declared=Declared())
    served = LINKED.served(encoded([apart, *plain[1:]]))
    assert served == ["b", "c"]


def test_an_unlinked_column_is_private(plain):
    declared = Declared(unlinked=("weight", "height"))
    tables = [replace(plain[0], declared=declared), *plain[1:]]
    assert LINKED.served(encoded(tables)) == ["b", "c"]


def test_columns_of_one_name_and_two_kinds_are_not_linked():
    gaps = [None, *"ab" * 6]

    def keys(kind, values):
        frame = pd.DataFrame({"g": values, "x": np.arange(13.0)})
        columns = (Column("g", kind), Column("x", "number"))
        table = SiloTable(kind, columns, frame, np.arange(13) % 2)
        rows = {kind: (np.arange(13), np.arange(2))}
        [silo] = encode([table], Classification(2), rows).silos
        return {*linked_features(silo)[0]}

    numbers = keys("number", [None, *np.arange(12.0)])
    booleans = keys("boolean", pd.array([None, *[True, False] * 6], dtype="boolean"))
    levels = keys("category", gaps)
    assert len(numbers) == len(booleans) == 3
    assert numbers & booleans == numbers & levels == booleans & levels == {"x"}


@pytest.mark.parametrize("kind", ["date", "text"])
def test_dates_and_texts_are_private_unless_they_are_declared(kind):
    days = pd.date_range("2024-01-01", periods=14)
    values = days if kind == "date" else [f"seen on day {d.day} by {d.day_name()}" for d in days]

    def silo(name, links):
        frame = pd.DataFrame({"visit": values, "x": np.arange(14.0)})
        columns = (Column("visit", kind), Column("x", "number"))
        declared = Declared.model_validate({"links": links})
        table = SiloTable(name, columns, frame, np.arange(14) % 2, declared=declared)
        return table, encode([table], Classification(2), {name: (np.arange(14), np.arange(2))})

    def common(links):
        tables, silos = zip(*(silo(name, links) for name in "ab"), strict=True)
        keys = [{*linked_features(own.silos[0])[0]} for own in silos]
        return keys[0] & keys[1], {*tables[0].shared} & {*tables[1].shared}

    assert common({}) == ({"x"}, {Column("x", "number")})
    keys, columns = common({"visit": "visit"})
    assert Column("visit", kind) in columns
    assert (len(keys) > 1) == (kind == "date")  # directions of words are of a client's own rows


def test_a_factor_of_nothing_is_refused():
    with pytest.raises(ValueError, match="expected a factor other than 0"):
        Declared.model_validate({"links": {"a": {"name": "b", "factor": 0}}})


# ---- responses ----------------------------------------------------------------------------------


def clinic(name, seed, rows=24):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 2)) * [8, 5] + [70, 170]
    y = 3 * x[:, 0] - 2 * x[:, 1] + rng.normal(size=rows) * 5
    frame = pd.DataFrame(x, columns=list(COLUMNS))
    return SiloTable(name, tuple(Column(c, "number") for c in COLUMNS), frame, y)


@pytest.mark.slow
def test_responses_are_pooled_whatever_a_column_is_called():
    tables = [clinic(name, seed) for seed, name in enumerate("abc")]
    rows = {t.name: (np.arange(16), np.arange(16, len(t))) for t in tables}
    found = []
    for first in (tables[0], in_pounds(tables[0])):
        together = encode([first, *tables[1:]], Regression(-300.0, 100.0), rows)
        models = LINKED.learn(together, SETTINGS, seed=0).models
        found.append([models[s.name].predict(s.held_out) for s in together.silos])
    y = np.concatenate([t.y[16:] for t in tables])
    error = np.concatenate(found[0])[:, 0] - y
    assert (error**2).mean() < 0.2 * y.var()
    for own, other in zip(*found, strict=True):
        np.testing.assert_allclose(own, other, atol=0.5)


# ---- what is told --------------------------------------------------------------------------------


def told(tables):
    together = encoded(tables)
    learned = LINKED.learn(together, SETTINGS, seed=0)
    return explanations(together, SETTINGS, learned.linked)


@pytest.mark.slow
def test_a_column_in_another_unit_is_named(plain):
    frame = plain[1].frame.assign(weight=plain[1].frame["weight"] / 0.4536)
    found = told([plain[0], replace(plain[1], frame=frame), plain[2]])
    unlike = [line for line in found if "unlike" in line]
    assert len(unlike) == 1
    assert unlike[0].startswith("client 'b': column 'weight' is unlike the same column of other")


@pytest.mark.slow
@pytest.mark.parametrize("factor", [1e3, 1e9, 1e-9])
def test_a_unit_that_is_far_off_is_named_at_the_one_who_has_it(plain, factor):
    frame = plain[1].frame.assign(weight=plain[1].frame["weight"] * factor)
    found = told([plain[0], replace(plain[1], frame=frame), plain[2]])
    unlike = [line for line in found if "unlike" in line]
    assert len(unlike) == 1
    assert unlike[0].startswith("client 'b': column 'weight' is unlike the same column of other")


@pytest.mark.slow
def test_right_links_raise_no_alarm_and_what_others_add_is_told():
    for seed in range(10):
        found = told([ward(name, 10 * seed + i) for i, name in enumerate("abc")])
        assert not [line for line in found if "unlike" in line]
        gains, worth = found[:3], found[3:]
        for lines in (gains, worth):
            assert [line.split(":")[0] for line in lines] == [f"client '{c}'" for c in "abc"]
        assert all("the other clients' columns" in line for line in gains)
        assert all("link" in line for line in worth)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mix", "change"),
    [
        (-0.40, "improve its predictions"),
        (-0.495, "change its predictions little"),
        (-0.505, "change its predictions little"),
        (-0.60, "make its predictions worse"),
    ],
)
def test_a_change_below_two_per_cent_of_the_loss_is_called_little(plain, monkeypatch, mix, change):
    monkeypatch.setattr(LinkedClient, "best_scores", lambda own: {"own": -0.5, "mix": mix})
    assert f"client 'a': the other clients' columns {change}." in told(plain)
