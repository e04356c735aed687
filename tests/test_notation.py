"""Numbers of things in words; values as TOML and JSON write them come back as they were."""

import json
import math
import tomllib

import pytest

from flic.notation import (
    are,
    counted,
    json_values,
    listed,
    plain,
    quoted,
    toml_key,
    toml_list,
    toml_text,
)

NAMES = ["age", "a b", 'say "x"', "back\\slash", "tab\tnewline\n", "größe", "a.b", "", "#"]
OBEYED = "\u202e\u2066\u2028\u2029\x9b\x7f\x1b\u200f"


def test_numbers_of_things():
    assert [counted(num, "row") for num in (0, 1, 2, 1200)] == [
        "0 rows",
        "1 row",
        "2 rows",
        "1,200 rows",
    ]
    assert [counted(num, "class") for num in (1, 3)] == ["1 class", "3 classes"]
    assert [are(num) for num in (0, 1, 2)] == ["are", "is", "are"]


def test_of_many_values_the_first_ten_are_listed():
    assert listed([]) == ""
    assert listed(range(10)) == "0, 1, 2, 3, 4, 5, 6, 7, 8, 9"
    assert listed(range(12)) == "0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 2 more"
    assert quoted(["a", 1]) == "'a', '1'"


@pytest.mark.parametrize("name", [*NAMES, f"age{OBEYED}"])
def test_texts_and_keys_come_back(name):
    assert tomllib.loads(f"{toml_key(name)} = {toml_text(name)}") == {name: name}


def test_letters_that_a_terminal_obeys_are_escaped():
    assert not {*toml_text(OBEYED)} & {*OBEYED}
    assert plain(f"größe\t{OBEYED[0]}\n") == "größe\t\\u202e\n"


def test_a_list_comes_back():
    assert tomllib.loads(f"names = {toml_list(NAMES)}") == {"names": NAMES}


def test_keys_have_quotes_only_where_they_need_them():
    assert toml_key("blood-type_2") == "blood-type_2"
    assert toml_key("blood type") == '"blood type"'


def test_what_is_not_known_is_null():
    raw = {"a": math.nan, 3: (1.5, -math.inf, [math.inf, True, None, "x"])}
    known = json_values(raw)
    assert known == {"a": None, "3": [1.5, None, [None, True, None, "x"]]}
    assert json.loads(json.dumps(known, allow_nan=False)) == known
