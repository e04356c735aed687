"""`flic run` and `flic compare` when all goes well."""

import fcntl
import json

import pytest
from rich.console import Console

from flic.cli import screen
from flic.settings import validated

RESULTS = ["rounds.json", "clients.parquet", "summary.json"]


def results(folder):
    return {name: (folder / name).read_bytes() for name in RESULTS}


def test_version(flic):
    said = flic("--version")
    assert (said.code, said.err) == (0, "")
    assert said.out.startswith("flic 0.")


@pytest.mark.parametrize("command", [[], ["run"], ["compare"], ["bench"]])
def test_help(flic_here, command):
    said = flic_here(*command, "--help")
    assert said.code == 0
    assert "Usage: flic" in said.out
    expected = {"run": "--resume", "compare": "--seeds", "bench": "--format"}
    for word in [expected[name] for name in command] or expected:
        assert word in said.out


def test_no_command_shows_the_help(flic_here):
    assert "Usage: flic" in flic_here().out


@pytest.mark.slow
def test_run_with_every_option(flic, flic_here, config, tmp_path, nearly):
    """In processes of its own, and but for rounding the same as in this one."""
    own = ["--set", "training.rounds=2", "--set", "engine.dtype=float64", "--seed", 5]
    said = flic("run", config, *own, "--workers", 2, "--out", "two", "--quiet")
    assert said.code == 0, said.err
    assert "step 1 of" not in said.out
    assert "flic-hl, seed 5: test accuracy" in said.out
    assert "run folder: two" in said.out
    settings = json.loads((tmp_path / "two" / "config.json").read_text())
    assert (settings["seed"], settings["training"]["rounds"]) == (5, 2)
    assert flic_here("run", config, *own, "--out", "one").code == 0
    two, one = (json.loads((tmp_path / n / "rounds.json").read_text()) for n in ("two", "one"))
    assert two == nearly(one)


@pytest.mark.parametrize(
    ("words", "methods", "times"),
    [
        (("run",), (), 1),
        (("run",), ("lda",), 2),
        (("compare", "--methods", "lda,logistic", "--seeds", 2), (), 1),
        (("compare", "--methods", "lda,logistic", "--seeds", 2), ("lda", "logistic"), 3),
    ],
)
def test_settings_are_validated_once_and_once_for_each_method_that_has_its_own(
    flic_here, config, monkeypatch, words, methods, times
):
    made = []
    monkeypatch.setattr(
        "flic.config.validated",
        lambda *args, **named: made.append(args) or validated(*args, **named),
    )
    command, *rest = words
    own = [word for m in methods for word in ("--set", f"methods.{m}.linked.folds=3")]
    said = flic_here(command, config, "--set", "method=lda", *own, *rest, "--out", "counted")
    assert said.code == 0, said.err
    assert len(made) == times


@pytest.mark.slow
def test_progress_is_plain_lines_where_there_is_no_terminal(flic_here, config):
    said = flic_here("run", config, "--out", "one")
    assert said.code == 0
    lines = [line for line in said.out.splitlines() if line.startswith("flic-hl (seed 0): step")]
    assert lines[-1].startswith("flic-hl (seed 0): step 5 of 5 (adapt): data ")
    assert lines[-1].endswith(" %")
    assert "\x1b" not in said.out


@pytest.mark.slow
def test_quiet_leaves_the_result_alone(flic_here, config):
    said = flic_here("run", config, "--out", "one", "--quiet")
    assert "(seed 0): step" not in said.out
    assert said.err == ""
    assert "mean %" in said.out


@pytest.mark.slow
def test_the_seed_is_the_result(flic_here, config, tmp_path):
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        assert flic_here("run", config, "--seed", seed, "--out", name).code == 0
    assert results(tmp_path / "a") == results(tmp_path / "b")
    assert results(tmp_path / "a") != results(tmp_path / "c")


def test_a_run_without_out_goes_to_a_folder_of_its_own(flic_here, config, tmp_path):
    said = flic_here("run", config, "--set", "method=lda")
    [folder] = (tmp_path / "runs").iterdir()
    assert folder.name.startswith("lda-")
    assert f"run folder: runs/{folder.name}" in said.out


@pytest.mark.slow
def test_a_second_run_into_the_same_folder_is_refused(flic_here, config, tmp_path):
    flic_here("run", config, "--out", "one")
    before = {p: p.read_bytes() for p in (tmp_path / "one").rglob("*") if p.is_file()}
    said = flic_here("run", config, "--out", "one", "--seed", 9)
    assert said.code == 1
    assert said.err == (
        "flic: one already holds a run; expected a new or empty folder. "
        "Choose another with --out, or resume it with: flic run --resume one\n"
    )
    assert {p: p.read_bytes() for p in (tmp_path / "one").rglob("*") if p.is_file()} == before


@pytest.mark.slow
def test_resuming_a_finished_run_shows_it_again(flic_here, config, tmp_path):
    first = flic_here("run", config, "--out", "one", "--quiet")
    before = results(tmp_path / "one")
    again = flic_here("run", "--resume", "one", "--quiet")
    assert (again.code, again.out) == (0, first.out)
    assert results(tmp_path / "one") == before


@pytest.mark.slow
def test_compare(flic_here, config, tmp_path):
    arguments = ("compare", config, "--methods", "local,flic-class,logistic", "--seeds", 2,
                 "--out", "all")  # fmt: skip
    said = flic_here(*arguments)
    assert said.code == 0, said.err
    rows = [line.split() for line in said.out.splitlines() if "(seed" not in line]
    methods = ["local", "flic-class", "logistic"]
    assert [words[0] for words in rows if words and words[0] in methods] == methods
    assert "gain over local" in said.out
    rows = json.loads((tmp_path / "all" / "comparison.json").read_text())
    assert [row["method"] for row in rows] == ["local", "flic-class", "logistic"]
    assert [row["seeds"] for row in rows] == [2, 2, 2]
    assert rows[0]["gain"] is None
    gains = [row["gain"] - (row["mean"] - rows[0]["mean"]) for row in rows[1:]]
    assert gains == pytest.approx([0, 0])
    folders = sorted(p.name for p in (tmp_path / "all").iterdir() if p.is_dir())
    assert folders == sorted(
        f"{method}-seed{seed}" for method in ("local", "flic-class", "logistic") for seed in (0, 1)
    )


@pytest.mark.slow
def test_compare_keeps_finished_runs_and_refuses_other_settings(flic_here, config, tmp_path):
    arguments = ("compare", config, "--methods", "local,logistic", "--seeds", "3,7", "--out", "all")
    assert flic_here(*arguments, "--quiet").code == 0
    timings = tmp_path / "all" / "local-seed3" / "timings.json"
    before = timings.read_bytes()
    assert flic_here(*arguments, "--quiet").code == 0
    assert timings.read_bytes() == before
    said = flic_here(*arguments, "--set", "training.rounds=1")
    assert said.code == 1
    assert "local-seed3 holds a run with other settings (training." in said.err


def test_compare_measures_gains_against_any_method(flic_here, config, tmp_path):
    said = flic_here("compare", config, "--methods", "local,logistic", "--reference", "logistic",
                     "--out", "all", "--quiet")  # fmt: skip
    assert "gain over logistic" in said.out
    rows = json.loads((tmp_path / "all" / "comparison.json").read_text())
    assert rows[0]["gain"] is not None
    assert rows[1]["gain"] is None


@pytest.mark.slow
def test_settings_of_a_single_method_hold_in_a_comparison(flic_here, config, tmp_path):
    with config.open("a") as file:
        file.write('\n[methods.local]\ntraining = { local = "3 epochs" }\n')
    assert flic_here("compare", config, "--methods", "local,flic-class", "--out", "all").code == 0
    lengths = {
        name: json.loads((tmp_path / "all" / f"{name}-seed0" / "config.json").read_text())
        for name in ("local", "flic-class")
    }
    assert lengths["local"]["training"]["local"] == "3 epochs"
    assert lengths["flic-class"]["training"]["local"] == "2 epochs"


@pytest.mark.slow
def test_bench_prints_figures(flic_here, monkeypatch):
    from flic_paper.benchmark import speed as benchmark

    small = {"CLIENTS": 4, "CLASSES": 4, "ROWS": 100, "ACTIVE": 2, "REPETITIONS": 1}
    for name, value in small.items():
        monkeypatch.setattr(benchmark, name, value)
    figures = json.loads(flic_here("bench", "--format", "json").out)
    assert figures["rounds_ratio"] > 0
    assert "client-steps a second in rounds" in flic_here("bench").out


@pytest.mark.slow
def test_a_run_folder_has_one_process_at_a_time(flic_here, config, tmp_path):
    assert flic_here("run", config, "--out", "one", "--quiet").code == 0
    with (tmp_path / "one" / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        said = flic_here("run", "--resume", "one")
    assert said.code == 1
    assert "one is being worked on by another process" in said.err


@pytest.mark.slow
def test_a_damaged_checkpoint_is_always_told(flic_here, config, tmp_path):
    assert flic_here("run", config, "--out", "one", "--quiet").code == 0
    before = results(tmp_path / "one")
    newest = sorted((tmp_path / "one" / "checkpoints").glob("[0-9]*.json"))[-1]
    newest.write_text("{")
    said = flic_here("run", "--resume", "one", "--quiet")
    assert said.code == 0
    assert "is damaged" in said.err
    assert "it is not used; the run goes on from step" in said.err
    assert results(tmp_path / "one") == before


def test_a_table_fits_a_terminal_of_80_columns(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(screen, "console", Console(force_terminal=True, width=80))
    columns = ["method", "mean %", "spread", "worst client %", "chosen round %"]
    columns += ["gain over local", "gain / lose", "time s", "kB sent"]
    row = ["within-space", "87.0", "0.4", "71.0", "87.0", "+3.3 ± 2.1", "18 / 11", "11.9", "95379"]
    screen.table("Test accuracy", columns, [row])
    (shown,) = [line for line in capsys.readouterr().out.splitlines() if "within-space" in line]
    assert all(cell in shown for cell in row)
