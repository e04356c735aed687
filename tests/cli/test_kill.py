"""`kill -9` at any moment costs time and nothing else."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from flic.config import load_config
from flic.runs import run_folder
from flic.silos import folder as folders
from flic.silos.federation import Federation
from silos.wards import wards

pytestmark = pytest.mark.process

FLIC = Path(sys.executable).with_name("flic")
RESULTS = ["rounds.json", "clients.parquet", "summary.json"]
LONG = ["training.rounds=80"]


@pytest.fixture
def start(tmp_path):
    """start(*arguments): the command as a process that can be killed."""
    running = []

    def make(*arguments):
        command = [FLIC, *map(str, arguments)]
        process = subprocess.Popen(
            command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        running.append(process)
        return process

    yield make
    for process in running:
        process.kill()
        process.wait()


def steps(folder):
    return len(list((folder / "checkpoints").glob("[0-9]*.json")))


def wait_for(condition, process):
    deadline = time.monotonic() + 60
    while not condition():
        assert process.poll() is None, "the run ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.002)


def kill_after(process, folder, *, new_steps, delay):
    """Kill the run some time after it has done so many more steps; steps on disk then."""
    before = steps(folder)
    wait_for(lambda: steps(folder) >= before + new_steps, process)
    time.sleep(delay)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    assert not (folder / "summary.json").exists()
    return steps(folder)


@pytest.mark.slow
def test_a_run_killed_again_and_again_ends_the_same(start, flic_here, config, tmp_path):
    whole, folder = tmp_path / "whole", tmp_path / "killed"
    settings = load_config(config, LONG)
    run_folder.create(whole, settings)
    run_folder.resume(whole)

    dice = random.Random(0)
    process = start("run", config, "--set", *LONG, "--out", folder)
    done = [kill_after(process, folder, new_steps=1, delay=dice.uniform(0, 0.05))]
    for _ in range(2):
        process = start("run", "--resume", folder)
        new_steps, delay = dice.randint(1, 15), dice.uniform(0, 0.05)
        done.append(kill_after(process, folder, new_steps=new_steps, delay=delay))
    assert sorted(set(done)) == done

    said = flic_here("run", "--resume", folder)
    assert said.code == 0, said.err
    assert "step 82 of 82" in said.out
    for name in RESULTS:
        assert (folder / name).read_bytes() == (whole / name).read_bytes()


def children(process):
    listed = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(process.pid)], capture_output=True, text=True, check=True
    )
    return [int(pid) for pid in listed.stdout.split()]


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").exists(), reason="asks /proc who is alive")
def test_workers_do_not_outlive_a_killed_run(start, config, tmp_path):
    process = start("run", config, "--set", "training.rounds=5000", "--workers", 2, "--out", "two")
    wait_for(lambda: steps(tmp_path / "two") >= 2, process)
    kill_with_workers(process)


def kill_with_workers(process):
    """Kill a command; the processes that it started must go by themselves."""
    workers = children(process)
    assert len(workers) >= 2
    process.kill()
    process.wait()
    deadline = time.monotonic() + 5
    try:
        while any(map(is_alive, workers)) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not any(map(is_alive, workers))
    finally:
        for pid in filter(is_alive, workers):
            os.kill(pid, signal.SIGKILL)


FIT = """
[fit]
repeats = 4
folds = 2
scheme = "splits"
candidates = ["lda", "flic"]
network = { training = { rounds = 2, local = "3 steps" }, pretraining = { epochs = 2 } }
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").exists(), reason="asks /proc who is alive")
def test_a_killed_fit_leaves_no_worker_and_goes_on(start, flic_here, tmp_path):
    text = ['label = "ill"']
    for name, frame in wards().items():
        frame.to_csv(tmp_path / f"{name}.csv", index=False)
        text += ["[[clients]]", f'name = "{name}"', f'data = "{name}.csv"']
    (tmp_path / "federation.toml").write_text("\n".join([*text, FIT]))
    command = ["fit", "federation.toml", "--out", "fitted"]
    kept = folders.unfinished(tmp_path / "fitted")
    process = start(*command, "--workers", 2)
    wait_for(lambda: any(kept.rglob("*.safetensors")), process)
    kill_with_workers(process)
    assert not (tmp_path / "fitted").exists()
    said = flic_here(*command)
    assert said.code == 0, said.err
    assert f"resuming the interrupted fit whose finished parts are in {kept}" in said.err
    assert not kept.exists()
    whole = Federation.from_file(tmp_path / "federation.toml").fit()
    assert Federation.load(tmp_path / "fitted").verdict() == whole.verdict()
