"""`flic predict`, `flic evaluate` and `flic report` on a fitted folder, as a user types them."""

import csv
import json
import os
import stat
from dataclasses import replace

import pandas as pd
import pytest

from flic.silos import folder as folders
from silos.wards import fitted_wards, ward, wards


@pytest.fixture
def fitted(tmp_path):
    """A fitted folder beside new rows of one of its clients."""
    folders.save(fitted_wards(), tmp_path / "fitted")
    rows = ward(9, 30)[wards()["north"].columns]
    rows.to_csv(tmp_path / "test.csv", index=False)
    rows.drop(columns="ill").to_csv(tmp_path / "new.csv", index=False)
    return "fitted"


def test_predictions(flic, fitted, tmp_path):
    """In a process of its own."""
    said = flic("predict", fitted, "--client", "north", "new.csv", "-o", "out.csv")
    assert (said.code, said.err, said.out) == (0, "", "wrote 30 predictions to out.csv\n")
    with (tmp_path / "out.csv").open(newline="") as file:
        header, *rows = csv.reader(file)
    assert header == ["prediction", "p(well)", "p(ill)"]
    expected = fitted_wards().client("north").predict(ward(9, 30)).values.tolist()
    assert [row[0] for row in rows] == expected


def test_odd_columns_are_said(flic_here, fitted, tmp_path):
    rows = ward(9, 30)[["age", "smoker", "blood", "seen"]].assign(blood="AB", more=1)
    rows.to_csv(tmp_path / "new.csv", index=False)
    said = flic_here("predict", fitted, "--client", "north", "new.csv", "-o", "out.csv")
    assert said.code == 0
    assert said.err.splitlines() == [
        "note: client 'north': has no column 'dose'; all its values count as missing.",
        "note: client 'north': has 1 further column that is not used: 'more'.",
        "note: client 'north': column 'blood' has levels that no training row had, such as 'AB'; "
        "they count as none of its levels.",
    ]


def test_swapped_columns_are_said(flic_here, fitted, tmp_path):
    swapped = {"age": "dose", "dose": "age"}
    ward(9, 30).rename(columns=swapped).to_csv(tmp_path / "new.csv", index=False)
    said = flic_here("predict", fitted, "--client", "north", "new.csv", "-o", "out.csv")
    assert said.code == 0
    assert "note: client 'north': most values of column 'age' lie outside " in said.err
    assert "note: client 'north': columns 'age' and 'dose' look swapped: each looks as" in said.err


def test_metrics_for_people_and_programs(flic_here, fitted):
    said = flic_here("evaluate", fitted, "--client", "north", "test.csv")
    assert (said.code, said.err) == (0, "")
    found = json.loads(
        flic_here("evaluate", fitted, "--client", "north", "test.csv", "--format", "json").out
    )
    assert (found.pop("client"), found.pop("rows")) == ("north", 30)
    assert (found.pop("trained_rows"), found.pop("trained_rows_left_out")) == (0, 0)
    for name, value in found.items():
        assert name.replace("_", " ") in said.out
        assert f"{value:.4f}" in said.out
    assert {*found} >= {"accuracy", "auroc", "log_loss", "calibration_error"}


@pytest.mark.slow
def test_rows_that_were_trained_on_are_left_out_or_said(flic_here, fitted, tmp_path):
    known, new = wards()["north"], pd.read_csv(tmp_path / "test.csv", parse_dates=["seen"])
    known.to_csv(tmp_path / "known.csv", index=False)
    pd.concat([new, known]).sample(frac=1, random_state=0).to_csv(
        tmp_path / "both.csv", index=False
    )
    measure = ["evaluate", fitted, "--client", "north", "--format", "json"]
    alone, mixed, trained = (flic_here(*measure, f"{n}.csv") for n in ("test", "both", "known"))
    assert alone.err == ""
    assert mixed.err == "note: left out 60 rows that the model was trained on.\n"
    assert (
        trained.err
        == "note: the model was trained on all of these rows; expect worse figures on new rows.\n"
    )
    found, told = json.loads(alone.out), json.loads(mixed.out)
    assert (found.pop("trained_rows_left_out"), told.pop("trained_rows_left_out")) == (0, 60)
    assert told == pytest.approx(found)
    assert json.loads(trained.out)["trained_rows"] == 60


def test_a_model_of_an_older_version_does_not_know_its_rows(flic_here, tmp_path):
    old = {n: replace(c, trained=None) for n, c in fitted_wards().clients.items()}
    folders.save(replace(fitted_wards(), clients=old), tmp_path / "old")
    wards()["north"].to_csv(tmp_path / "known.csv", index=False)
    said = flic_here("evaluate", "old", "--client", "north", "known.csv")
    assert (said.code, said.err) == (
        0,
        "note: an older version of flic made the model: which rows it saw is not recorded.\n",
    )


def test_what_is_not_defined_is_null(flic_here, fitted, tmp_path):
    ward(9, 30)[wards()["north"].columns].assign(ill=1).to_csv(tmp_path / "one.csv", index=False)
    said = flic_here("evaluate", fitted, "--client", "north", "one.csv", "--format", "json")
    assert json.loads(said.out, parse_constant=pytest.fail)["auroc"] is None


@pytest.mark.slow
def test_a_report_of_a_fitted_folder(flic_here, fitted, tmp_path):
    said = flic_here("report", fitted)
    assert (said.code, said.out) == (0, "report: fitted/report.html\n")
    page = (tmp_path / "fitted" / "report.html").read_text()
    assert "A federation of 3 clients" in page
    assert "<script src" not in page
    again = flic_here("predict", fitted, "--client", "north", "new.csv", "-o", "out.csv")
    assert again.code == 0  # the report does no harm to the folder


def test_a_device_is_not_replaced_by_predictions(flic_here, fitted, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    said = flic_here("predict", fitted, "--client", "north", "new.csv", "-o", "pipe")
    assert said.code == 2
    assert "not an ordinary file" in said.err
    assert stat.S_ISFIFO(pipe.stat().st_mode)


@pytest.mark.slow
def test_a_site_of_a_wide_file_is_measured_on_its_own_rows(flic_here, tmp_path):
    wide = pd.concat([ward(i).assign(site=name) for i, name in enumerate(["north", "south"])])
    wide.to_csv(tmp_path / "wide.csv", index=False)
    wide[wide["site"] == "north"].to_csv(tmp_path / "north.csv", index=False)
    (tmp_path / "federation.toml").write_text(
        'data = "wide.csv"\nsite = "site"\nlabel = "ill"\n'
        '[fit]\ncandidates = ["lda"]\nrepeats = 2\nfolds = 2\n'
    )
    assert flic_here("fit", "federation.toml", "--out", "fitted").code == 0
    measure = ["evaluate", "fitted", "--client", "north", "--format", "json"]
    own = flic_here(*measure, "wide.csv")
    assert json.loads(own.out)["rows"] == (wide["site"] == "north").sum()
    assert json.loads(own.out) == json.loads(flic_here(*measure, "north.csv").out)
    assert (
        own.err
        == "note: the model was trained on all of these rows; expect worse figures on new rows.\n"
    )
    said = flic_here("predict", "fitted", "--client", "north", "wide.csv", "-o", "out.csv")
    assert said.out == f"wrote {len(wide)} predictions to out.csv\n"
    assert said.err == (
        "note: client 'north': some rows belong to other sites; they are predicted as if they were "
        "its own.\n"
    )
    wide[wide["site"] == "south"].to_csv(tmp_path / "south.csv", index=False)
    refused = flic_here(*measure, "south.csv")
    assert refused.code == 1
    assert "no row of client 'north' has a label in column 'ill'" in refused.err
