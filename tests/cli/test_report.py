"""`flic report` as a user types it."""

import shutil
import sys

import pytest


@pytest.fixture
def run(config, flic_here, tmp_path):
    """A finished run."""
    assert flic_here("run", config, "--quiet", "--out", "run").code == 0
    return tmp_path / "run"


@pytest.mark.slow
def test_a_report_of_a_run(run, flic_here, tmp_path):
    said = flic_here("report", "run")
    assert (said.code, said.out) == (0, "report: run/report.html\n")
    page = (run / "report.html").read_text(encoding="utf-8")
    assert "<h1>flic-hl on noisy-features, seed 0</h1>" in page
    again = flic_here("report", run, "-o", tmp_path / "new" / "other.html")
    assert again.code == 0
    assert (tmp_path / "new" / "other.html").read_text(encoding="utf-8") == page


@pytest.mark.slow
def test_metrics_for_tensorboard(run, flic_here, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for _ in range(2):  # a second report replaces the curves of the first
        assert flic_here("report", "run", "--tensorboard", "logs").code == 0
    events = EventAccumulator(str(tmp_path / "logs"))
    events.Reload()
    tags = events.Tags()["scalars"]
    assert {"accuracy/test", "accuracy/validation", "loss/data", "traffic/bytes"} <= set(tags)
    assert [event.step for event in events.Scalars("accuracy/test")] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("package", "extra", "options"),
    [
        ("jinja2", "report", []),
        ("plotly", "report", []),
        ("tensorboard", "tensorboard", ["--tensorboard", "logs"]),
    ],
)
def test_a_missing_package_gets_the_command_that_brings_it(
    run, flic_here, monkeypatch, tmp_path, package, extra, options
):
    for name in [name for name in sys.modules if name.split(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, "torch.utils.tensorboard", raising=False)
    monkeypatch.setitem(sys.modules, package, None)
    said = flic_here("report", "run", *options)
    assert said.code == 2
    assert package in said.err
    assert f"pip install 'flic[{extra}]'" in said.err
    assert len(said.err.splitlines()) == 1
    assert not (run / "report.html").exists()
    assert not (tmp_path / "logs").exists()


@pytest.mark.parametrize("name", ["empty", "nowhere", "file"])
def test_other_folders_are_refused(flic_here, tmp_path, name):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    said = flic_here("report", name)
    assert said.code == 1
    assert f"flic: {name} holds neither a run nor a fitted federation; expected" in said.err


def test_an_unfinished_run_is_told_how_to_go_on(run, flic_here):
    shutil.rmtree(run / "checkpoints")
    said = flic_here("report", "run")
    assert said.code == 1
    assert "Resume it with: flic run --resume run" in said.err
    assert not (run / "report.html").exists()


def test_a_place_that_cannot_be_written_to(run, flic_here):
    said = flic_here("report", "run", "-o", "run")
    assert said.code == 1
    assert "could not be read or written" in said.err
    assert not list(run.parent.glob(".*.tmp"))
