"""Predictions for files: in order, in bounded memory, with everything odd said once."""

import csv
import tracemalloc
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from wards import ward, wards

from flic.errors import DataError, NumericalError
from flic.silos import predicting
from flic.silos.predicting import evaluate_file, predict_file
from flic.tables import delimited


def read(path):
    with path.open(newline="", encoding="utf-8") as file:
        return [*csv.reader(file)]


@pytest.fixture
def said():
    return []


def rows_of(name, seed=9, rows=50, label="ill"):
    """New rows with the columns of a ward."""
    known = wards(label)[name].columns.drop(label)
    return ward(seed, rows)[known]


@pytest.mark.parametrize("name", ["north", "south", "east"])
def test_classes_and_probabilities_in_the_order_of_the_rows(fitted, tmp_path, said, name):
    rows = rows_of(name)
    rows.to_csv(tmp_path / "new.csv", index=False)
    client = fitted.client(name)
    count = predict_file(client, tmp_path / "new.csv", tmp_path / "out.csv", tell=said.append)
    header, *found = read(tmp_path / "out.csv")
    expected = client.predict(rows)
    assert (count, said, header) == (50, [], ["prediction", "p(well)", "p(ill)"])
    assert [row[0] for row in found] == expected.values.tolist()
    assert np.allclose(np.array([row[1:] for row in found], float), expected.probabilities, 0, 1e-6)
    backwards = client.predict(rows.iloc[::-1]).scores[::-1]
    assert np.allclose(backwards, expected.scores, atol=1e-6)


def test_responses(fitted_stays, tmp_path, said):
    rows = rows_of("north", label="stay")
    rows.to_csv(tmp_path / "new.csv", index=False)
    client = fitted_stays.client("north")
    predict_file(client, tmp_path / "new.csv", tmp_path / "out.csv", tell=said.append)
    header, *found = read(tmp_path / "out.csv")
    assert header == ["prediction"]
    values = np.array([row[0] for row in found], float)
    assert np.allclose(values, client.predict(rows).values, rtol=1e-5)


@pytest.mark.parametrize("chunk", [1, 7, 49, 50, 51])
def test_parts_of_any_size_give_the_same_file(fitted, tmp_path, monkeypatch, said, chunk):
    rows_of("north").to_csv(tmp_path / "new.csv", index=False)
    client = fitted.client("north")
    predict_file(client, tmp_path / "new.csv", tmp_path / "whole.csv", tell=said.append)
    monkeypatch.setattr(predicting, "CHUNK_ROWS", chunk)
    predict_file(client, tmp_path / "new.csv", tmp_path / "parts.csv", tell=said.append)
    assert (tmp_path / "parts.csv").read_bytes() == (tmp_path / "whole.csv").read_bytes()


def test_only_their_owner_may_read_predictions(modes, fitted, tmp_path, said):
    rows_of("north").to_csv(tmp_path / "new.csv", index=False)
    (tmp_path / "out.csv").touch()
    predict_file(
        fitted.client("north"), tmp_path / "new.csv", tmp_path / "out.csv", tell=said.append
    )
    assert modes(tmp_path / "out.csv") == {"file 600"}


@pytest.mark.parametrize("suffix", ["parquet", "feather", "tsv"])
def test_files_of_other_kinds_give_the_same(fitted, tmp_path, said, suffix):
    rows = rows_of("south")
    rows.to_csv(tmp_path / "new.csv", index=False)
    if suffix == "tsv":
        rows.to_csv(tmp_path / "new.tsv", index=False, sep="\t")
    else:
        getattr(rows, f"to_{suffix}")(tmp_path / f"new.{suffix}")
    for kind in ("csv", suffix):
        source, target = tmp_path / f"new.{kind}", tmp_path / f"{kind}.out"
        predict_file(fitted.client("south"), source, target, tell=said.append)
    assert (tmp_path / "csv.out").read_bytes() == (tmp_path / f"{suffix}.out").read_bytes()


def test_everything_odd_is_said_once(fitted, tmp_path, monkeypatch, said):
    rows = rows_of("north").drop(columns="dose").assign(more=1)
    rows["blood"] = [*["0", "AB", "X"] * 16, "A", None]
    rows.to_csv(tmp_path / "new.csv", index=False)
    monkeypatch.setattr(predicting, "CHUNK_ROWS", 10)
    predict_file(fitted.client("north"), tmp_path / "new.csv", tmp_path / "out", tell=said.append)
    assert said == [
        "client 'north': has no column 'dose'; all its values count as missing.",
        "client 'north': has 1 further column that is not used: 'more'.",
        "client 'north': column 'blood' has levels that no training row had, such as '0', 'AB', "
        "'X'; they count as none of its levels.",
    ]


def test_an_odd_row_predicts_as_its_gaps_do(fitted):
    rows = rows_of("north")
    gap = fitted.client("north").predict(rows.assign(dose=np.nan)).scores
    absent = fitted.client("north").predict(rows.drop(columns="dose")).scores
    assert absent.tobytes() == gap.tobytes()


def test_rows_of_another_client_are_refused(fitted, tmp_path, said):
    pd.DataFrame({"colour": [1, 2]}).to_csv(tmp_path / "new.csv", index=False)
    (tmp_path / "out.csv").write_text("before")
    with pytest.raises(DataError, match="client 'north': the rows have none of its 5 columns"):
        predict_file(
            fitted.client("north"), tmp_path / "new.csv", tmp_path / "out.csv", tell=said.append
        )
    assert (tmp_path / "out.csv").read_text() == "before"


def test_a_file_that_breaks_off_leaves_the_old_predictions(fitted, tmp_path, monkeypatch, said):
    text = rows_of("north").to_csv(index=False)
    (tmp_path / "new.csv").write_text(f"{text}1,2,3,4,5,6,7,8\n")
    (tmp_path / "out.csv").write_text("before")
    monkeypatch.setattr(predicting, "CHUNK_ROWS", 10)
    with pytest.raises(DataError, match="expected 5"):
        predict_file(
            fitted.client("north"), tmp_path / "new.csv", tmp_path / "out.csv", tell=said.append
        )
    assert (tmp_path / "out.csv").read_text() == "before"
    assert {path.name for path in tmp_path.iterdir()} == {"new.csv", "out.csv"}


@pytest.mark.slow
def test_many_rows_stream_in_bounded_memory(fitted, tmp_path, monkeypatch, said):
    """100,000 rows take hardly more memory than a tenth of them, and less than their file."""
    monkeypatch.setattr(predicting, "CHUNK_ROWS", 4_000)
    monkeypatch.setattr(delimited, "_BLOCK_BYTES", 2**15)  # some are read ahead
    client = fitted.client("north")
    few = rows_of("north", rows=2_000)[["age", "dose"]].assign(padding="." * 40)
    header, _, body = few.to_csv(index=False).partition("\n")

    def peak(times):
        (tmp_path / "long.csv").write_text(header + "\n" + body * times)
        tracemalloc.start()
        count = predict_file(client, tmp_path / "long.csv", tmp_path / "out.csv", tell=said.append)
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert count == 2_000 * times
        return most

    tenth = peak(5)
    assert peak(50) < tenth + 2 * 2**20 < (tmp_path / "long.csv").stat().st_size


def test_metrics_of_a_file(fitted, tmp_path, said):
    rows = rows_of("north").assign(ill=ward(9, 50)["ill"])
    rows.loc[:4, "ill"] = -1
    rows.astype({"ill": object}).replace({"ill": {-1: None}}).to_csv(
        tmp_path / "test.csv", index=False
    )
    found = evaluate_file(fitted.client("north"), tmp_path / "test.csv", tell=said.append)
    classes = fitted.client("north").predict(rows.drop(columns="ill")).values[5:]
    right = classes == np.array(["well", "ill"])[rows["ill"].to_numpy()[5:]]
    assert found.rows == 45
    assert found.figures["accuracy"] == pytest.approx(right.mean())
    assert said == []


def test_metrics_of_responses(fitted_stays, tmp_path, said):
    rows = wards("stay")["south"]
    rows.to_csv(tmp_path / "test.csv", index=False)
    client = fitted_stays.client("south")
    found = evaluate_file(client, tmp_path / "test.csv", tell=said.append).figures
    error = client.predict(rows).values - rows["stay"]
    assert found["mae"] == pytest.approx(np.abs(error).mean())


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda r: r.assign(ill=None), "no row of client 'north' has a label in column 'ill'"),
        (lambda r: r.drop(columns="ill"), "has no label column 'ill'"),
        (lambda r: r.assign(ill=7), "has the undeclared values '7'; expected '0', '1'"),
        (lambda r: r.iloc[:0], "no row"),
    ],
)
def test_files_without_labels_are_refused(fitted, tmp_path, said, change, expected):
    change(wards()["north"]).to_csv(tmp_path / "test.csv", index=False)
    with pytest.raises(DataError, match=expected):
        evaluate_file(fitted.client("north"), tmp_path / "test.csv", tell=said.append)


def test_labels_are_no_further_column(fitted, tmp_path, said):
    """New rows may carry labels; nobody needs to be told that these are no feature."""
    wards()["north"].to_csv(tmp_path / "new.csv", index=False)
    predict_file(fitted.client("north"), tmp_path / "new.csv", tmp_path / "out", tell=said.append)
    assert said == []


def test_a_model_that_gives_no_number_is_refused(fitted):
    """Such as one whose coefficients are NaN, in a folder with checksums made anew."""
    client = fitted.client("north")
    broken = replace(client.model, weights=np.full_like(client.model.weights, np.nan))
    with pytest.raises(NumericalError, match="the model gives no number for 50 of 50 rows"):
        replace(client, model=broken).predict(rows_of("north"))
