"""Refusals of fit, predict, evaluate, join and report: one sentence, and nothing half-written."""

import pytest

from flic.silos import folder as folders
from silos.wards import fitted_wards, ward, wards

UNFINISHED = ".new.unfinished"
FIT = """[fit]
repeats = 2
scheme = "splits"
candidates = ["lda", "flic"]
network = { training = { rounds = 1, local = "1 steps", shared = "1 steps" } }"""


@pytest.fixture
def folder(tmp_path):
    """Tables of three wards with their federation.toml, and a fitted folder of them."""
    text = ['label = "ill"']
    for name, frame in wards().items():
        frame.to_csv(tmp_path / f"{name}.csv", index=False)
        text += ["[[clients]]", f'name = "{name}"', f'data = "{name}.csv"']
    (tmp_path / "federation.toml").write_text("\n".join([*text, FIT]))
    folders.save(fitted_wards(), tmp_path / "fitted")
    ward(7).drop(columns="stay").to_csv(tmp_path / "west.csv", index=False)
    return tmp_path


@pytest.fixture
def refused(flic_here, folder):
    """refused(code, expected, *command): the command is refused so, and no file changes.

    What a fit kept to go on with may stay.
    """

    def files():
        found = (p for p in folder.rglob("*") if p.is_file() and UNFINISHED not in p.parts)
        return {path: path.read_bytes() for path in found}

    def run(code, expected, *command):
        before = files()
        said = flic_here(*command)
        assert said.code == code, said.err
        assert expected in " ".join(said.err.split())
        assert "Traceback" not in said.err
        assert said.err.count("flic: ") == 1
        assert files() == before

    return run


def rewrite(folder, old, new):
    path = folder / "federation.toml"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


BAD_FIT = {
    "unknown key": ("repeat = 3", 2, "[fit]: repeat: unknown key; expected one of seed, repeats"),
    "type": ('repeats = "many"', 2, 'repeats: got "many"; expected a whole number'),
    "bound": ("test_share = 0.9", 2, "test_share: got 0.9; expected 0.5 or less"),
    "wrong metric": ('metric = "mae"', 2, "metric is 'mae', and the task is classification"),
    "no metric": ('metric = "f1"', 2, "metric: got \"f1\"; expected 'accuracy', "),
    "candidate": ('candidates = ["svm"]', 2, "candidates: got 'svm'; expected some of network"),
    "no one alone": ('candidates = ["flic"]', 2, "none of which stays alone in a classification"),
    "other task": ('candidates = ["ridge"]', 2, "none of which stays alone in a classification"),
    "network": ("network = { depth = 3 }", 2, "network.depth: unknown key; expected one of train"),
    "network type": (
        'network = { training = { rounds = "x" } }',
        2,
        'network.training.rounds: got "x"; expected a whole number',
    ),
    "network text": (
        'network = { training = { batch_size = "32" } }',
        2,
        'network.training.batch_size: got "32"; expected a whole number',
    ),
    "endless network": (
        "network = { training = { rounds = 1000000000000 } }",
        2,
        "[fit], network: takes at least 931,322 GB of memory, most of it for training.rounds",
    ),
    "no network": ("network = 3", 2, "network: got 3; expected a table of settings"),
    "folds": ("folds = 99", 2, "folds is 99, and client 'north' has 45 training rows"),
    "no rows": ("test_share = 0.001", 2, "test_share is 0.001, which holds out no row of client"),
    "anchors": ("meta_classes = 9", 2, "meta_classes is 9 on data with 2 classes; expected at"),
}


@pytest.mark.parametrize(("setting", "code", "expected"), BAD_FIT.values(), ids=BAD_FIT)
def test_settings_of_a_fit(refused, folder, setting, code, expected):
    rewrite(folder, FIT, f"[fit]\n{setting}")
    refused(code, expected, "fit", "federation.toml", "--out", "new")
    assert not any((folder / name).exists() for name in ("new", UNFINISHED))


def test_assignments(refused):
    command = ["fit", "federation.toml", "--out", "new", "--set"]
    refused(2, "--set 'repeats': expected key=value", *command, "repeats")
    refused(2, "federation.toml, [fit], with --set repeats=x: repeats:", *command, "repeats=x")
    refused(2, "repeats: got 0; expected 2 or more", *command, "repeats=0")


BAD_TABLES = {
    "missing file": ('data = "north.csv"', 'data = "nord.csv"', 1, "Client 'north': nord.csv: no"),
    "label": ('label = "ill"', 'label = "sick"', 1, "has no label column 'sick'"),
    "undeclared": ('label = "ill"', 'label = "ill"\nlabels = [0, 2]', 1, "undeclared values '1'"),
    "same name": ('name = "north"', 'name = "south"', 1, "'south' is used more than once"),
    "key": ('label = "ill"', 'lable = "ill"', 2, "lable: unknown key; expected one of"),
    "toml": ('label = "ill"', "label = ", 2, "not valid TOML"),
}


@pytest.mark.parametrize(("old", "new", "code", "expected"), BAD_TABLES.values(), ids=BAD_TABLES)
def test_tables_of_a_fit(refused, folder, old, new, code, expected):
    rewrite(folder, old, new)
    refused(code, expected, "fit", "federation.toml", "--out", "new")
    assert not any((folder / name).exists() for name in ("new", UNFINISHED))


def test_a_federation_of_one(refused, folder):
    text = 'label = "ill"\n[[clients]]\nname = "north"\ndata = "north.csv"\n'
    (folder / "federation.toml").write_text(text)
    refused(
        1,
        "the federation has one client; expected at least two",
        "fit",
        "federation.toml",
        "--out",
        "new",
    )


BAD_ROWS = {
    "few": (lambda f: f.iloc[:9], "Client 'north': has 9 rows with a label; expected at least 10"),
    "one class": (lambda f: f.assign(ill=1), "Client 'north': has the class '1' only"),
    "all missing": (lambda f: f.assign(ill=None), "Client 'north': has 0 rows with a label"),
    "mixed": (
        lambda f: f.assign(age=["old", *f["age"].iloc[1:]]),
        "column 'age' has mixed types: mostly numbers, but 1 of 60 values",
    ),
    "nothing": (lambda f: f[["ill"]].assign(x=None), "has no feature column left"),
}


@pytest.mark.parametrize(("change", "expected"), BAD_ROWS.values(), ids=BAD_ROWS)
def test_rows_of_a_fit(refused, folder, change, expected):
    change(wards()["north"]).to_csv(folder / "north.csv", index=False)
    refused(1, expected, "fit", "federation.toml", "--out", "new")


@pytest.mark.parametrize("out", ["fitted", "north.csv"])
def test_an_occupied_place(refused, out):
    refused(
        1,
        f"{out} already holds something; expected a new or empty folder. Choose another with --out",
        "fit",
        "federation.toml",
        "--out",
        out,
    )


COMMANDS = {
    "predict": ["predict", "fitted", "--client", "north", "north.csv", "-o", "out.csv"],
    "evaluate": ["evaluate", "fitted", "--client", "north", "north.csv"],
    "join": ["join", "fitted", "--name", "west", "--data", "west.csv", "--label", "ill"],
    "report": ["report", "fitted"],
}


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
@pytest.mark.parametrize(
    ("file", "change", "expected"),
    [
        (
            "verdict.json",
            b"{}",
            "fitted is damaged (verdict.json is not what was written)",
        ),
        (
            "clients/01-south/model.skops",
            None,
            "fitted is damaged (clients/01-south/model.skops cannot be",
        ),
        ("federation.json", b"{", "fitted is damaged (federation.json cannot be read"),
    ],
)
def test_a_damaged_folder(refused, folder, command, file, change, expected):
    if change is None:
        (folder / "fitted" / file).unlink()
    else:
        (folder / "fitted" / file).write_bytes(change)
    refused(1, expected, *command)


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_a_hand_edited_folder_of_another_version(refused, folder, command):
    path = folder / "fitted" / "federation.json"
    path.write_text(path.read_text().replace(f'"version": {folders.VERSION}', '"version": 99', 1))
    said = f"fitted has version 99; this flic reads version {folders.VERSION}. Fit the federation"
    refused(1, said, *command)


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_a_folder_that_is_none(refused, folder, command):
    (folder / "fitted").rename(folder / "elsewhere")
    refused(1, "fitted", *command)


@pytest.mark.slow
def test_no_table_of_that_kind(refused, folder):
    (folder / "rows.xlsx").write_bytes(b"PK")
    for command in ("predict", "evaluate"):
        out = ["-o", "out.csv"] if command == "predict" else []
        refused(1, "rows.xlsx", command, "fitted", "--client", "north", "rows.xlsx", *out)
        refused(1, "no.csv: no such file", command, "fitted", "--client", "north", "no.csv", *out)


@pytest.mark.parametrize("command", ["predict", "evaluate"])
def test_an_unknown_client(refused, command):
    out = ["-o", "out.csv"] if command == "predict" else []
    refused(
        2,
        "client is 'west'; expected one of 'north', 'south', 'east'. To add a site, use: flic join",
        *[command, "fitted", "--client", "west", "north.csv", *out],
    )


def test_rows_that_have_none_of_the_columns(refused, folder):
    (folder / "other.csv").write_text("colour,size\nred,1\n")
    command = ["predict", "fitted", "--client", "north", "other.csv", "-o", "out.csv"]
    refused(1, "client 'north': the rows have none of its 5 columns; expected age", *command)


@pytest.mark.parametrize(
    ("out", "code", "expected"),
    [
        ("north.csv", 2, "--out is north.csv, the file that is read; expected another file"),
        ("nowhere/out.csv", 2, "expected one that exists. Make it, or choose another"),
        ("fitted", 2, "--out is fitted, a folder; expected a file"),
        ("out.parquet", 2, "--out is out.parquet; expected a name that ends in .csv"),
        (".", 2, "--out is ., a folder; expected a file"),
    ],
)
def test_places_for_predictions(refused, out, code, expected):
    command = ["predict", "fitted", "--client", "north", "north.csv", "-o", out]
    refused(code, expected, *command)


def test_labels_to_evaluate(refused, folder):
    rows = wards()["north"]
    rows.drop(columns="ill").to_csv(folder / "a.csv", index=False)
    rows.assign(ill="perhaps").to_csv(folder / "b.csv", index=False)
    rows.iloc[:0].to_csv(folder / "c.csv", index=False)
    for file, expected in [
        ("a.csv", "has no label column 'ill'"),
        ("b.csv", "has the undeclared values 'perhaps'; expected '0', '1'"),
        ("c.csv", "c.csv"),
    ]:
        refused(1, expected, "evaluate", "fitted", "--client", "north", file)


BAD_SITES = {
    "name taken": ({"--name": "north"}, 2, "name is 'north', which a client of the federation has"),
    "no name": ({"--name": ""}, 2, "client name '' cannot name a folder"),
    "a path": ({"--name": "../x"}, 2, "client name '../x' cannot name a folder"),
    "no file": ({"--data": "no.csv"}, 1, "no.csv: no such file"),
    "label": ({"--label": "sick"}, 1, "has no label column 'sick'"),
    "missing": ({"--missing": "dose"}, 2, "--missing is 'dose'; expected COLUMN=VALUE"),
    "no column": ({"--drop": "colour"}, 1, "declares 'colour'; expected some of its columns"),
    "a number": ({"--label": "age"}, 1, "label column 'age' has the undeclared values"),
}


@pytest.mark.parametrize(("changes", "code", "expected"), BAD_SITES.values(), ids=BAD_SITES)
def test_sites_that_cannot_join(refused, changes, code, expected):
    options = {"--name": "west", "--data": "west.csv", "--label": "ill", **changes}
    refused(code, expected, "join", "fitted", *[part for pair in options.items() for part in pair])


# ---- a full disk -----------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "written"),
    [
        (["fit", "federation.toml", "--out", "new", "--quiet"], 3),
        (COMMANDS["predict"], 0),
        (COMMANDS["join"], 1),
        (COMMANDS["join"], 4),
        (COMMANDS["report"], 0),
    ],
    ids=["fit", "predict", "join early", "join late", "report"],
)
def test_a_full_disk(refused, folder, full_disk, command, written):
    full_disk(written)
    refused(1, "a file could not be read or written: [Errno 28] No space left", *command)
    kept = {UNFINISHED} if "fit" in command else set()
    assert {path.name for path in folder.iterdir()} - kept == {
        *("north.csv", "south.csv", "east.csv", "west.csv", "federation.toml", "fitted")
    }
