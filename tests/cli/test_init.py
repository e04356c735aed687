"""`flic init` drafts a federation.toml that a person can edit and `flic check` takes as it is."""

import json
import sys
import tomllib

import numpy as np
import pandas as pd
import pytest


def clinic(seed, rows=60, **columns):
    rng = np.random.default_rng(seed)
    made = {
        "age": rng.integers(20, 90, rows),
        "stay": pd.date_range("2024-01-01", periods=rows).strftime("%d.%m.%Y"),
        "smoker": rng.choice(["yes", "no"], rows),
        "drug": rng.choice(["a", "b", "c"], rows),
        "ill": rng.permutation(np.arange(rows) % 3),
    }
    return pd.DataFrame(made | columns)


@pytest.fixture
def files(tmp_path):
    """Two clinics as files below data/."""
    (tmp_path / "data").mkdir()
    paths = []
    for i, name in enumerate(["north", "south"]):
        path = tmp_path / "data" / f"{name}.csv"
        clinic(i).to_csv(path, index=False)
        paths.append(path.relative_to(tmp_path))
    return paths


def drafted(tmp_path, folder="fed"):
    return (tmp_path / folder / "federation.toml").read_text(encoding="utf-8")


def test_a_draft_passes_the_check(flic, files, tmp_path):
    """As a user types it, in a process of its own."""
    said = flic("init", "fed", *files, "--label", "ill")
    assert said.code == 0, said.err
    assert "run: flic check fed/federation.toml" in said.out
    text = drafted(tmp_path)
    settings = tomllib.loads(text)
    assert settings["labels"] == [0, 1, 2]
    assert settings["clients"] == [
        {"name": "north", "data": "../data/north.csv"},
        {"name": "south", "data": "../data/south.csv"},
    ]
    for line in [
        "#   Found: 0 (40 rows), 1 (40 rows), 2 (40 rows)",
        "# labels = { no = [0], yes = [1, 2] }",
        "# north: 60 rows, 0% missing",
        "#   number: age",
        "#   boolean: smoker",
        "#   category: drug",
        "#   date: stay",
    ]:
        assert line in text.splitlines()
    checked = flic("check", "fed/federation.toml")
    assert (checked.code, checked.err) == (0, "")


def uncommented(text):
    """The draft with its suggestions taken."""
    keys = ("ids", "drop", "missing", "labels =")
    lines = text.splitlines()
    taken = [line[2:] for line in lines if line.startswith(tuple(f"# {key}" for key in keys))]
    rest = [line for line in lines if not line.startswith("labels")]
    return "\n".join([*taken, *rest])


def test_suggestions_are_comments_that_can_be_taken(flic_here, tmp_path):
    for i, name in enumerate(["a", "b"]):
        odd = {"patient nr": np.arange(500, 560), "chol": [0, 0, *np.repeat(range(180, 209), 2)]}
        clinic(i, leak=np.arange(60) % 3 * 2, ill=np.arange(60) % 3, **odd).to_csv(
            tmp_path / f"{name}.csv", index=False
        )
    assert flic_here("init", ".", "a.csv", "b.csv", "--label", "ill").code == 0
    path = tmp_path / "federation.toml"
    said = flic_here("check", "federation.toml", "--format", "json")
    assert len(json.loads(said.out)["warnings"]) == 6
    path.write_text(uncommented(path.read_text()))
    found = json.loads(flic_here("check", "federation.toml", "--format", "json").out)
    assert found["sound"]
    assert found["warnings"] == []
    assert found["classes"] == ["no", "yes"]
    assert {c["name"] for c in found["clients"][0]["columns"]}.isdisjoint({"patient nr", "leak"})


def test_constant_columns_are_named(flic_here, tmp_path):
    for i, name in enumerate(["a", "b"]):
        clinic(i, unit="mg").to_csv(tmp_path / f"{name}.csv", index=False)
    flic_here("init", ".", "a.csv", "b.csv", "--label", "ill")
    assert '# drop = ["unit"]' in drafted(tmp_path, ".").splitlines()


def test_responses_get_a_range(flic_here, files, tmp_path):
    said = flic_here("init", "fed", *files, "--label", "age", "--task", "regression")
    assert said.code == 0, said.err
    assert tomllib.loads(drafted(tmp_path))["range"] == [20, 90]
    assert flic_here("check", "fed/federation.toml").code == 0


def test_awkward_names_stay_in_their_place(flic_here, tmp_path):
    for folder, seed in (("x", 0), ("y", 1)):
        (tmp_path / folder).mkdir()
        frame = clinic(seed).rename(columns={"age": 'two\nlines "x"', "ill": "is ill"})
        frame["is ill"] = np.where(frame["is ill"] > 0, 'i"ll', "007")
        frame.to_csv(tmp_path / folder / "rows.csv", index=False)
    said = flic_here("init", "fed", "x/rows.csv", "y/rows.csv", "--label", "is ill")
    assert said.code == 0, said.err
    settings = tomllib.loads(drafted(tmp_path))
    assert settings["labels"] == ["007", 'i"ll']
    assert [client["name"] for client in settings["clients"]] == ["x-rows", "y-rows"]
    assert flic_here("check", "fed/federation.toml").code == 0


def test_letters_that_a_terminal_obeys_are_escaped(flic_here, tmp_path):
    name, label = "age\u202edesrever", "ill\u2028\x9b1m"
    for folder, seed in (("x", 0), ("y", 1)):
        (tmp_path / folder).mkdir()
        frame = clinic(seed).rename(columns={"age": name, "ill": label})
        frame.to_csv(tmp_path / folder / "rows.csv", index=False)
    said = flic_here("init", "fed", "x/rows.csv", "y/rows.csv", "--label", label)
    assert said.code == 0, said.err
    text = drafted(tmp_path)
    assert not {*text} & {"\u202e", "\u2028", "\x9b"}
    assert '#   number: "age\\u202edesrever"' in text.splitlines()
    assert tomllib.loads(text)["label"] == label
    assert flic_here("check", "fed/federation.toml").code == 0


def test_what_can_be_solved_is_drafted_and_said(flic_here, tmp_path):
    clinic(0).to_csv(tmp_path / "a.csv", index=False)
    clinic(1).to_csv(tmp_path / "b.csv", index=False)
    clinic(2, rows=60, age=["old"] * 9 + [*range(51)]).to_csv(tmp_path / "c.csv", index=False)
    said = flic_here("init", "fed", "a.csv", "b.csv", "c.csv", "--label", "ill")
    assert said.code == 0
    assert "note: Client 'c': column 'age' has mixed types" in said.err
    assert "# To be solved: Client 'c': column 'age' has mixed types" in drafted(tmp_path)
    assert flic_here("check", "fed/federation.toml").code == 1


REFUSED = {
    "no label": (["--label", "num"], "has no label column 'num'", 1),
    "one file": (["--label", "ill"], "got one file; expected one per client, or one with", 2),
    "files and site": (["--label", "ill", "--site", "drug"], "got 2 files; expected one", 2),
    "numbers as classes": (["--label", "stay"], "the labels have 60 different values", 1),
    "words as responses": (
        ["--label", "drug", "--task", "regression"],
        "No file has numbers in a column 'drug'",
        1,
    ),
}


@pytest.mark.parametrize(("options", "expected", "code"), REFUSED.values(), ids=REFUSED)
def test_refusals_write_nothing(flic_here, files, tmp_path, options, expected, code):
    given = files[:1] if "one file;" in expected else files
    said = flic_here("init", "fed", *given, *options)
    assert said.code == code
    assert expected in said.err
    assert not (tmp_path / "fed").exists()


def test_files_that_are_not_there_are_all_named(flic_here, files, tmp_path):
    said = flic_here("init", "fed", *files, "x.csv", "y.csv", "--label", "ill")
    assert said.code == 1
    assert "no such file: x.csv, y.csv; expected tables" in said.err
    assert not (tmp_path / "fed").exists()


def test_a_description_is_never_overwritten(flic_here, files, tmp_path):
    (tmp_path / "federation.toml").write_text("label = 'mine'")
    said = flic_here("init", ".", *files, "--label", "ill")
    assert said.code == 2
    assert "federation.toml exists already" in said.err
    assert drafted(tmp_path, ".") == "label = 'mine'"


def test_four_hospitals(flic_here, need_data, tmp_path):
    path = need_data("heart_disease/heart_disease_4sites.csv")
    said = flic_here("init", "hearts", path, "--label", "num", "--site", "site")
    assert said.code == 0, said.err
    text = drafted(tmp_path, "hearts")
    assert "# missing = { chol = [0] }" in text.splitlines()
    assert tomllib.loads(text)["site"] == "site"
    checked = flic_here("check", "hearts/federation.toml")
    assert checked.code == 0, checked.err
    for name in ("cleveland", "hungarian", "switzerland", "va"):
        assert name in checked.out
    assert "shared by 4 of 4: age, sex, cp" in checked.out


@pytest.mark.parametrize("package", ["pandas", "skops"])
def test_without_a_package_for_tables_it_is_said_what_to_install(
    flic_here, files, monkeypatch, package
):
    monkeypatch.setitem(sys.modules, package, None)
    for command in (
        ["init", "fed", *files, "--label", "ill"],
        ["check", "federation.toml"],
        ["fit", "federation.toml", "--out", "fitted"],
    ):
        said = flic_here(*command)
        assert said.code == 2
        assert f"{package}, which is not installed. Run: pip install 'flic[tables]'" in " ".join(
            said.err.split()
        )


def test_a_file_in_place_of_the_folder_is_refused(flic_here, tmp_path):
    (tmp_path / "a.csv").write_text("age,ill\n1,0\n")
    said = flic_here("init", "a.csv", "a.csv", "--label", "ill")
    assert said.code == 2
    assert "got the file a.csv as DIR; expected the folder" in " ".join(said.err.split())
