"""`flic reproduce` as a user types it: every study, interrupted, shared and refused."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from flic.config import resolve
from flic.engine.checkpoint import DiskJournal
from flic_paper.arms import REVISIONS
from flic_paper.pages import QUICK
from flic_paper.studies import STUDIES
from flic_paper.study import CellContext, Scope, Table
from flic_paper.study_folder import work_through
from flic_paper.study_runs import run_cell

ROOT = Path(__file__).parents[2]
FLIC = Path(sys.executable).with_name("flic")


@pytest.fixture
def reproduce(flic_here):
    """reproduce(*arguments): the command inside this process."""
    return lambda *arguments: flic_here("reproduce", *arguments)


@pytest.fixture
def converted(need_data_of, tmp_path) -> Path:
    """A cache folder that holds the converted EEG file."""
    source = need_data_of("eeg")
    script = ROOT / "scripts" / "convert_eeg.py"
    own = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    subprocess.run(
        [sys.executable, script, source], env=own, check=True, capture_output=True, timeout=120
    )
    return tmp_path / "cache"


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.parametrize("name", STUDIES)
def test_quick_version_of_every_study(
    reproduce, name, need_data_of, request, tmp_path, monkeypatch
):
    need_data_of(name)
    if name == "eeg":
        monkeypatch.setenv("XDG_CACHE_HOME", str(request.getfixturevalue("converted")))
    out = tmp_path / "out"
    done = reproduce(name, "--quick", "--out", out)
    assert done.code == 0, done.err
    page = (out / "results.md").read_text()
    assert "Not finished" not in page
    assert "](environment.json)" in page
    assert json.loads((out / "environment.json").read_text())["torch"].startswith("2.")
    tables = sorted(path.stem for path in out.glob("*.csv"))
    pictures = sorted(path.stem for path in out.glob("*.png"))
    assert tables
    assert pictures
    assert all(f"]({picture}.png)" in page for picture in pictures)
    assert all(len((out / f"{table}.csv").read_text().splitlines()) > 1 for table in tables)
    # Nothing but results stays: what an unfinished cell needed is gone.
    assert not [path for path in (out / "work").rglob("*") if path.suffix in (".json", ".parquet")]


def results(folder: Path) -> dict[str, object]:
    """Every cell's result, without the seconds it took."""
    found = {}
    for path in sorted((folder / "cells").rglob("*.json")):
        cell = json.loads(path.read_bytes())["result"]
        for timing in ("seconds", "cpu_seconds"):
            cell.pop(timing, None)
        found[str(path.relative_to(folder))] = cell
    return found


@pytest.mark.slow
@pytest.mark.process
def test_a_killed_reproduction_goes_on_where_it_stopped(reproduce, tmp_path):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    assert reproduce("participation", "--quick", "--out", whole).code == 0
    command = [str(FLIC), "reproduce", "participation", "--quick", "--out", str(cut)]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    deadline = time.monotonic() + 120
    while len(list((cut / "cells").rglob("*.json"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    kept = {path: path.stat().st_mtime_ns for path in (cut / "cells").rglob("*.json")}
    assert kept
    done = reproduce("participation", "--quick", "--out", cut)
    assert done.code == 0, done.err
    assert results(cut) == results(whole)
    assert {path: path.stat().st_mtime_ns for path in kept} == kept


def test_what_other_code_began_of_a_cell_is_begun_anew(tmp_path):
    data = {"problem": "noisy-features", "num_clients": 10, "train_rows_per_class": 20}
    cell = run_cell("tiny", resolve({"method": "lda", "data": data}))
    whole = cell.work(CellContext(tmp_path, lambda line: None))
    journal = DiskJournal(tmp_path / "0" / "checkpoints")
    records, server = journal.records, journal.server
    shutil.rmtree(tmp_path / "0" / "checkpoints")
    DiskJournal(tmp_path / "0" / "checkpoints", {"code": "another"}).commit(server, records[0])
    told = []
    again = cell.work(CellContext(tmp_path, told.append))
    assert "begun anew: checkpoint" in told[0]
    assert again["last"] == whole["last"]
    assert cell.work(CellContext(tmp_path, told.append))["last"] == whole["last"]
    assert sum("begun anew" in line for line in told) == 1


@pytest.mark.slow
@pytest.mark.process
def test_several_processes_share_the_cells(tmp_path):
    alone, shared = tmp_path / "alone", tmp_path / "shared"
    scope = Scope(quick=True)
    study = STUDIES["participation"]
    work_through(study, scope, alone, workers=1, tell=lambda line: None)
    work_through(study, scope, shared, workers=2, tell=lambda line: None)
    assert results(alone) == results(shared)


@pytest.mark.slow
def test_a_cluster_shares_the_cells(reproduce, cluster, tmp_path):
    here, there = tmp_path / "here", tmp_path / "there"
    study, on = ("regression", "--quick", "--only"), ("--cluster", cluster.address)
    assert reproduce(*study, "diabetes/paper/flic", "--out", here).code == 0
    first = reproduce(*study, "diabetes/paper/flic-hl", *on, "--out", there)
    assert first.code == 0, first.err
    kept = {path: path.stat().st_mtime_ns for path in (there / "cells").rglob("*.json")}
    assert len(kept) == 1
    done = reproduce(*study, "diabetes/paper/flic", *on, "--out", there)
    assert done.code == 0, done.err
    assert results(there) == results(here)
    assert {path: path.stat().st_mtime_ns for path in kept} == kept


@pytest.mark.slow
def test_a_cell_that_is_another_on_a_worker_is_refused(reproduce, cluster, tmp_path, monkeypatch):
    monkeypatch.setitem(REVISIONS, "local", 99)
    own = ("participation", "--quick", "--only", "0.1/local", "--out", tmp_path / "out")
    done = reproduce(*own, "--cluster", cluster.address)
    assert done.code == 2
    assert "its cell 'noisy-features/0.1/local/seed0' is not the command's" in done.err


@pytest.mark.slow
@pytest.mark.process
def test_no_process_outlives_a_killed_reproduction(tmp_path):
    command = [str(FLIC), "reproduce", "toy", "--workers", "2", "--out", str(tmp_path)]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    deadline = time.monotonic() + 120
    # Two locks that are held: parent and helper are each at a cell of their own.
    while len(list((tmp_path / "work").rglob("config.json"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    children = _children(process.pid)
    assert children
    process.send_signal(signal.SIGKILL)
    process.communicate()
    deadline = time.monotonic() + 60
    while any(map(_runs, children)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not [pid for pid in children if _runs(pid)]


def _children(parent: int) -> list[int]:
    listed = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(parent)], capture_output=True, text=True, check=False
    )
    return [int(pid) for pid in listed.stdout.split()]


def _runs(pid: int) -> bool:
    state = Path(f"/proc/{pid}/stat")
    try:
        return state.read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.slow
@pytest.mark.parametrize(("key", "value"), [("rounds", 7), ("of_another_age", 7)])
def test_a_result_of_other_settings_is_refused(reproduce, key, value, tmp_path):
    quick = ("participation", "--quick", "--only", "0.1/local", "--out", tmp_path)
    assert reproduce(*quick).code == 0
    [path] = (tmp_path / "cells").rglob("*.json")
    kept = json.loads(path.read_bytes())
    kept["settings"][0]["training"][key] = value
    path.write_text(json.dumps(kept))
    done = reproduce(*quick)
    assert done.code == 1
    assert "holds a result of other settings than cell 'noisy-features/0.1/local" in done.err


@pytest.mark.slow
def test_a_result_from_before_a_setting_was_added_is_kept(reproduce, tmp_path):
    quick = ("participation", "--quick", "--only", "0.1/local", "--out", tmp_path)
    assert reproduce(*quick).code == 0
    [path] = (tmp_path / "cells").rglob("*.json")
    kept = json.loads(path.read_bytes())
    del kept["settings"][0]["anchors"]["meta_classes"]
    path.write_text(json.dumps(kept))
    done = reproduce(*quick)
    assert done.code == 0, done.err
    assert json.loads(path.read_bytes()) == kept


@pytest.mark.slow
def test_a_result_of_an_earlier_revision_is_said_and_done_again(reproduce, tmp_path):
    command = ("regression", "--quick", "--only", "diabetes/paper/within-space", "--out", tmp_path)
    assert reproduce(*command).code == 0
    [path] = (tmp_path / "cells").rglob("*.json")
    made = json.loads(path.read_bytes())
    right = made["result"]["last"]
    old = {**made, "revision": 0, "result": {**made["result"], "last": None}}
    path.write_text(json.dumps(old))
    done = reproduce(*command)
    assert done.code == 0, done.err
    assert "earlier revision of the method are computed again (1): diabetes/paper" in done.err
    assert json.loads(path.read_bytes())["result"]["last"] == right
    assert "earlier revision" not in reproduce(*command).err


@pytest.mark.slow
def test_a_result_of_an_earlier_revision_is_in_no_table(reproduce, tmp_path):
    within = ("regression", "--quick", "--only", "diabetes/paper/within-space", "--out", tmp_path)
    assert reproduce(*within).code == 0
    table = tmp_path / "regression-diabetes.csv"
    assert "within-space" in table.read_text()
    [path] = (tmp_path / "cells").rglob("*.json")
    path.write_text(json.dumps({**json.loads(path.read_bytes()), "revision": 0}))
    done = reproduce("regression", "--quick", "--only", "diabetes/paper/ridge", "--out", tmp_path)
    assert done.code == 0, done.err
    assert "within-space" not in table.read_text()


@pytest.mark.slow
def test_fewer_seeds_are_less_work_and_take_nothing_from_the_tables(reproduce, tmp_path):
    study = ("participation", "--quick", "--out", tmp_path)
    assert reproduce(*study, "--only", "0.1/local", "--seeds", "0,4").code == 0
    table = (tmp_path / "participation.csv").read_text()
    assert ',local,"0, 4",' in table
    done = reproduce(*study, "--only", "0.8/local", "--seeds", "4,5")
    assert done.code == 0, done.err
    both = (tmp_path / "participation.csv").read_text()
    assert set(table.splitlines()) < set(both.splitlines())
    assert ',local,"4, 5",' in both
    # Four cells are done, and of the study's own seed three are left.
    assert "4 of 7 cells" in (tmp_path / "results.md").read_text()


@pytest.mark.slow
@pytest.mark.process
def test_an_interruption_says_that_the_work_is_kept(tmp_path):
    command = [str(FLIC), "reproduce", "toy", "--out", str(tmp_path)]
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 120
    while not list((tmp_path / "work").rglob("config.json")) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=300)
    assert process.returncode == 130
    assert f"stopped; finished cells are kept in {tmp_path}, and the same command resumes" in said
    assert (tmp_path / "results.md").exists()


def test_a_damaged_study_file_is_said(reproduce, tmp_path):
    (tmp_path / "study.json").write_text("{")
    done = reproduce("tsne", "--quick", "--out", tmp_path)
    assert done.code == 1
    assert "study.json is damaged" in done.err


def test_a_text_that_no_cell_has_is_refused(reproduce, tmp_path):
    done = reproduce("tsne", "--quick", "--only", "letters", "--out", tmp_path)
    assert done.code == 2
    assert "--only: no cell of tsne has 'letters' in its key" in done.err


def test_a_folder_of_another_study_is_refused(reproduce, tmp_path):
    (tmp_path / "study.json").write_text('{"study": "toy", "quick": false}')
    done = reproduce("tsne", "--quick", "--out", tmp_path)
    assert done.code == 1
    assert "holds the full study 'toy'; expected the quick study 'tsne'" in done.err


def test_an_unknown_study_is_refused_with_the_names_of_all(reproduce):
    done = reproduce("table-letters")
    assert done.code == 2
    assert all(name in done.err for name in ("table-letters", *STUDIES))


def test_all_studies_are_listed(reproduce):
    done = reproduce("--list")
    assert done.code == 0
    titles = [
        line.removeprefix(name).strip()
        for name, line in zip(STUDIES, done.out.splitlines(), strict=True)
    ]
    assert not [title for title in titles if title[0].islower() and not title.startswith("t-SNE")]


@pytest.mark.slow
def test_only_some_cells_are_done_and_the_page_says_what_is_left(reproduce, tmp_path):
    done = reproduce("participation", "--quick", "--only", "0.1/local", "--out", tmp_path)
    assert done.code == 0, done.err
    assert "3 cells still to be done" in done.err
    assert QUICK in done.out
    assert (
        "Not finished: noisy-features/0.1/flic-class/seed0" in (tmp_path / "results.md").read_text()
    )


def test_a_quick_study_gets_into_no_page(reproduce, tmp_path):
    page = tmp_path / "page.md"
    page.write_text("<!-- begin regression -->\nold\n<!-- end regression -->\n")
    results = tmp_path / "results"
    cell = ("--only", "diabetes/paper/ridge/0", "--out", results / "regression")
    assert reproduce("regression", "--quick", *cell).code == 0
    done = reproduce("--page", page, "--out", results)
    assert done.code == 2
    assert "holds a quick study" in done.err
    assert "old" in page.read_text()


@pytest.mark.parametrize(
    ("name", "text", "code", "said"),
    [
        (None, "no marks\n", 1, "page.md has no marks; expected <!-- begin NAME -->"),
        (None, "<!-- begin toy -->\n<!-- end toy -->\n", 1, "holds no results of toy; expected"),
        ("toy", "<!-- begin toy -->\n<!-- end toy -->\n", 2, "got toy and --page; expected one"),
    ],
)
def test_a_page_that_nothing_can_be_put_into_is_refused(
    reproduce, name, text, code, said, tmp_path
):
    page = tmp_path / "page.md"
    page.write_text(text)
    done = reproduce(*([name] if name else []), "--page", page, "--out", tmp_path / "results")
    assert done.code == code
    assert said in done.err
    assert page.read_text() == text


@pytest.mark.parametrize("below", ["", "sub", "sub/folder"])
def test_a_file_where_the_folder_should_be_is_refused(reproduce, below, tmp_path):
    file = tmp_path / "file"
    file.write_text("mine")
    done = reproduce("tsne", "--quick", "--out", file / below)
    assert done.code == 1
    assert f"--out: got {file / below}, but {file} is a file; expected a folder" in done.err


@pytest.mark.process
def test_the_conversion_explains_itself():
    script = ROOT / "scripts" / "convert_eeg.py"
    done = subprocess.run(
        [sys.executable, script, "--help"], capture_output=True, text=True, check=True, timeout=120
    )
    assert "Usage: scripts/convert_eeg.py SOURCE [DEST]" in done.stdout


@pytest.mark.slow
def test_results_are_put_between_the_marks_of_a_page(reproduce, tmp_path):
    results = tmp_path / "results"
    cell = ("--only", "diabetes/paper/ridge/0", "--out", results / "regression")
    assert reproduce("regression", *cell).code == 0
    (results / "regression" / "results.md").unlink()  # made anew from the cells
    page = tmp_path / "docs" / "page.md"
    page.parent.mkdir()
    page.write_text("before\n<!-- begin regression -->\nold\n<!-- end regression -->\nafter\n")
    done = reproduce("--page", page, "--out", results)
    assert done.code == 0, done.err
    text = page.read_text()
    assert "old" not in text
    assert "![regression](figures/regression.png)" in text
    assert "](../results/regression/regression-diabetes.csv)" in text
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert (page.parent / "figures" / "regression.png").read_bytes().startswith(b"\x89PNG")


def test_a_table_in_brief_has_the_rows_that_answer_and_the_file_all():
    table = Table("t", "T", ["arm", "score", "paper"], [["a", 1.0, None], ["b", 2.0, 3.0]])
    brief = table.cut({"arm", "score", "paper"}, lambda row: row["arm"] == "a").brief
    assert brief is not None
    assert (brief.columns, brief.rows) == (["arm", "score"], [["a", 1.0]])
    assert table.rows[1] == ["b", 2.0, 3.0]
