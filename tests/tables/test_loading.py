"""Files and frames become the same tables, with what is needed to read later rows."""

import numpy as np
import pandas as pd
import polars as pl
import pytest

from flic.data.task import Classification, Regression
from flic.errors import ConfigError, DataError
from flic.tables import (
    Client,
    Declared,
    FederationFile,
    load_client,
    load_tables,
    read_federation,
    tables_from_frames,
)

GROUPS = {"well": (0,), "ill": (1, 2)}


def rows(seed, n=30):
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "age": rng.integers(20, 90, n),
            "drug": rng.choice(["a", "b"], n),
            "grade": np.arange(n) % 3,
        }
    )


@pytest.fixture
def frames():
    return {"north": rows(0), "south": rows(1)}


def assert_same(one, other):
    assert (one.task, one.labels, one.names) == (other.task, other.labels, other.names)
    for a, b in zip(one.tables, other.tables, strict=True):
        pd.testing.assert_frame_equal(a.frame, b.frame)
        assert a.y.tolist() == b.y.tolist()
        assert (a.columns, a.declared) == (b.columns, b.declared)
        same = {"values": "texts"}  # a text file has no other labels
        labellings = [t.labelling.model_copy(update=same) for t in (a, b)]
        assert labellings[0] == labellings[1]


@pytest.mark.parametrize("suffix", ["csv", "parquet", "feather"])
def test_files_and_frames_give_the_same_tables(tmp_path, frames, suffix):
    for name, frame in frames.items():
        writer = getattr(frame, f"to_{suffix}")
        writer(tmp_path / f"{name}.{suffix}", **({"index": False} if suffix == "csv" else {}))
    clients = tuple(Client(name=name, data=f"{name}.{suffix}") for name in frames)
    file = FederationFile(label="grade", labels=GROUPS, clients=clients, missing={"age": (40,)})
    declared = Declared(missing={"age": (40,)})
    expected = tables_from_frames(frames, label="grade", labels=GROUPS, declared=declared)
    assert_same(load_tables(file, tmp_path), expected)
    assert expected.task == Classification(2)
    assert expected.labels == ("well", "ill")
    assert expected.tables[0].y.tolist()[:4] == [0, 1, 1, 0]


def test_polars_frames_give_the_same_tables(frames):
    polars = {name: pl.from_pandas(frame) for name, frame in frames.items()}
    of_polars = tables_from_frames(polars, label="grade")
    assert_same(of_polars, tables_from_frames(frames, label="grade"))
    assert of_polars.labels == ("0", "1", "2")


def test_responses_keep_their_unit(frames):
    tables = tables_from_frames(frames, label="age", task="regression", range=(0, 120))
    assert tables.task == Regression(0, 120)
    assert tables.labels == ()
    assert tables.tables[0].y.tolist() == frames["north"]["age"].tolist()


def test_labels_are_sorted_as_numbers_and_rows_without_one_dropped(frames):
    frames["north"]["grade"] = ["10", "9"] * 14 + [None, "NA"]
    frames["south"]["grade"] = ["10", "2"] * 15
    tables = tables_from_frames(frames, label="grade")
    assert tables.labels == ("2", "9", "10")
    assert len(tables.tables[0].frame) == len(tables.tables[0]) == 28
    assert tables.notices == ("Client 'north': 2 rows without a label are dropped.",)


def test_a_single_row_without_a_label_is_spoken_of_as_one(frames):
    frames["north"].loc[0, "grade"] = None
    assert tables_from_frames(frames, label="grade").notices == (
        "Client 'north': 1 row without a label is dropped.",
    )


def test_taking_rows_keeps_how_they_are_read(frames):
    table = tables_from_frames(frames, label="grade").tables[0]
    part = table.take(np.array([3, 1]))
    assert part.frame["age"].tolist() == table.frame["age"].iloc[[3, 1]].tolist()
    assert (part.declared, part.labelling) == (table.declared, table.labelling)


def test_later_labels_are_read_alike(frames):
    table = tables_from_frames(frames, label="grade", labels=GROUPS).tables[0]
    later = pd.DataFrame({"grade": ["2.0", "", "0"]})
    y, kept = table.labelling.read(later, table.declared)
    assert (y.tolist(), kept.tolist()) == ([1, 0], [0, 2])
    again = type(table.labelling).model_validate_json(table.labelling.model_dump_json())
    assert again == table.labelling
    assert Declared.model_validate_json(table.declared.model_dump_json()) == table.declared


def test_one_more_client_for_a_known_question(tmp_path, frames):
    frames["south"].to_csv(tmp_path / "new.csv", index=False)
    client = Client(name="new", data="new.csv", label="grade", labels=GROUPS)
    known = {"task": Classification(2), "labels": ("well", "ill")}
    table, notices = load_client(client, tmp_path, **known)
    assert table.y.tolist()[:3] == [0, 1, 1]
    assert notices == []
    strange = client.model_copy(update={"labels": {"sick": (1,)}})
    with pytest.raises(DataError, match="Client 'new': its `labels` have the classes 'sick'"):
        load_client(strange, tmp_path, **known)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"label": "num"}, "problems: 2"),
        ({"task": "regression"}, r"got the range None; expected \(low, high\)"),
        ({"declared": Declared(ids=("age",), drop=("age",))}, "'age' is declared to be two things"),
    ],
)
def test_frames_meet_the_same_refusals(frames, changes, expected):
    with pytest.raises(DataError, match=expected):
        tables_from_frames(frames, **({"label": "grade"} | changes))


@pytest.mark.parametrize(
    ("frames", "expected"),
    [({}, "got no frames"), ({"a": [1], "b": rows(0)}, "got a list; expected")],
)
def test_what_are_no_frames(frames, expected):
    with pytest.raises(DataError, match=expected):
        tables_from_frames(frames, label="grade")


def test_a_bad_description_is_refused_with_all_its_keys(tmp_path):
    path = tmp_path / "federation.toml"
    path.write_text('lable = 1\nempty_share = 2\n[[clients]]\nname = "a"\n')
    with pytest.raises(ConfigError) as refusal:
        read_federation(path)
    for expected in ["lable: unknown key", "empty_share: got 2", "client 'a': data: missing"]:
        assert expected in str(refusal.value)


def test_contradictions_are_refused_in_python_too(tmp_path):
    with pytest.raises(ConfigError, match="clients: missing"):
        load_tables(FederationFile(label="x"), tmp_path)


def test_what_is_said_about_fitting_is_kept(tmp_path):
    path = tmp_path / "federation.toml"
    path.write_text('label = "x"\ndata = "a.csv"\nsite = "s"\n[fit]\nrepeats = 3\n')
    assert read_federation(path).fit == {"repeats": 3}


@pytest.mark.parametrize("name", ["Unnamed: 0", "__index_level_0__", " ", "unnamed 3"])
def test_columns_without_a_name_are_private(frames, name):
    unnamed = {k: frame.rename(columns={"age": name}) for k, frame in frames.items()}
    tables = tables_from_frames(unnamed, label="grade", labels=GROUPS).tables
    shared = [{column.name for column in table.shared} for table in tables]
    assert f"{name} of north" in shared[0]
    assert not any(name in (column, column.strip()) for column in shared[0] & shared[1])
