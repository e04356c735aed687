"""`flic check` says what the tables are like, and every problem at once, in sentences."""

import json
import sqlite3

import numpy as np
import pandas as pd
import pytest

ROWS = 40


def ward(rows=ROWS, seed=0, **columns):
    """Rows of a made ward; a column that is None is left out."""
    rng = np.random.default_rng(seed)
    made = {
        "age": rng.integers(20, 90, rows),
        "smoker": rng.choice(["yes", "no"], rows),
        "blood": rng.choice(["A", "B", "AB", "0"], rows),
        "ill": rng.permutation(np.arange(rows) % 2),
    }
    named = {name: values for name, values in (made | columns).items() if values is not None}
    return pd.DataFrame(named)


def words(values, *, at):
    """Numbers with words at some rows."""
    values = [str(value) for value in values]
    for row, word in at.items():
        values[row] = word
    return values


@pytest.fixture
def describe(tmp_path):
    """describe(frames, settings): federation.toml for files of the frames, or bytes for one."""

    def write(clients, settings="", own=None, name="federation.toml"):
        text = ['label = "ill"', settings]
        for client, content in clients.items():
            path = tmp_path / f"{client}.csv"
            if isinstance(content, bytes):
                path.write_bytes(content)
            elif content is not None:
                content.to_csv(path, index=False)
            text += ["[[clients]]", f'name = "{client}"', f'data = "{client}.csv"']
            text += [(own or {}).get(client, "")]
        (tmp_path / name).write_text("\n".join(text))
        return name

    return write


def test_sound_tables(flic, describe):
    """As a user types it, in a process of its own."""
    said = flic("check", describe({"a": ward(), "b": ward(seed=1, blood=None)}))
    assert (said.code, said.err) == (0, "")
    assert "no problems" in said.out
    assert "shared by 2 of 2: age, smoker" in said.out
    assert "0 20, 1 20" in said.out


def test_json_is_complete_and_stable(flic_here, describe):
    file = describe({"a": ward(), "b": ward(seed=1, blood=None)})
    said = flic_here("check", file, "--format", "json")
    assert said.out == flic_here("check", file, "--format", "json").out
    found = json.loads(said.out)
    assert (found["sound"], found["task"], found["classes"]) == (True, "classification", ["0", "1"])
    a, b = found["clients"]
    assert (a["rows"], a["labels"], a["missing_share"]) == (ROWS, {"0": 20, "1": 20}, 0.0)
    kinds = {column["name"]: column["kind"] for column in a["columns"]}
    assert kinds == {"age": "number", "smoker": "boolean", "blood": "category"}
    assert a["encoded_features"] > b["encoded_features"] >= 2
    assert found["shared"][0] == {"name": "age", "kind": "number", "clients": ["a", "b"]}
    assert found["problems"] == found["warnings"] == found["notices"] == []


PROBLEMS = {
    "missing file": (None, "", "a.csv: no such file"),
    "delimiter": (b"age:ill\n1:2\n", "", "has one column, and 2 if ':' separates them"),
    "encoding": (b"age,ill\n1,\xe9\n", "", "has bytes in line 2 that are not utf-8"),
    "empty": (b"", "", "is empty; expected a heading"),
    "ragged": (b"age,ill\n1,2\n1,2,3\n", "", "line 3 has 3 fields; expected 2"),
    "one name twice": (b"age,age,ill\n1,2,3\n", "", "more than one column of the name 'age'"),
    "no label": (
        ward(ill=None),
        "",
        "has no label column 'ill'; expected one of its columns 'age'",
    ),
    "labels undeclared": (
        ward(ill=np.arange(ROWS) % 4),
        "labels = [0, 1]",
        "label column 'ill' has the undeclared values '2', '3'; expected '0', '1'",
    ),
    "one class": (ward(ill=1), "", "has the class '1' only; expected at least two"),
    "few rows": (ward(rows=9), "", "has 9 rows with a label; expected at least 10"),
    "no features": (ward(age=None, smoker=None, blood=None), "", "has no feature column left"),
    "mixed types": (
        ward(dose=words(range(ROWS), at={3: "much", 7: "little"})),
        "",
        "column 'dose' has mixed types: mostly numbers, but 2 of 40 values are not, such as "
        "'much', 'little' (data rows 4, 8)",
    ),
    "decimal comma": (
        ward(dose=[f"{i},5" for i in range(ROWS)]),
        "",
        "column 'dose' has numbers with a decimal comma, such as '0,5'",
    ),
    "month first": (
        ward(seen=[f"02/{i % 28 + 1:02}/2024" for i in range(ROWS)]),
        "",
        "column 'seen' has dates with the month first, such as '02/13/2024'",
    ),
    "no such day": (
        ward(seen=words(["2024-02-01"] * ROWS, at={6: "2024-02-30"})),
        "",
        "column 'seen' has mixed types: mostly dates, but 1 of 40 values is not, such as "
        "'2024-02-30' (data row 7)",
    ),
    "declared twice": (ward(), 'ids = ["age"]\ndates = ["age"]', "'age' is declared to be two"),
    "nowhere": (ward(), 'drop = ["agee"]', "declares 'agee'; no client has such a column"),
    "large": (ward(400), "max_file_mb = 0.002", "a.csv: has 0.0041 MB; expected at most 0.002"),
    "unknown key": (ward(), "lables = [0, 1]", "lables: unknown key; expected one of"),
    "unknown key of a link": (
        ward(),
        'links = { age = { name = "years", factr = 2 } }',
        "links.age.factr: unknown key; expected one of name, factor, offset",
    ),
    "value twice": (ward(), "labels = { a = [0], b = [0, 1] }", "`labels` have '0' more than once"),
    "one class named": (ward(), "labels = [1]", "has the classes '1'; expected at least two"),
    "a number as label": (
        ward(ill=np.linspace(0, 1, ROWS)),
        "",
        "the labels have 40 different values in 80 rows, such as '0', '0.0256",
    ),
    "regression of words": (
        ward(ill=words(range(ROWS), at={0: "high"})),
        'task = "regression"\nrange = [0, 100]',
        "label column 'ill' has 'high'; expected numbers",
    ),
    "no range": (ward(), 'task = "regression"', "range: missing; expected [low, high]"),
    "range": (ward(), 'task = "regression"\nrange = [2, 1]', "got [2.0, 1.0]; expected the lower"),
    "range of classes": (ward(), "range = [0, 1]", "range: got one; expected none"),
    "kind of task": (ward(), 'task = "ranking"', 'task: got "ranking"; '),
    "kind of labels": (ward(), "labels = 2", "labels: got 2; expected a list of class names"),
    "kind of missing": (ward(), "missing = { age = 0 }", "expected a table of column = [values]"),
    "site and clients": (ward(), 'site = "ward"', "site: got it beside [[clients]]"),
}


@pytest.mark.parametrize(("content", "settings", "expected"), PROBLEMS.values(), ids=PROBLEMS)
def test_a_problem_is_one_sentence(flic_here, describe, content, settings, expected):
    said = flic_here("check", describe({"a": content, "b": ward(seed=1)}, settings))
    assert said.code == 1
    assert expected in said.err
    assert "no problems" not in said.out
    assert "problems: 1;" in said.err


OWN_PROBLEMS = {
    "not a date": ('dates = ["blood"]', "column 'blood' is declared a date, but 40 of 40 values"),
    "not a number": ('numbers = ["blood"]', "column 'blood' is declared a number, but"),
    "two things": ('ids = ["age"]\ndrop = ["age"]', "client 'a': 'age' is declared to be two"),
    "no such column": ('texts = ["notes"]', "Client 'a': declares 'notes'; expected some of its"),
    "no such class": ("labels = { ill = [1], well = [0] }", "have the classes 'ill', 'well'"),
    "encoding": ('encoding = "klingon"', "encoding 'klingon', which is not a text encoding"),
    "query": ('query = "SELECT 1"', "got a query; expected one only for .sqlite"),
}


@pytest.mark.parametrize(("own", "expected"), OWN_PROBLEMS.values(), ids=OWN_PROBLEMS)
def test_what_a_client_says_of_itself_is_refused(flic_here, describe, own, expected):
    clients = {"a": ward(), "b": ward(seed=1)}
    said = flic_here("check", describe(clients, "labels = [0, 1]", own={"a": own}))
    assert said.code == 1
    assert expected in said.err
    assert "problems: 1;" in said.err


def test_all_problems_of_all_clients_are_listed(flic_here, describe):
    clients = {"a": None, "b": ward(rows=5), "c": ward(ill=None), "d": ward()}
    file = describe(clients, "colour = 1", own={"b": "drops = []", "c": 'ids = ["patient"]'})
    said = flic_here("check", file)
    assert said.code == 1
    for expected in [
        "colour: unknown key",
        "client 'b': drops: unknown key; expected one of drop, ids",
        "Client 'a': a.csv: no such file",
        "Client 'b': has 5 rows",
        "Client 'c': has no label column",
        "Client 'c': declares 'patient'; expected some of its columns 'age'",
        "problems: 6;",
    ]:
        assert expected in said.err
    assert said.out.count("\nd ") == 1  # the sound one is shown


def test_a_file_of_two_gigabytes_is_refused_unread(flic_here, describe, tmp_path):
    file = describe({"a": ward(), "b": ward(seed=1)})
    with (tmp_path / "a.csv").open("r+b") as large:
        large.truncate(2 * 2**30)  # takes no place on the disk
    said = flic_here("check", file)
    assert said.code == 1
    assert "Client 'a': a.csv: has 2,048 MB; expected at most 1,024. Take a sample" in said.err


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["a"], "the federation has one client; expected at least two"),
        (["a", "a"], "client name 'a' is used more than once"),
        (["a", "../b"], "client name '../b' cannot name a folder"),
        ([], "clients: missing; expected [[clients]]"),
    ],
)
def test_names_of_clients(flic_here, describe, tmp_path, names, expected):
    describe({"a": ward()})
    clients = "".join(f'[[clients]]\nname = "{name}"\ndata = "a.csv"\n' for name in names)
    (tmp_path / "federation.toml").write_text(f'label = "ill"\n{clients}')
    said = flic_here("check", "federation.toml")
    assert said.code == 1
    assert expected in said.err
    assert "problems: 1;" in said.err


@pytest.mark.parametrize(
    ("content", "expected"),
    [(None, "no such file"), ("label = ", "not valid TOML"), ("clients = 3", "one such table per")],
)
def test_a_file_that_is_no_description(flic_here, tmp_path, content, expected):
    if content is not None:
        (tmp_path / "federation.toml").write_text(content)
    said = flic_here("check", "federation.toml")
    assert said.code == 1
    assert expected in said.err


def test_clients_without_a_common_class_are_named(flic_here, describe):
    other = ward(seed=1).replace({"ill": {0: "well", 1: "sick"}})
    said = flic_here("check", describe({"a": ward(), "b": other}))
    assert said.code == 1
    assert "Client 'a': has the classes '0', '1', of which no other client has a row" in said.err
    assert "Client 'b': has the classes 'sick', 'well', of which no other client" in said.err
    assert "problems: 2;" in said.err


def test_a_class_in_common_with_one_of_the_others_is_enough(flic_here, describe):
    later = ward(seed=2).assign(ill=1 + np.arange(ROWS) % 2)
    last = ward(seed=3).assign(ill=2 + np.arange(ROWS) % 2)
    assert flic_here("check", describe({"a": ward(), "b": later, "c": last})).code == 0


def test_columns_without_a_name_are_linked_with_nobody_s(flic_here, describe):
    clients = {"a": ward(), "b": ward(seed=1)}
    unnamed = {name: frame.rename(columns={"age": ""}) for name, frame in clients.items()}
    said = flic_here("check", describe(unnamed))
    assert (said.code, "unnamed" in said.out) == (0, False)
    assert "Client 'b': 'unnamed 1': without a name in the heading, so linked with no" in said.err
    assert "shared by 2 of 2: smoker, blood" in said.out
    named = dict.fromkeys(clients, 'links = { "unnamed 1" = "age" }')
    said = flic_here("check", describe(unnamed, own=named))
    assert (said.code, "without a name" in said.err) == (0, False)
    assert "shared by 2 of 2: age, smoker, blood" in said.out


def test_names_are_shown_as_letters_alone(flic_here, describe):
    odd = {"age": "a\x1b[31mge", "blood": "b\x9b2J"}
    clients = {"a": ward(), "b": ward(seed=1)}
    file = describe({name: frame.rename(columns=odd) for name, frame in clients.items()})
    said = flic_here("check", file)
    assert "shared by 2 of 2: a\\u001b[31mge, smoker, b\\u009b2J" in said.out
    text = flic_here("check", file, "--format", "json").out
    assert not {"\x1b", "\x9b"} & {*said.out, *said.err, *text}
    assert [own["name"] for own in json.loads(text)["shared"]] == [
        odd["age"],
        "smoker",
        odd["blood"],
    ]


NOTICES = {
    "all missing": ({"lab": ""}, "", "Client 'a': 'lab' not used: all values are missing."),
    "markers": ({"lab": "?"}, "", "Client 'a': 'lab' not used: all values are missing."),
    "own markers": ({"lab": "-"}, 'missing_markers = ["-"]', "'lab' not used: all values"),
    "declared value": ({"lab": 0}, "missing = { lab = [0.0] }", "'lab' not used: all values"),
    "any column": ({"lab": 7}, 'missing = { "*" = [7] }', "'lab' not used: all values"),
    "label missing": (
        {"ill": words(np.arange(ROWS) % 2, at={0: "NA", 5: "?"})},
        "",
        "Client 'a': 2 rows without a label are dropped.",
    ),
    "ids": ({"nr": range(ROWS)}, 'ids = ["nr"]', "'nr' not used: declared as ids."),
    "looks like ids": (
        {"nr": range(100, 100 + ROWS)},
        "",
        "'nr' look(s) like an id: all values are distinct. If so, write ids = [\"nr\"]",
    ),
    "constant": ({"lab": 3}, "", "'lab': the same in all rows"),
    "leak": (
        {"leak": np.arange(ROWS) % 2 * 5.5, "ill": np.arange(ROWS) % 2},
        "",
        'drop = ["leak"]',
    ),
    "leaking words": (
        {"leak": np.where(np.arange(ROWS) % 2, "in", "out"), "ill": np.arange(ROWS) % 2},
        "",
        "'leak' predict(s) the label (nearly) perfectly",
    ),
    "leaking absence": (
        {"leak": np.where(np.arange(ROWS) % 2, "", "9"), "ill": np.arange(ROWS) % 2},
        "",
        "'leak' predict(s) the label (nearly) perfectly",
    ),
    "zero": (
        {"chol": [0, 0, 0, 0, *range(200, 236)]},
        "",
        "'chol' is 0 in 10% of the rows, apart from all other values. If that means \"not "
        'measured", write missing = { chol = [0] }.',
    ),
    "sentinel": ({"my lab": [999, 999, *range(1, 39)]}, "", '{ "my lab" = [999] }'),
    "other kind": ({"blood": range(ROWS)}, "", "column 'blood' has different kinds"),
}


@pytest.mark.parametrize(("columns", "settings", "expected"), NOTICES.values(), ids=NOTICES)
def test_what_stops_nothing_is_said(flic_here, describe, columns, settings, expected):
    said = flic_here("check", describe({"a": ward(**columns), "b": ward(seed=1)}, settings))
    assert said.code == 0, said.err
    assert expected in said.err


def test_nothing_is_suspected_without_a_reason(flic_here, describe):
    rng = np.random.default_rng(3)
    innocent = {"dose": rng.normal(size=200), "children": rng.integers(0, 4, 200)}
    said = flic_here("check", describe({"a": ward(200, **innocent), "b": ward(200, seed=1)}))
    assert (said.code, said.err) == (0, "")


@pytest.mark.parametrize(
    "leak", [lambda y: 3 - 2 * y, lambda y: np.round(y / 10)], ids=["line", "steps"]
)
def test_responses_that_leak(flic_here, describe, leak):
    y = np.random.default_rng(0).permutation(np.repeat(np.arange(10) * 10.0, 20))
    frames = {name: ward(200, seed=i, ill=y, leak=leak(y)) for i, name in enumerate("ab")}
    said = flic_here("check", describe(frames, 'task = "regression"\nrange = [0, 80]'))
    assert said.code == 0
    assert said.err.count('write drop = ["leak"]') == 2
    assert "has 20 responses outside the range 0 to 80" in said.err
    assert "0 to 90" in said.out


def test_what_a_client_declares_replaces_the_default(flic_here, describe):
    codes = {"grade": np.arange(ROWS) % 3, "num": np.arange(ROWS) % 2, "ill": None}
    clients = {"a": ward(grade=np.arange(ROWS) % 3), "b": ward(seed=1, **codes)}
    own = {"b": 'numbers = ["grade"]\nlabel = "num"\nlabels = { no = [0], yes = [1] }'}
    settings = 'categories = ["grade"]\nlabels = { yes = [1], no = [0] }'
    said = flic_here("check", describe(clients, settings, own), "--format", "json")
    found = json.loads(said.out)
    assert found["sound"]
    kinds = [
        {c["name"]: c["kind"] for c in client["columns"]}["grade"] for client in found["clients"]
    ]
    assert kinds == ["category", "number"]
    assert [client["labels"] for client in found["clients"]] == [{"yes": 20, "no": 20}] * 2


def test_labels_named_like_a_marker_are_kept_if_declared(flic_here, describe):
    frames = {n: ward(seed=i, ill=["none", "mild"] * 20) for i, n in enumerate("ab")}
    said = flic_here("check", describe(frames, 'labels = ["none", "mild"]'))
    assert said.code == 0
    assert "none 20, mild 20" in said.out


def test_databases_and_encodings(flic_here, tmp_path):
    with sqlite3.connect(tmp_path / "a.db") as database:
        ward().to_sql("visits", database, index=False)
    database.close()
    ward(seed=1).to_csv(tmp_path / "b.csv", index=False, encoding="utf-16")
    (tmp_path / "federation.toml").write_text(
        'label = "ill"\n'
        '[[clients]]\nname = "a"\ndata = "a.db"\nquery = "SELECT * FROM visits"\n'
        '[[clients]]\nname = "b"\ndata = "b.csv"\nencoding = "utf-16"\n'
    )
    said = flic_here("check", "federation.toml")
    assert said.code == 0, said.err
    assert "shared by 2 of 2: age, smoker, blood" in said.out


# ---- one file with a site column -------------------------------------------------------------


@pytest.fixture
def wide(tmp_path):
    """wide(settings): one file with three sites, of which 'c' has no blood group in 3 of 4 rows."""

    def write(settings):
        frames = [ward(seed=i).assign(site=name) for i, name in enumerate("abc")]
        frames[2].loc[frames[2].index % 4 > 0, "blood"] = None
        pd.concat(frames).to_csv(tmp_path / "all.csv", index=False)
        (tmp_path / "federation.toml").write_text(f'label = "ill"\ndata = "all.csv"\n{settings}')
        return "federation.toml"

    return write


def test_a_single_row_without_a_site_is_spoken_of_as_one(flic_here, wide, tmp_path):
    settings, rows = wide('site = "site"'), pd.read_csv(tmp_path / "all.csv")
    rows.loc[0, "site"] = None
    rows.to_csv(tmp_path / "all.csv", index=False)
    said = flic_here("check", settings)
    assert "1 row without a site is dropped." in " ".join(said.err.split())


def test_no_sites_are_no_federation(flic_here, wide):
    said = flic_here("check", wide('site = "site"\nsites = []'))
    assert said.code == 1
    assert "sites: got []; expected at least one value" in " ".join(said.err.split())


@pytest.mark.parametrize(
    ("settings", "clients", "columns"),
    [
        ("", ["a", "b", "c"], [3, 3, 2]),
        ("empty_share = 0.8", ["a", "b", "c"], [3, 3, 3]),
        ('sites = ["c", "a"]', ["c", "a"], [2, 3]),
    ],
)
def test_sites_of_one_file(flic_here, wide, settings, clients, columns):
    said = flic_here("check", wide(f'site = "site"\n{settings}'), "--format", "json")
    found = json.loads(said.out)
    assert [client["name"] for client in found["clients"]] == clients
    assert [len(client["columns"]) for client in found["clients"]] == columns


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ("", "site: missing; expected the column of `data`"),
        ('site = "place"', "has no site column 'place'; expected one of its columns 'age'"),
        ('site = "site"\nsites = ["a", "b", "z"]', "`sites` has 'z'; expected values of the site"),
        ('site = "site"\nsites = ["a"]', "the federation has one client"),
        ('site = "site"\nquery = "SELECT 1"', "got a query; expected one only for .sqlite"),
    ],
)
def test_sites_that_cannot_be_told(flic_here, wide, settings, expected):
    said = flic_here("check", wide(settings))
    assert said.code == 1
    assert expected in said.err
    assert "problems: 1;" in said.err


def test_four_hospitals(flic_here, need_data, tmp_path):
    path = need_data("heart_disease/heart_disease_4sites.csv")
    (tmp_path / "federation.toml").write_text(
        f'label = "num"\ndata = "{path}"\nsite = "site"\nmissing = {{ chol = [0] }}\n'
        "labels = { healthy = [0], ill = [1, 2, 3, 4] }"
    )
    said = flic_here("check", "federation.toml", "--format", "json")
    assert said.code == 0
    found = json.loads(said.out)
    assert {c["name"]: (c["rows"], c["labels"]["ill"]) for c in found["clients"]} == {
        "cleveland": (303, 139),
        "hungarian": (294, 106),
        "switzerland": (123, 115),
        "va": (200, 149),
    }
    columns = {c["name"]: [column["name"] for column in c["columns"]] for c in found["clients"]}
    assert "chol" not in columns["switzerland"]
    assert {"ca", "thal"} & {*columns["va"]} == set()


def test_a_mistyped_label_is_suspected(flic_here, describe):
    labels = [*(["yes", "no"] * (ROWS // 2 - 1)), "yes", "nno"]
    said = flic_here("check", describe({"a": ward(ill=labels), "b": ward(ill=["yes", "no"] * 20)}))
    assert said.code == 0
    assert "class 'nno' is in 1 row(s) of 'a' alone. If it is mistyped" in " ".join(
        (said.out + said.err).split()
    )


def test_rows_that_two_clients_have_are_said(flic_here, describe):
    rows = ward().assign(weight=np.arange(ROWS) * 1.7)
    said = flic_here("check", describe({"a": rows, "b": rows.sample(frac=1, random_state=0)}))
    assert said.code == 0
    assert f"'a' and 'b' have {ROWS} rows in common" in " ".join((said.out + said.err).split())


@pytest.mark.slow
def test_of_many_clients_a_copy_next_to_its_original_is_found(flic_here, describe):
    tables = {f"ward {i}": ward(seed=i).assign(dose=np.arange(ROWS) + i) for i in range(120)}
    tables["ward 119"] = tables["ward 118"]
    said = flic_here("check", describe(tables))
    assert f"'ward 118' and 'ward 119' have {ROWS} rows in common" in " ".join(
        (said.out + said.err).split()
    )


def test_names_with_square_brackets_are_shown_as_they_are(flic_here, describe):
    rows = ward(ill=["a[/b]", "[red]"] * (ROWS // 2))
    said = flic_here("check", describe({"x [y]": rows, "x": rows.assign(age=range(ROWS))}))
    assert said.code == 0
    assert "x [y]" in said.out
    assert "a[/b]" in said.out


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ('links = { wieght = "age" }', "the federation declares 'wieght'; no client has"),
        ('unlinked = ["nope"]', "the federation declares 'nope'; no client has"),
        ('links = { age = "blood" }', "its columns 'age', 'blood' are all shared as 'blood'"),
        ('links = { blood = { name = "b", factor = 2 } }', "'blood' is a category, and its link"),
        ("labels = [0, 0, 1]", "`labels` have '0' more than once"),
        ('labels = [1, "1.0", 0]', "`labels` have '1' more than once"),
    ],
)
def test_links_and_labels_that_cannot_be(flic_here, describe, settings, expected):
    said = flic_here("check", describe({"a": ward(), "b": ward(seed=1)}, settings))
    assert said.code == 1
    assert expected in " ".join((said.out + said.err).split())


def test_unlinked_columns_are_not_shared(flic_here, describe):
    file = describe({"a": ward(), "b": ward(seed=1)}, 'unlinked = ["age"]')
    said = flic_here("check", file)
    assert "shared by 2 of 2: smoker, blood" in said.out


def test_true_is_true_however_it_is_written(flic_here, describe):
    small, large = ward(ill=["true", "false"] * 20), ward(seed=1, ill=["True", "FALSE"] * 20)
    found = json.loads(
        flic_here("check", describe({"a": small, "b": large}), "--format", "json").out
    )
    assert found["classes"] == ["False", "True"]
