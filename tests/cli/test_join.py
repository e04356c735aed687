"""`flic join`: a new site, as a user types it."""

import sqlite3

import pytest
import torch

from flic.engine.checkpoint import DiskJournal
from flic.silos import folder as folders
from silos.wards import fitted_wards, ward

pytestmark = pytest.mark.slow  # each test fits a federation


@pytest.fixture
def fitted(tmp_path):
    """A fitted folder beside the table of a new site."""
    folders.save(fitted_wards(), tmp_path / "fitted")
    west = ward(7).drop(columns="stay").rename(columns={"ill": "sick"})
    west.assign(dose=west["dose"].fillna(-9), nr=range(60)).to_csv(
        tmp_path / "west.csv", index=False
    )
    return "fitted"


def test_a_new_site_joins_and_predicts(flic, flic_here, fitted, tmp_path):
    """In a process of its own, with all that can be declared."""
    site = ["--name", "west", "--data", "west.csv", "--label", "sick"]
    said = flic("join", fitted, *site, "--missing", "dose=-9", "--drop", "nr", "--drop", "notes")
    assert (said.code, said.err) == (0, "")
    own = folders.load(tmp_path / "fitted")
    line = own.verdict["west"]
    assert f"{line.sentence} Why: {line.reason}" in said.out
    assert "wrote west to fitted; nothing was sent from west." in said.out
    assert "north" not in said.out
    columns = {column.name for column in own.client("west").columns}
    assert columns == {"age", "smoker", "blood", "seen", "dose"}
    assert own.client("west").declared.missing == {"dose": ("-9",)}
    after = flic_here("predict", fitted, "--client", "west", "west.csv", "-o", "out.csv")
    assert (after.code, after.err) == (0, "")
    report = flic_here("report", fitted)
    assert report.code == 0
    assert "A federation of 4 clients" in (tmp_path / "fitted" / "report.html").read_text()


def test_an_old_report_is_said_to_be_of_before(flic_here, fitted, tmp_path):
    assert flic_here("report", fitted).code == 0
    site = ["--data", "west.csv", "--label", "sick"]
    said = flic_here("join", fitted, "--name", "west", *site)
    assert said.code == 0
    assert (
        "note: fitted/report.html was written before west joined. Renew it with: flic report fitted"
        in said.err
    )


def test_a_second_time_is_refused(flic_here, fitted):
    site = ["--data", "west.csv", "--label", "sick"]
    assert flic_here("join", fitted, "--name", "west", *site).code == 0
    said = flic_here("join", fitted, "--name", "west", *site)
    assert said.code == 2
    assert "name is 'west', which a client of the federation has already" in said.err
    assert flic_here("join", fitted, "--name", "west 2", *site).code == 0


def test_columns_are_read_as_the_others_read_them(flic_here, fitted, tmp_path):
    """Codes of blood groups look like numbers to whoever sees this table alone."""
    west = ward(7).drop(columns="stay")
    west["blood"] = west["blood"].map({"A": 1, "B": 2, "0": 3})
    west.to_csv(tmp_path / "west.csv", index=False)
    said = flic_here("join", fitted, "--name", "w", "--data", "west.csv", "--label", "ill")
    assert said.code == 0, said.err
    kinds = {c.name: c.kind for c in folders.load(tmp_path / "fitted").client("w").columns}
    assert kinds["blood"] == "category"


def test_a_newcomer_may_read_a_database(flic_here, fitted, tmp_path):
    west = ward(7).drop(columns=["stay", "seen"])
    with sqlite3.connect(tmp_path / "west.sqlite") as base:
        west.to_sql("visits", base, index=False)
    site = ["join", fitted, "--name", "w", "--data", "west.sqlite", "--label", "ill"]
    assert "expected a `query`" in flic_here(*site).err
    said = flic_here(*site, "--query", "SELECT * FROM visits")
    assert said.code == 0, said.err


def test_notices_about_its_table_are_said(flic_here, fitted, tmp_path):
    west = ward(7).drop(columns="stay").assign(lab=None)
    west.to_csv(tmp_path / "west.csv", index=False)
    said = flic_here("join", fitted, "--name", "w", "--data", "west.csv", "--label", "ill")
    assert "note: Client 'w': 'lab' not used: all values are missing." in said.err


def test_labels_of_another_name(flic_here, fitted, tmp_path):
    west = ward(7).drop(columns="stay")
    west["ill"] = west["ill"].map({1: "I50", 0: "Z00"})
    west.to_csv(tmp_path / "west.csv", index=False)
    site = ["join", fitted, "--name", "w", "--data", "west.csv", "--label", "ill"]
    said = flic_here(*site)
    assert said.code == 1
    assert "undeclared values 'I50', 'Z00'" in said.err
    said = flic_here(*site, "--class", "sick=I50")
    assert said.code == 2
    assert "labels have the classes 'sick'; expected classes of the federation" in said.err
    assert flic_here(*site, "--class", "ill=I50", "--class", "well=Z00,Z01").code == 0
    own = folders.load(tmp_path / "fitted").client("w").labelling.positions
    assert own == {"ill": 1, "well": 0, "1": 1, "0": 0, "I50": 1, "Z00": 0, "Z01": 0}


RUN = """
method = "{method}"
preset = "recommended"
[data]
problem = "linear-mapping"
num_clients = 4
num_classes = 2
classes_per_client = 2
train_rows_per_class = 20
test_rows_per_class = 20
[training]
rounds = 2
participation = 1.0
local = "3 steps"
shared = "1 steps"
[pretraining]
epochs = 2
"""


def test_a_new_site_joins_a_run(flic_here, tmp_path):
    """It gets the run's anchors and its shared layer, and a folder that predicts."""
    (tmp_path / "run.toml").write_text(RUN.format(method="flic-hl"))
    assert flic_here("run", "run.toml", "--out", "made", "--quiet").code == 0
    # From 100 rows on there are five splits in place of twenty.
    ward(7, rows=100).drop(columns="stay").to_csv(tmp_path / "west.csv", index=False)
    site = ["join", "made", "--name", "west", "--data", "west.csv", "--label", "ill"]
    said = flic_here(*site)
    assert (said.code, said.err) == (0, "")
    assert "wrote west to made/joined/west; nothing was sent from west." in said.out
    own = folders.load(tmp_path / "made" / "joined" / "west")
    assert own.settings.flic_method == "flic-hl"
    server = DiskJournal(tmp_path / "made" / "checkpoints").server
    assert server is not None
    assert own.shared.keys() == server.shared.keys()
    assert all(torch.equal(own.shared[name], value) for name, value in server.shared.items())
    assert "flic" in own.verdict.candidates
    after = flic_here("predict", "made/joined/west", "--client", "west", "west.csv", "-o", "o.csv")
    assert (after.code, after.err) == (0, "")
    assert flic_here("report", "made/joined/west").code == 0
    again = flic_here(*site)
    assert again.code == 2
    assert "name is 'west', which has joined made already" in again.err


def test_a_run_without_anchors_is_not_joined(flic_here, tmp_path):
    (tmp_path / "run.toml").write_text(RUN.format(method="local"))
    assert flic_here("run", "run.toml", "--out", "made", "--quiet").code == 0
    ward(7).to_csv(tmp_path / "west.csv", index=False)
    said = flic_here("join", "made", "--name", "w", "--data", "west.csv", "--label", "ill")
    assert said.code == 2
    assert "made is a run of local; expected one of flic-class or flic-hl" in said.err
