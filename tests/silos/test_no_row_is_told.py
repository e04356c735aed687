"""An operator who wants to read rows from the sums that linked columns send."""

import numpy as np
import pandas as pd
import pytest
import torch

from flic.data.schema import SharedFeatures
from flic.data.task import Classification
from flic.method_settings import LinkedConfig
from flic.methods.linked.agreement import Agreement
from flic.methods.linked.client_sums import sent_sums
from flic.methods.linked.disclosure import DisclosedRows, told_detail
from flic.silos.encoding import encode, in_shared_units
from flic.tables import tables_from_frames


def patients(rows, seed):
    """A ward's table: levels, flags and gaps, some of them one person's alone."""
    rng = np.random.default_rng(seed)
    age = rng.integers(30, 80, rows).astype(float)
    pressure = rng.normal(130, 15, rows).round()
    pressure[rng.random(rows) < 1.5 / rows] = np.nan
    return pd.DataFrame(
        {
            "age": age,
            "chol": rng.normal(240, 40, rows).round(),
            "trestbps": pressure,
            "cp": rng.choice(
                ["typical", "atypical", "none", "other"], rows, p=[0.1, 0.3, 0.57, 0.03]
            ),
            "sex": rng.choice(["f", "m"], rows, p=[0.3, 0.7]),
            "coast": rng.choice(["yes", "no"], rows, p=[0.02, 0.98]),
            "ill": np.where(rng.random(rows) < 1 / (1 + np.exp(-(age - 55) / 8)), "ill", "well"),
        }
    )


def at_ward(frame, least):
    """A silo with this table, and what it agreed on with another one."""
    tables = tables_from_frames({"ward": frame, "other": frame}, label="ill")
    [table] = [t for t in tables.tables if t.name == "ward"]
    rows = {"ward": (np.arange(len(table)), np.arange(0))}
    client = in_shared_units(encode([table], tables.task, rows).silos[0], "linked")
    names = client.schema.features
    shared = {"linked": SharedFeatures(names, (0,) * len(names))}
    settings = LinkedConfig(min_rows=least, max_numbers_per_value=0.5)
    return Agreement(settings, shared, Classification(2), 0), client


def told(frame, least):
    """Uploads: counts and sums by class, and products of two columns; and the true rows."""
    agreed, client = at_ward(frame, least)
    sent = sent_sums(agreed, DisclosedRows.of(agreed, client), told_detail(agreed, client))
    return agreed.layout("linked", "linear").unpack(sent), client.train.x.double()


def rows_read(sums):
    """Rows that can be read off: each weighing that looks like an indicator of few rows.

    Weighings are a column, 1 less a column, 1 less several, and a column less another; the
    matrix of products gives, for each, the sum of the rows that it picks.
    """
    count = sums.count[:, 0]
    means = sums.total / count.clamp_min(1)[:, None]
    products = sums.scatter + (means.mT * count) @ means
    total, everyone = sums.total.sum(0), count.sum()
    p = len(total)
    weighings = [(torch.zeros(()), row) for row in torch.eye(p).double()]
    weighings += [(torch.ones(()), -row) for row in torch.eye(p).double()]
    weighings += [
        (torch.zeros(()), a - b) for a in torch.eye(p).double() for b in torch.eye(p).double()
    ]
    weighings += [
        (torch.ones(()), -(torch.eye(p).double()[i:j].sum(0)))
        for i in range(p)
        for j in range(i + 2, p)
    ]
    found = []
    for constant, v in weighings:
        picked = float(constant * everyone + v @ total)
        squares = float(constant * everyone + 2 * constant * v @ total + v @ products @ v)
        if (
            abs(picked - round(picked)) < 1e-6
            and abs(squares - picked) < 1e-6
            and 0 < round(picked) < 5
        ):
            found.append(((constant * total + products @ v) / picked, round(picked)))
    return found


def is_a_row(guess, rows):
    return bool(((rows - guess).abs() < 1e-3 * (1 + rows.abs())).all(1).any())


@pytest.mark.slow
@pytest.mark.parametrize("rows", [40, 60, 100, 300])
def test_rows_can_be_read_from_plain_sums_and_not_from_what_is_told(rows):
    lone = 0
    for seed in range(12):
        frame = patients(rows, seed)
        plain, true = told(frame, least=1)
        lone += sum(is_a_row(guess, true) for guess, count in rows_read(plain) if count == 1)
        hidden, true = told(frame, least=5)
        read = rows_read(hidden)
        assert not any(is_a_row(guess, true) for guess, _ in read)
        assert not read
    assert lone > 0


@pytest.mark.slow
@pytest.mark.parametrize("apart", [1, 4, 5])
def test_two_columns_that_differ_in_few_rows_tell_nothing_of_these(apart):
    """Their sums would: the difference is that of the few rows, in their class."""
    for seed in range(6):
        frame = patients(100, seed)
        later = frame["age"].copy()
        birthdays = np.random.default_rng(seed).choice(100, apart, replace=False)
        later.iloc[birthdays] += 1
        frame.insert(1, "age_out", later)
        plain, _ = told(frame, least=1)
        assert float((plain.total[:, 1] - plain.total[:, 0]).sum()) == pytest.approx(apart)
        sums, _ = told(frame, least=5)
        assert bool(((sums.total[:, 1] - sums.total[:, 0]) % 16 == 0).all())  # whole steps
        copy = DisclosedRows.of(*at_ward(frame, least=5))
        counts = frame.loc[birthdays, "ill"].value_counts()
        expected = 0 if counts.max() < 5 else counts.max()
        apart_in_copy = float((copy.columns[:, 1] - copy.columns[:, 0]).sum())
        assert apart_in_copy == pytest.approx(expected, abs=1e-9)


def with_relation(rows, seed, weights, wrong):
    """A ward's table with a column that is a weighing of others in all but so many rows."""
    frame, rng = patients(rows, seed), np.random.default_rng(seed)
    names = [f"part{i}" for i in range(len(weights))]
    for name in names:
        frame.insert(0, name, rng.normal(50, 9, rows).round(1))
    total = frame[names] @ np.array(weights) + 32
    few = rng.choice(np.flatnonzero(frame["ill"] == "ill"), wrong, replace=False)
    total.iloc[few] += rng.choice([-7, 3, 8], wrong)
    # A total stands before, among or after its parts.
    frame.insert(int(rng.integers(len(weights) + 1)), "total", total)
    return frame, [*names, "total"], np.array([*weights, -1.0])


RELATIONS = {
    "inch": [1 / 2.54],
    "fahrenheit": [1.8],
    "opposite": [-1.0],
    "two": [1.0, 1.0],
    "three": [1.0, 1.0, 1.0],
    "weighed": [0.5, -2.0, 1 / 3, 1.0],
}


@pytest.mark.parametrize("weights", RELATIONS.values(), ids=RELATIONS)
@pytest.mark.parametrize("wrong", [1, 4])
def test_a_relation_that_few_rows_break_tells_nothing_of_these(weights, wrong):
    """Σ total − Σ parts of a class would be what these rows are off by."""
    for rows, seed in ((60, 0), (80, 1), (100, 2)):
        frame, names, v = with_relation(rows, seed, weights, wrong)
        places = [list(frame.columns).index(name) for name in names]
        errors = (frame[names] @ v + 32)[frame["ill"] == "ill"]
        plain, _ = told(frame, least=1)
        read = plain.total[0, places] @ torch.from_numpy(v) + 32 * plain.count[0, 0]
        assert float(read) == pytest.approx(errors.sum(), abs=0.01)
        copy = DisclosedRows.of(*at_ward(frame, least=5))
        for c in (0, 1):
            off = copy.columns[copy.y == c][:, places] @ torch.from_numpy(v) + 32
            count = int((off.abs() > 1e-3).sum())
            assert count == 0 or count >= 5, (rows, c, count)


def test_a_gap_within_another_tells_nothing_of_the_row_beyond():
    frame = patients(100, 3)[["age", "chol", "ill"]]
    frame["chol"] = frame["chol"].where(np.arange(100) % 6 > 0)
    frame["hdl"] = frame["age"].where((np.arange(100) % 6 > 0) & (np.arange(100) != 7))
    sums, true = told(frame, least=5)
    gaps = [j for j in range(true.shape[1]) if ((true[:, j] == 0) | (true[:, j] == 1)).all()]
    one, other = gaps
    assert float((true[:, one] - true[:, other]).abs().sum()) == 1
    assert torch.equal(sums.total[:, one], sums.total[:, other])


@pytest.mark.slow
@pytest.mark.parametrize("rows", [40, 100])
def test_class_sums_of_a_level_count_enough_rows_or_nobody(rows):
    for seed in range(12):
        sums, true = told(patients(rows, seed), least=5)
        binary = ((true == 0) | (true == 1)).all(0)
        for total, count in zip(sums.total, sums.count, strict=True):
            ones, zeros = total[binary], count[binary] - total[binary]
            assert bool(((ones == 0) | (ones >= 5)).all())
            assert bool(((zeros == 0) | (zeros >= 5)).all())
