"""Run folders: their contents, and refusals."""

import json
import shutil

import pyarrow.parquet as pq
import pytest
import torch
from made_problems import NOISY
from made_trials import changed, trials

from flic.config import resolve
from flic.digests import digest, digest_of_code
from flic.engine.checkpoint import Commit
from flic.errors import Damaged, Diverged, OtherRun, RunFolderError
from flic.page.from_run import report_of_run
from flic.runs import run_folder
from flic.settings import differences
from flic.silos.joining import shared_by_run
from flic_paper.problems.store import save_arrays
from sealing import CHANGES, sealed

RAW = {
    "method": "flic-class",
    "seed": 3,
    "data": NOISY,
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
        return run_folder.resume(folder)

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


PRIVATE = {"folder 700", "file 600"}


@pytest.mark.slow
def test_only_its_owner_may_read_a_run(modes, finished, flic_here, tmp_path):
    (tmp_path / "above" / "run").mkdir(parents=True)  # an empty one is taken, and closed
    folder = finished("above/run").folder
    assert flic_here("report", folder).code == 0
    assert modes(folder) == PRIVATE
    finished("new/of/all")
    assert modes(tmp_path / "new") == PRIVATE


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
    again = run_folder.resume(done.folder)
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


@pytest.mark.parametrize("content", ["{", "[]", "[" * 100_000])
def test_a_damaged_configuration_is_named(tmp_path, content):
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(RunFolderError, match=r"config.json is damaged .* as flic wrote"):
        run_folder.read_config(tmp_path)


# ---- a run goes on with nothing but its own steps ------------------------------------------


class Stopped(Exception):
    pass


@pytest.fixture
def interrupted(tmp_path):
    """interrupted(name, steps=, …): the folder of a run that was stopped after some steps."""

    def make(name="cut", *, steps=2, **changes):
        def stop(record, total, done):
            if done == steps:
                raise Stopped

        run_folder.create(tmp_path / name, resolve({**RAW, **changes}))
        with pytest.raises(Stopped):
            run_folder.resume(tmp_path / name, on_step=stop)
        return tmp_path / name

    return make


def edit(folder, section, key, value):
    """Change config.json by hand."""
    config = read(folder, "config.json")
    (config[section] if section else config)[key] = value
    (folder / "config.json").write_text(json.dumps(config))


def files_in(folder):
    return {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def refusal(folder, work=run_folder.resume):
    """The error's text, once it is certain that nothing was touched."""
    before = files_in(folder)
    with pytest.raises(OtherRun) as refused:
        work(folder)
    assert files_in(folder) == before
    return str(refused.value)


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("training", "batch_size", 7),
        ("training", "rounds", 9),
        ("evaluation", "every", 2),
        ("engine", "dtype", "float64"),
    ],
)
def test_edited_settings_are_not_gone_on_with(interrupted, section, key, value):
    folder = interrupted()
    edit(folder, section, key, value)
    said = refusal(folder)
    assert f"00000.json was not made with the settings that the run has now ({section}." in said
    assert f"{section}.{key}: " in said
    assert f" became {json.dumps(value)}); expected" in said
    assert "start a new run in another folder" in said


def test_with_another_seed_the_data_are_others_too(interrupted):
    folder = interrupted()
    edit(folder, None, "seed", 4)
    said = refusal(folder)
    assert "not made with the settings and the data that the run has now (seed: 3 became 4)" in said


def test_of_many_changes_the_first_are_named():
    before = {"a": {"b": 1, "c": 2}, "d": [1], **{f"k{i}": i for i in range(9)}}
    after = {"a": {"b": 1}, "d": [2], "e": None, **{f"k{i}": -i for i in range(9)}}
    assert differences(before, before) == ""
    assert differences(before, after) == (
        "a.c: 2 became nothing, d: [1] became [2], k1: 1 became -1, k2: 2 became -2, and 7 more"
    )


def test_a_finished_run_with_an_edited_seed_is_neither_reported_nor_written_anew(finished):
    folder = finished().folder
    edit(folder, None, "seed", 4)
    assert "not made with the settings and the data that" in refusal(folder)
    assert "not made with the settings and the data that" in refusal(folder, report_of_run)


def test_checkpoints_of_another_run_are_not_gone_on_with(interrupted):
    own, other = (
        interrupted("own"),
        interrupted("other", training={**RAW["training"], "batch_size": 7}),
    )
    shutil.copytree(other / "checkpoints", own / "checkpoints", dirs_exist_ok=True)
    assert "that the run has now (training.batch_size: 7 became" in refusal(own)


def test_a_single_step_of_another_run_is_found(interrupted):
    own, other = interrupted("own", steps=2), interrupted("other", steps=3, method="fedhenn")
    for path in (other / "checkpoints").glob("00002.*"):
        shutil.copy(path, own / "checkpoints")
    said = refusal(own)
    assert "00002.json was not made with the settings that the run has now (method: " in said
    assert f'"fedhenn" became "{RAW["method"]}"' in said


def test_a_step_under_another_number_is_damaged(interrupted):
    folder = interrupted(steps=3)
    shutil.copy(folder / "checkpoints" / "00001.json", folder / "checkpoints" / "00002.json")
    told = []
    run_folder.resume(folder, on_damage=told.append)
    assert "00002.json is damaged (it is of step 1)" in told[0]


@pytest.mark.parametrize("what", ["a value", "a label"])
def test_another_data_file_is_not_gone_on_with(interrupted, tmp_path, monkeypatch, what):
    monkeypatch.setenv("FLIC_DATA", str(tmp_path))
    path = save_arrays("eeg", trials(0), tmp_path)
    folder = interrupted(data={"problem": "eeg"}, method="local")
    before = path.read_bytes()
    save_arrays("eeg", changed(what, trials(0)), tmp_path)
    assert "not made with the data that" in refusal(folder)
    path.write_bytes(before)
    assert run_folder.resume(folder).outcome.last.round == 3


def rewrite(folder, **origin):
    """Commits as if they had been made elsewhere."""
    for path in (folder / "checkpoints").glob("[0-9]*.json"):
        commit = Commit.parse(path.read_bytes())
        path.write_bytes(commit.model_copy(update={"origin": {**commit.origin, **origin}}).dump())


def test_steps_of_other_code_are_shown_but_not_gone_on_with(interrupted, finished):
    folder = interrupted()
    rewrite(folder, code="0" * 64)
    assert "not made with the code that" in refusal(folder)
    done = finished().folder
    rewrite(done, code="0" * 64)
    assert report_of_run(done).rounds


def test_what_computes_is_told_apart_and_what_shows_is_not(tmp_path):
    for name in ("algorithms", "silos", "report"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.py").write_text("x = 1")
    found = {}
    for name in ("report", "silos", "algorithms"):
        digest_of_code.cache_clear()
        (tmp_path / name / "a.py").write_text("x = 2")
        found[name] = [digest_of_code(sources=tmp_path), digest_of_code("silos", sources=tmp_path)]
    (run, fit), (run_2, fit_2), (run_3, fit_3) = found.values()
    assert run == run_2 != run_3
    assert len({fit, fit_2, fit_3}) == 3


@pytest.mark.slow
def test_the_width_of_stacks_may_change(interrupted, finished, nearly):
    whole, folder = finished(), interrupted()
    edit(folder, "engine", "stack_width", 1)
    again = run_folder.resume(folder, workers=1)
    assert again.outcome.last.summary() == nearly(whole.outcome.last.summary())


# ---- checkpoints with other tensors, and checksums that fit --------------------------------


METHODS = {
    "flic-hl": {"method": "flic-hl"},
    "meta-classes": {"method": "flic-hl", "anchors": {"meta_classes": 2}},
    "within-space": {"method": "within-space"},
}


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("kind", ["0", "server"])
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_other_tensors_are_refused_whatever_the_checksums_say(finished, name, kind, change):
    folder = finished(**METHODS[name]).folder
    sealed(folder, kind, change)
    readers = [run_folder.resume, report_of_run]
    readers += [shared_by_run] if METHODS[name]["method"] == "flic-hl" else []
    for work in readers:
        with pytest.raises(Damaged) as refused:
            work(folder)
        assert "expected it as flic wrote it" in str(refused.value)


def test_rows_that_overflow_are_not_drawn(finished):
    folder = finished(**METHODS["flic-hl"]).folder
    sealed(folder, "0", lambda tensors: [tensor.fill_(1e30) for tensor in tensors.values()])
    with pytest.raises(Diverged, match="rows embedded by the last checkpoint are no longer finite"):
        report_of_run(folder)


@pytest.mark.parametrize("classes", [[0, 1, 2], [0, 0, 0], [0, -1, 1]])
def test_a_map_to_other_meta_classes_is_refused(finished, classes):
    folder = finished(**METHODS["meta-classes"]).folder
    sealed(folder, "server", lambda tensors: tensors.update(meta_classes=torch.tensor(classes)))
    with pytest.raises(Damaged, match="the shared 'meta_classes' is missing, unknown or"):
        run_folder.resume(folder)


def forge(folder, step, **changes):
    path = folder / "checkpoints" / f"{step}.json"
    path.write_bytes(Commit.parse(path.read_bytes()).model_copy(update=changes).dump())


def test_a_client_whose_state_is_elsewhere_does_not_begin_anew(finished):
    folder = finished().folder
    last = Commit.parse((folder / "checkpoints" / "00003.json").read_bytes())
    forge(folder, "00003", clients=dict.fromkeys(last.clients, "00003.server.safetensors"))
    with pytest.raises(Damaged, match=r"it has no state of|is damaged"):
        run_folder.resume(folder)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"round": 2**63}, "step 3 is none of the run's steps"),
        ({"stage": "prepare"}, "step 3 is none of the run's steps"),
        ({"scores": {}}, "step 3 has no scores"),
    ],
)
def test_a_record_that_is_none_of_the_run_is_refused(finished, changes, why):
    folder = finished().folder
    last = Commit.parse((folder / "checkpoints" / "00003.json").read_bytes())
    forge(folder, "00003", record={**last.record, **changes})
    for work in (run_folder.resume, report_of_run):
        with pytest.raises(Damaged, match=why):
            work(folder)


def test_a_step_names_no_file_outside_its_folder(interrupted, tmp_path):
    """Files that no step needs any more are removed: only checkpoints may be."""
    folder, precious = interrupted(steps=3), tmp_path / "precious.txt"
    precious.write_text("mine")
    last = Commit.parse((folder / "checkpoints" / "00002.json").read_bytes())
    outside = "../../precious.txt"
    files = {**last.files, outside: digest(precious.read_bytes())}
    forge(folder, "00002", files=files)
    told = []
    run_folder.resume(folder, on_damage=told.append)
    assert "00002.json is damaged (it names the file '../../precious.txt')" in told[0]
    assert precious.read_text() == "mine"


@pytest.mark.parametrize("score", [2**63, {"a": 1}])
def test_scores_that_no_table_holds_are_refused(score):
    records = [{"round": n, "scores": {"a": {"rows": own}}} for n, own in ((1, 3), (2, score))]
    with pytest.raises(RunFolderError, match="cannot be written as a table"):
        run_folder._clients_table(records)
