"""The encoder of a client's columns: fitted on training rows alone, plain values, stable names."""

import json

import numpy as np
import pandas as pd
import pytest
from pydantic import ValidationError

from flic.tables import Column, SiloTable
from flic.tables.encoder import ONE_HOT_LEVELS, TableEncoder
from flic.tables.parts import CLIP, TEXT_WIDTH

DAYS = pd.date_range("2024-01-01", periods=12, freq="31D")
COMPLAINTS = [f"pain since {word}" for word in ("monday", "friday", "lunch", "ever", "may", "dawn")]
VALUES = {
    "age": ("number", [30.0, 40, 50, 60, np.nan, 80, 35, 45, 55, 65, 75, 85]),
    "smoker": ("boolean", [0.0, 1] * 6),
    "blood": ("category", ["A", "B", None, "AB"] * 3),
    "seen": ("date", [*DAYS[:11], pd.NaT]),
    "notes": ("text", [*COMPLAINTS, *COMPLAINTS[:5], None]),
}


def table(columns=VALUES, name="north"):
    kinds = tuple(Column(column, kind) for column, (kind, _) in columns.items())
    frame = pd.DataFrame({column: values for column, (_, values) in columns.items()})
    return SiloTable(name, kinds, frame, np.zeros(len(frame), int))


def single(kind, values):
    """Encoder of one column, and its training rows encoded."""
    own = table({"x": (kind, values)})
    encoder = TableEncoder.fit(own)
    return encoder, encoder.transform(own.frame)


def rows(values, kind=None):
    return pd.DataFrame(
        {"x": pd.Series(values, dtype="datetime64[ns]" if kind == "date" else None)}
    )


def test_held_out_rows_change_nothing():
    whole = table()
    training = np.arange(8)
    other = whole.frame.copy()
    other.loc[8:, "age"], other.loc[8:, "blood"], other.loc[8:, "notes"] = 1e9, "0", "else"
    changed = SiloTable(whole.name, whole.columns, other, whole.y)
    one, two = (TableEncoder.fit(t.take(training)) for t in (whole, changed))
    assert one == two


def test_json_round_trip_is_exact():
    own = table()
    encoder = TableEncoder.fit(own)
    text = json.dumps(encoder.model_dump(mode="json"), allow_nan=False)
    again = TableEncoder.model_validate(json.loads(text))
    assert again == encoder
    assert again.transform(own.frame).tobytes() == encoder.transform(own.frame).tobytes()


@pytest.mark.parametrize(
    ("kind", "key", "change"),
    [
        *((kind, "scale", "longer") for kind in ("numbers", "levels", "dates", "words")),
        ("numbers", "medians", [1.0]),
        ("numbers", "with_indicator", ["height"]),
        ("dates", "parts", []),
        ("levels", "levels", ["A"]),
    ],
)
def test_an_encoder_whose_parts_do_not_fit_is_refused(kind, key, change):
    facts = TableEncoder.fit(table()).model_dump(mode="json")
    [part] = [part for part in facts["parts"] if part["kind"] == kind]
    if change == "longer":
        change = {**part["scale"], "mean": [*part["scale"]["mean"], 0.0]}
    part[key] = change
    with pytest.raises(ValidationError, match=f"the features of its {kind} have other scales"):
        TableEncoder.model_validate(facts)


def test_features_are_named_after_their_columns():
    encoder = TableEncoder.fit(table())
    names = dict(zip(encoder.features, encoder.sources, strict=True))
    assert len(names) == len(encoder.features) == encoder.transform(table().frame).shape[1]
    expected = {
        "age": "age",
        "age is missing": "age",
        "smoker": "smoker",
        "blood = A": "blood",
        "blood is missing": "blood",
        "seen days": "seen",
        "notes direction 1 of north": "notes",
    }
    assert expected.items() <= names.items()


def test_names_are_the_same_at_every_client_except_of_text():
    north, south = (set(TableEncoder.fit(table(name=n)).features) for n in ("north", "south"))
    assert all(name.startswith("notes direction") for name in north ^ south)
    assert len(north - south) == len(south - north) > 0


def test_training_rows_are_standardised():
    x = TableEncoder.fit(table()).transform(table().frame)
    assert x.dtype == np.float32
    assert np.allclose(x.mean(0), 0, atol=1e-4)
    assert np.allclose(x.std(0), 1, atol=1e-3)


def test_missing_numbers_are_the_median_and_said_to_be_missing():
    encoder, x = single("number", [1.0, 2, 9, np.nan])
    assert encoder.features == ("x", "x is missing")
    middle = encoder.transform(rows([2.0]))
    assert x[3, 0] == middle[0, 0]
    assert x[3, 1] > x[0, 1] == middle[0, 1]


def test_no_indicator_where_training_rows_have_no_gap():
    encoder, _ = single("number", [1.0, 2, 9])
    assert encoder.features == ("x",)
    assert encoder.transform(rows([np.nan]))[0] == encoder.transform(rows([2.0]))[0]


def test_an_unseen_category_is_no_level():
    encoder, x = single("category", ["A", "B", "A", None])
    assert encoder.features == ("x = A", "x = B", "x is missing")
    unseen = encoder.transform(rows(["new"]))[0]
    absent = x.min(0)  # each feature where its indicator is 0
    assert unseen.tolist() == absent.tolist()
    assert encoder.unseen(rows(["new", "A", None, "old", "new"])) == {"x": ["new", "old"]}
    assert encoder.unseen(rows(["A", None])) == {}


@pytest.mark.parametrize("levels", [ONE_HOT_LEVELS, ONE_HOT_LEVELS + 1])
def test_many_levels_are_read_as_text(levels):
    encoder, _ = single("category", [f"level {i:03}" for i in range(levels)] * 2)
    assert ("x = level 000" in encoder.features) == (levels == ONE_HOT_LEVELS)
    assert ("x direction 1 of north" in encoder.features) == (levels > ONE_HOT_LEVELS)
    assert encoder.unseen(rows(["else", "level 000"])) == {"x": ["else"]}
    assert encoder.read_by_letters == ({"x"} if levels > ONE_HOT_LEVELS else set())


def test_dates_become_days_and_points_on_circles():
    encoder, x = single("date", pd.date_range("2024-01-01", periods=731, freq="D"))
    assert encoder.features == (
        "x days",
        "x season sin",
        "x season cos",
        "x weekday sin",
        "x weekday cos",
    )
    assert (np.diff(x[:, 0]) > 0).all()
    assert np.allclose(x[0, 3:], x[7, 3:], atol=1e-5)
    assert np.allclose(x[0, 1:3], x[366, 1:3], atol=0.02)


def test_hours_count_where_dates_have_them():
    encoder, x = single("date", pd.date_range("2024-01-01", periods=48, freq="h"))
    assert {"x hour sin", "x hour cos"} <= {*encoder.features}
    hours = [encoder.features.index(f"x hour {part}") for part in ("sin", "cos")]
    assert np.allclose(x[:24, hours], x[24:, hours], atol=1e-5)


def test_a_missing_date_is_the_middle_one():
    encoder, x = single("date", [pd.Timestamp("2024-01-01"), DAYS[3], DAYS[9], pd.NaT])
    assert x[3].tolist() == x[1].tolist()
    assert encoder.transform(rows([None], "date")).tolist() == [x[1].tolist()]


def test_text_tells_texts_apart_and_equal_ones_not():
    encoder, x = single("text", COMPLAINTS * 5)
    assert np.allclose(x[:6], x[6:12])
    assert np.abs(x[0] - x[1]).max() > 0.5
    assert encoder.parts[0].directions[0][0] == round(encoder.parts[0].directions[0][0], 6)
    assert len(encoder.parts[0].directions[0]) == TEXT_WIDTH


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("number", [3.0] * 6),
        ("boolean", [1.0] * 6),
        ("category", ["A"] * 6),
        ("date", [DAYS[0]] * 6),
        ("text", ["the same old story"] * 6),
        ("number", [np.nan] * 6),
        ("category", [None] * 6),
        ("date", [pd.NaT] * 6),
        ("text", [None] * 6),
    ],
)
def test_constant_and_empty_columns_are_harmless(kind, values):
    own = table(
        {"x": (kind, pd.Series(values, dtype="datetime64[ns]" if kind == "date" else None))}
    )
    encoder = TableEncoder.fit(own)
    x = encoder.transform(own.frame)
    assert x.shape == (6, 1)
    assert np.allclose(x, 0, atol=1e-5)


@pytest.mark.parametrize("column", VALUES)
def test_no_rows_have_the_same_features(column):
    own = table({column: VALUES[column]})
    encoder = TableEncoder.fit(own)
    assert encoder.transform(own.frame.iloc[:0]).shape == (0, len(encoder.features))


@pytest.mark.parametrize("value", [1e12, -1e12])
def test_a_wrong_comma_does_not_rule(value):
    encoder, _ = single("number", [1.0, 2, 3])
    assert encoder.transform(rows([value]))[0, 0] == np.sign(value) * CLIP


def test_no_columns_give_no_features():
    encoder = TableEncoder(parts=[])
    assert encoder.transform(pd.DataFrame(index=range(3))).shape == (3, 0)


# ---- new rows --------------------------------------------------------------------------------


def visits(seed, rows=60):
    """Columns of several ranges: two that hardly meet, two that mostly do, two flags, two dates."""
    rng = np.random.default_rng(seed)
    born = pd.Timestamp("1950-01-01") + pd.to_timedelta(rng.integers(0, 9000, rows), unit="D")
    seen = pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(0, 300, rows), unit="D")
    return {
        "age": ("number", rng.normal(50, 10, rows)),
        "dose": ("number", rng.normal(4, 1, rows)),
        "pulse": ("number", rng.normal(110, 20, rows)),
        "pressure": ("number", rng.normal(150, 20, rows)),
        "sex": ("number", (rng.random(rows) < 0.8).astype(float)),
        "fever": ("number", (rng.random(rows) < 0.1).astype(float)),
        "born": ("date", born),
        "seen": ("date", seen),
    }


@pytest.mark.parametrize("rows", [0, 1, 5, 20, 300])
def test_rows_like_those_of_the_fit_are_not_noted(rows):
    encoder = TableEncoder.fit(table(visits(0, 300)))
    assert [
        note for s in range(1, 20) for note in encoder.unlike(table(visits(s, rows)).frame)
    ] == []


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ("age", "dose", "most values of column 'age' lie outside "),
        (
            "pulse",
            "pressure",
            "columns 'pulse' and 'pressure' look swapped: each looks as the other",
        ),
        ("sex", "fever", "columns 'sex' and 'fever' look swapped"),
        ("born", "seen", "columns 'born' and 'seen' look swapped"),
    ],
)
def test_swapped_columns_are_noted(one, other, expected):
    encoder = TableEncoder.fit(table(visits(0)))
    frame = table(visits(1)).frame.rename(columns={one: other, other: one})
    assert expected in " ".join(encoder.unlike(frame))


def test_another_unit_is_noted_and_old_encoders_know_no_range():
    encoder = TableEncoder.fit(table(visits(0)))
    frame = table(visits(1)).frame
    frame["dose"] *= 1000
    [note] = encoder.unlike(frame)
    assert note.startswith("most values of column 'dose' lie outside ")
    assert list(encoder.model_copy(update={"ranges": {}}).unlike(frame)) == []
