"""Kinds are inferred from values, and later rows take the form of known columns."""

import numpy as np
import pandas as pd
import pytest

from flic.errors import DataError
from flic.tables import Column, Declared, columns, conform, find_columns
from flic.tables.columns import BadValues, Oddities, about_bad, as_others

N = 60


def cycle(*values):
    return [values[i % len(values)] for i in range(N)]


KINDS = {
    "integers": (range(N), "number"),
    "numbers as text": (cycle("1", "-2.5", "1e-3", "+.5", " 7 "), "number"),
    "with missing": (cycle("1", "2", "NA", "?", "", "n/a", "NULL", "."), "number"),
    "0 and 1": (cycle("0", "1"), "number"),
    "float column": (cycle(1.5, np.nan), "number"),
    "codes": (cycle("007", "008"), "category"),
    "booleans": (cycle(True, False), "boolean"),
    "true and false": (cycle("True", "FALSE", ""), "boolean"),
    "yes and no": (cycle("yes", "no"), "boolean"),
    "t and f": (cycle("t", "f"), "boolean"),
    "yes alone": (cycle("yes"), "category"),
    "yes, no, maybe": (cycle("yes", "no", "maybe"), "category"),
    "days": (cycle("2024-01-31", "1999-12-01"), "date"),
    "times": (cycle("2024-01-31T10:20:30", "2024-01-31 10:20:30+02:00"), "date"),
    "days with points": (cycle("31.01.2024", "1.12.1999"), "date"),
    "days with slashes": (cycle("31/01/2024", "2024/01/31"), "date"),
    "date column": (pd.date_range("2024", periods=N), "date"),
    "eight digits": (cycle("20240131"), "number"),
    "words": (cycle("red", "green"), "category"),
    "many short words": ([f"w{i}" for i in range(N)], "category"),
    "sentences": ([f"patient {i} felt much better today" for i in range(N)], "text"),
    "few sentences": (cycle("felt much better today", "felt far worse than before"), "category"),
    "categorical": (pd.Categorical(cycle("a", "b")), "category"),
}


@pytest.mark.parametrize(("values", "kind"), KINDS.values(), ids=KINDS)
def test_kinds(values, kind):
    assert find_columns(pd.DataFrame({"x": values}), Declared()) == (Column("x", kind),)


@pytest.mark.parametrize(
    ("key", "values", "kind"),
    [
        ("categories", range(N), "category"),
        ("texts", cycle("red", "green"), "text"),
        ("dates", cycle("20240131"), "date"),
        ("numbers", cycle("007"), "number"),
    ],
)
def test_declared_kinds_win(key, values, kind):
    declared = Declared(**{key: ("x",)})
    assert find_columns(pd.DataFrame({"x": values}), declared) == (Column("x", kind),)


def test_columns_left_out_and_empty_ones_are_no_features():
    frame = pd.DataFrame({"a": range(N), "b": "x", "c": "NA", "d": range(N)})
    found = find_columns(frame, Declared(drop=("a",), ids=("b",)))
    assert found == (Column("d", "number"),)


def test_all_mixed_columns_are_listed():
    frame = pd.DataFrame({"a": cycle("1", "2", "low"), "b": cycle("1", "x", "2"), "c": range(N)})
    with pytest.raises(DataError) as refusal:
        find_columns(frame, Declared())
    assert "column 'a' has mixed types: mostly numbers, but 20 of 60" in str(refusal.value)
    assert "'low' (data rows 3, 6, 9)" in str(refusal.value)
    assert "column 'b'" in str(refusal.value)


@pytest.mark.parametrize("declared", [{"missing": {"a": ("low",)}}, {"missing": {"*": ("low",)}}])
def test_what_is_declared_missing_is_not_mixed(declared):
    frame = pd.DataFrame({"a": cycle("1", "2", "low")})
    assert find_columns(frame, Declared(**declared)) == (Column("a", "number"),)


def test_every_kind_has_its_form():
    raw = pd.DataFrame(
        {
            "number": ["1.5", "?", "0"],
            "boolean": ["Yes", "", "no"],
            "category": ["1.0", "NA", " b "],
            "text": ["a b", None, "c"],
            "date": ["31.01.2024", "", "2024-01-31T12:00:00+02:00"],
        }
    )
    columns = [Column(name, name) for name in raw.columns]
    frame, odd = conform(raw, columns, Declared(missing={"number": (0,)}))
    assert odd == Oddities((), {})
    expected = {"number": "float64", "boolean": "float64", "category": "object", "text": "object"}
    assert frame.dtypes.astype(str).to_dict() == expected | {"date": "datetime64[ns]"}
    assert frame["number"].isna().tolist() == [False, True, True]
    assert frame["boolean"].tolist()[::2] == [1.0, 0.0]
    assert frame["category"].tolist() == ["1", None, "b"]
    assert frame["text"].tolist() == ["a b", None, "c"]
    assert frame["date"].tolist()[::2] == [
        pd.Timestamp("2024-01-31"),
        pd.Timestamp("2024-01-31 10"),
    ]
    assert pd.isna(frame["date"][1])


@pytest.mark.parametrize("values", [[1, 2], [1.0, 2.0], ["1", "2"], ["1.0", "2.00"]])
def test_levels_are_the_same_from_any_source(values):
    frame, _ = conform(pd.DataFrame({"x": values}), [Column("x", "category")], Declared())
    assert frame["x"].tolist() == ["1", "2"]


def test_later_rows_that_differ_are_handled_and_said():
    raw = pd.DataFrame(
        {"new": [1, 2, 3], "age": ["41", "old", "no"], "nr": [1, 2, 3]}, index=[5, 3, 4]
    )
    columns = [Column("age", "number"), Column("stay", "date"), Column("drug", "category")]
    frame, odd = conform(raw, columns, Declared(ids=("nr",)))
    assert list(frame.columns) == ["age", "stay", "drug"]
    assert frame["age"].tolist()[0] == 41.0
    assert frame[["stay", "drug"]].isna().all(axis=None)
    assert frame["stay"].dtype == "datetime64[ns]"
    assert odd.names == (
        "has no columns 'stay', 'drug'; all their values count as missing.",
        "has 1 further column that is not used: 'new'.",
    )
    assert {name: about_bad(name, bad) for name, bad in odd.bad.items()} == {
        "age": "2 values of column 'age' are not numbers and count as missing; the first is 'old' "
        "in row 2."
    }


def test_a_single_value_is_spoken_of_as_one():
    _, odd = conform(pd.DataFrame({"x": ["1", "?", "old"]}), [Column("x", "number")], Declared())
    assert about_bad("x", odd.bad["x"]) == (
        "1 value of column 'x' is not a number and counts as missing; the first is 'old' in row 3."
    )


def test_a_date_reads_the_same_alone_as_among_others():
    columns = [Column("x", "date")]
    many, _ = conform(pd.DataFrame({"x": ["31/01/2024", "02/01/2024"]}), columns, Declared())
    alone, _ = conform(pd.DataFrame({"x": ["02/01/2024"]}), columns, Declared())
    assert many["x"][1] == alone["x"][0] == pd.Timestamp("2024-01-02")


def test_no_rows_are_no_problem():
    frame, _ = conform(pd.DataFrame({"x": []}), [Column("x", "number")], Declared())
    assert frame["x"].dtype == "float64"
    assert len(frame) == 0


@pytest.mark.parametrize("dtype", ["str", "object"])
def test_numbers_read_the_same_at_once_and_one_by_one(dtype):
    odd = ["1", " 2.5 ", "1e400", "inf", "nan", "1_000", "0x10", "-9", "٣", "", "-", "007", "+.5"]
    raw = pd.DataFrame({"x": pd.Series(odd, dtype=dtype)})
    declared = Declared(missing={"x": (-9,)}, missing_markers=("", "-", "nan"))
    frame, odd = conform(raw, [Column("x", "number")], declared)
    known = frame["x"].dropna()
    assert known.to_dict() == {0: 1.0, 1: 2.5, 11: 7.0, 12: 0.5}
    assert odd.bad == {"x": BadValues("number", 5, 3, "1e400")}


def test_true_is_no_number():
    _, odd = conform(pd.DataFrame({"x": [True, False]}), [Column("x", "number")], Declared())
    assert odd.bad["x"].count == 2


@pytest.mark.parametrize("text", ["1e200", "-3e39", "9" * 40])
def test_numbers_whose_squares_overflow_are_none(text):
    _, odd = conform(pd.DataFrame({"x": ["1", text]}), [Column("x", "number")], Declared())
    assert odd.bad["x"].first == text


@pytest.mark.parametrize("text", ["9999-12-31", "0001-01-01"])
def test_dates_beyond_the_calendar_are_none(text):
    frame, odd = conform(
        pd.DataFrame({"x": ["2024-01-31", text]}), [Column("x", "date")], Declared()
    )
    assert odd.bad["x"] == BadValues("date", 1, 2, text)
    assert frame["x"].isna().tolist() == [False, True]


@pytest.mark.parametrize("value", [[1, 2], {"a": 1}, np.arange(2)])
def test_cells_of_several_parts_are_refused(value):
    frame = pd.DataFrame({"dose": [1.0, 2.0], "tests": [value, value]})
    with pytest.raises(DataError, match=r"'tests' holds lists .* expected one value in each cell"):
        find_columns(frame, Declared())


def test_columns_are_read_as_others_read_them_where_they_can_be():
    frame = pd.DataFrame(
        {"cp": ["1", "2", "3"], "zip": ["8001", "8002", "x"], "sex": ["1", "0", "1"]}
    )
    theirs = {"cp": "category", "zip": "number", "sex": "category", "age": "number"}
    declared = as_others(frame, Declared(numbers=("sex",), drop=("id",)), theirs)
    assert declared.kinds == {"cp": "category", "sex": "number"}
    assert declared.drop == ("id",)
    assert as_others(frame, Declared(), {}) == Declared()


@pytest.mark.parametrize("odd", ["2024-02-30", "30.02.2024", "2024-13-01", "9999-12-31", "soon"])
def test_a_day_that_is_none_among_dates_is_questioned(odd):
    frame = pd.DataFrame({"seen": ["2024-02-01", "2024-02-02", odd]})
    with pytest.raises(DataError, match="mostly dates, but 1 of 3 values is not, such") as refusal:
        find_columns(frame, Declared())
    assert f"such as '{odd}' (data row 3)" in str(refusal.value)
    assert ("If a day is mistyped, correct it; if this" in str(refusal.value)) == (odd != "soon")


def test_notes_that_begin_with_a_date_are_text():
    notes = [f"2024-02-{day:02} 12:00 seen by the nurse on duty" for day in range(1, 29)]
    [column] = find_columns(pd.DataFrame({"notes": notes}), Declared())
    assert column.kind == "text"


ODD = [
    *("1", "0", "-1", "+3", "007", "0.5", "00.5", "-0", "1.0", "01.0", "1e5", "1e31", "1e400"),
    *("inf", "nan", "", "NA", "?", " 7 ", "1.", "+.5", "0x10", "1_000", "1,5", "١", "１", "999"),
]


@pytest.mark.slow
@pytest.mark.parametrize("declared", [Declared(), Declared(missing={"*": (999, "0")})])
def test_the_first_sight_of_numbers_agrees_with_a_closer_look(declared, monkeypatch):
    texts = [pd.DataFrame({"x": [a, b, "2"]}) for a in ODD for b in ODD]
    frames = texts + [pd.DataFrame({"x": pd.to_numeric(f["x"], errors="coerce")}) for f in texts]
    at_sight = [columns.look_at_columns(frame, declared) for frame in frames]
    monkeypatch.setattr(columns, "are_plain_numbers", lambda raw, declared: False)
    assert at_sight == [columns.look_at_columns(frame, declared) for frame in frames]
