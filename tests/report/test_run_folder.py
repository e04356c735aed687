"""What a run folder holds, and when one is refused."""

import json

import pyarrow.parquet as pq
import pytest

from flic.config import resolve
from flic.errors import RunFolderError
from flic.report import run_folder

RAW = {
    "method": "flic-class",
    "seed": 3,
    "data": {
        "problem": "noisy-features",
        "num_clients": 4,
        "num_classes": 3,
        "classes_per_client": 2,
        "train_rows_per_class": 40,
        "test_rows_per_class": 10,
    },
    "training": {"rounds": 2, "participation": 0.5, "local": "1 epochs"},
    "embedding": {"latent_dim": 4, "hidden": [4]},
    "pretraining": {"epochs": 1},
}


@pytest.fixture
def finished(tmp_path):
    def make(name="run", **changes):
        folder = tmp_path / name
        config = resolve({**RAW, **changes})
        run_folder.create(folder, config)
        return run_folder.carry_on(folder)

    return make


def read(folder, name):
    return json.loads((folder / name).read_text())


def test_a_finished_run_folder(finished):
    done = finished()
    assert sorted(path.name for path in done.folder.iterdir()) == [
        ".lock",
        "checkpoints",
        "clients.parquet",
        "config.json",
        "rounds.json",
        "run.json",
        "summary.json",
        "timings.json",
    ]
    assert run_folder.read_config(done.folder) == resolve(RAW)
    assert {"python", "torch", "flic", "numpy"} <= read(done.folder, "run.json").keys()


def test_rounds(finished):
    done = finished()
    rounds = read(done.folder, "rounds.json")
    assert [(r["stage"], r["round"]) for r in rounds] == [
        ("prepare", 0),
        ("update", 1),
        ("update", 2),
        ("adapt", 3),
    ]
    assert all(len(r["active"]) == 2 for r in rounds[1:3])
    assert rounds[0]["losses"].keys() == {"alignment"}
    assert rounds[1]["losses"].keys() == {"data", "alignment", "calibration"}
    # Two clients send anchors of two classes of four float32 each.
    assert [r["bytes_sent"] for r in rounds] == [0, 2 * 2 * 4 * 4, 2 * 2 * 4 * 4, 0]
    assert done.bytes_sent == 128
    assert not [key for r in rounds for key in r if "seconds" in key or key == "scores"]


def test_timings(finished):
    done = finished()
    timings = read(done.folder, "timings.json")
    assert len(timings) == 4
    assert all(step.keys() == {"seconds", "cpu_seconds"} for step in timings)
    assert done.seconds == pytest.approx(sum(step["seconds"] for step in timings))


def test_clients_table_agrees_with_rounds_and_summary(finished):
    done = finished()
    table = pq.read_table(done.folder / "clients.parquet").to_pylist()
    assert len(table) == 4 * 4
    for record in read(done.folder, "rounds.json"):
        rows = [row for row in table if row["round"] == record["round"]]
        assert [row["client"] for row in rows] == [f"client-00{i}" for i in range(4)]
        mean = sum(row["test_right"] / row["test_rows"] for row in rows) / 4
        assert record["test_accuracy"] == pytest.approx(mean)
    summary = read(done.folder, "summary.json")
    assert summary["last_round"] == done.outcome.last.summary()
    assert summary["chosen_round"] == done.outcome.chosen.summary()
    assert summary["last_round"]["round"] == 3
    assert summary["notices"] == list(done.notices)


def test_equal_runs_differ_in_their_timings_alone(finished):
    one, two = finished("one").folder, finished("two").folder
    for name in ("config.json", "run.json", "rounds.json", "clients.parquet", "summary.json"):
        assert (one / name).read_bytes() == (two / name).read_bytes()
    assert (one / "timings.json").read_bytes() != (two / "timings.json").read_bytes()


def test_carrying_on_with_a_finished_run_changes_nothing(finished):
    done = finished()
    before = {p: p.read_bytes() for p in done.folder.rglob("*") if p.is_file()}
    again = run_folder.carry_on(done.folder)
    assert {p: p.read_bytes() for p in done.folder.rglob("*") if p.is_file()} == before
    assert again.outcome == done.outcome


def test_measuring_at_the_end_only(finished):
    folder = finished(evaluation={"every": 0}).folder
    table = pq.read_table(folder / "clients.parquet").to_pylist()
    assert {row["round"] for row in table} == {3}


def test_no_last_round(finished):
    folder = finished(training={**RAW["training"], "final_round": False}).folder
    assert [r["stage"] for r in read(folder, "rounds.json")][-1] == "evaluate"


def test_without_validation_rows(finished):
    folder = finished(evaluation={"validation_share": 0.0}).folder
    assert read(folder, "summary.json")["chosen_round"] is None
    assert {r["validation_accuracy"] for r in read(folder, "rounds.json")} == {None}


def test_a_method_without_rounds(finished):
    folder = finished(method="lda").folder
    [only] = read(folder, "rounds.json")
    assert (only["stage"], only["round"]) == ("evaluate", 0)
    assert read(folder, "summary.json")["last_round"]["mean"] == only["test_accuracy"]


@pytest.mark.parametrize("name", ["config.json", "notes.txt"])
def test_an_occupied_folder_is_refused_and_left_alone(tmp_path, name):
    (tmp_path / name).write_text("mine")
    with pytest.raises(RunFolderError, match=r"already holds .* Choose another with --out"):
        run_folder.create(tmp_path, resolve(RAW))
    assert [p.name for p in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text() == "mine"


def test_an_empty_folder_is_taken(tmp_path):
    run_folder.create(tmp_path, resolve(RAW))
    assert run_folder.read_config(tmp_path) == resolve(RAW)


def test_a_damaged_configuration_is_named(tmp_path):
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(RunFolderError, match=r"config.json is damaged .* cannot be resumed"):
        run_folder.read_config(tmp_path)
