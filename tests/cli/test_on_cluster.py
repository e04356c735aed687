"""`flic run` and `flic compare` on a cluster end as they do on one machine."""

import json
import sys
import threading
import time

import pytest
from distributed import LocalCluster

from flic.config import load_config
from flic.engine import cluster as clusters
from flic.engine.cluster import open_cluster
from flic.errors import DataError
from flic.runs import run_folder
from flic.runs.cluster_runs import finish
from flic.runs.loaded import Loaded
from flic_paper.problems.store import save_arrays
from runs.made_trials import changed, trials

RESULTS = ["rounds.json", "clients.parquet", "summary.json"]
DOUBLE = ["--set", "engine.dtype=float64"]
LONGER = ["--set", "training.local=20 epochs"]


def results(folder):
    return {name: (folder / name).read_bytes() for name in RESULTS}


def rounds(folder):
    return json.loads((folder / "rounds.json").read_text())


def test_a_run_of_which_a_worker_is_killed(flic_here, cluster, config, tmp_path, nearly):
    own = ("run", config, *DOUBLE, *LONGER)
    assert flic_here(*own, "--out", "here").code == 0
    killed = []

    def kill():
        while not (tmp_path / "there" / "checkpoints" / "00001.json").exists():
            time.sleep(0.005)
        killed.append(cluster.kill_one_at_work())

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    said = flic_here(*own, "--out", "there", "--cluster", cluster.address)
    assert said.code == 0, said.err
    killer.join(timeout=60)
    assert killed
    cluster.wait_for_both()
    assert rounds(tmp_path / "there") == nearly(rounds(tmp_path / "here"))


def test_an_interrupted_run_goes_on_elsewhere(flic_here, cluster, config, tmp_path, nearly):
    class Stop(Exception):
        pass

    def stop(record, total, done):
        if done == 2:
            raise Stop

    assert flic_here("run", config, *DOUBLE, "--out", "here").code == 0
    settings = load_config(config, DOUBLE[1:])
    loaded = run_folder.create(tmp_path / "there", settings)
    with open_cluster(cluster.address) as opened, pytest.raises(Stop):
        run_folder.resume(tmp_path / "there", loaded=loaded, cluster=opened, on_step=stop)
    said = flic_here("run", "--resume", "there", "--cluster", cluster.address)
    assert said.code == 0, said.err
    assert rounds(tmp_path / "there") == nearly(rounds(tmp_path / "here"))


def test_a_comparison(flic_here, cluster, config, tmp_path):
    own = ("compare", config, "--methods", "local,flic-class", "--seeds", 2)
    here = flic_here(*own, "--out", "here")
    there = flic_here(*own, "--out", "there", "--cluster", cluster.address)
    assert there.code == 0, there.err
    assert "runs on the cluster: step 4 of 4" in there.out
    assert here.err == there.err  # the same notices
    both = [sorted(path.name for path in (tmp_path / n).iterdir()) for n in ("here", "there")]
    assert both[0] == both[1]
    for name in {*both[0]} - {"comparison.json"}:
        assert results(tmp_path / "there" / name) == results(tmp_path / "here" / name)
    assert flic_here("run", "--resume", "there/local-seed1").code == 0


def test_finished_runs_of_a_comparison_are_kept(flic_here, cluster, config, tmp_path):
    folder, settings = tmp_path / "all", load_config(config, [])
    each = [
        (folder / f"{name}-seed0", Loaded.of(settings.for_method(name, seed=0)))
        for name in ("lda", "local")
    ]
    with open_cluster(cluster.address) as opened:
        work = finish(opened, each)
        first, _ = next(work)
        work.close()
    kept = {path: path.stat().st_mtime_ns for path in (first / "checkpoints").iterdir()}
    own = ("compare", config, "--methods", "lda,local", "--out", "all")
    said = flic_here(*own, "--cluster", cluster.address)
    assert said.code == 0, said.err
    assert "runs on the cluster: step 1 of 1" in said.out
    assert {path: path.stat().st_mtime_ns for path in kept} == kept


def test_a_worker_must_have_the_data(cluster, tmp_path, monkeypatch):
    monkeypatch.setenv("FLIC_DATA", str(tmp_path))
    save_arrays("eeg", trials(0), tmp_path)
    (tmp_path / "eeg.toml").write_text('method = "lda"\n[data]\nproblem = "eeg"\n')
    settings = load_config(tmp_path / "eeg.toml", ["training.participation=1"])

    def refusal():
        with open_cluster(cluster.address) as opened, pytest.raises(DataError) as caught:
            list(finish(opened, [(tmp_path / "run", Loaded.of(settings))]))
        return str(caught.value)

    assert refusal().startswith("worker tcp://127.0.0.1:")
    assert "Data set 'eeg' is not here" in refusal()
    path = save_arrays("eeg", changed("a value", trials(0)), cluster.data)
    assert "its data of problem 'eeg' are not the command's; expected the same" in refusal()
    path.unlink()


def test_two_ways_to_share_the_work_are_refused(flic_here, config):
    said = flic_here("run", config, "--workers", 2, "--cluster", "tcp://host:8786")
    assert said.code == 2
    assert "got --workers 2 and --cluster tcp://host:8786; expected one of them" in said.err


def test_without_dask_it_says_what_to_install(flic_here, config, monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    said = flic_here("run", config, "--cluster", "tcp://host:8786")
    assert said.code == 2
    assert "runs on Dask, which is not installed. Run: pip install 'flic[cluster]'" in said.err


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:9", "nonsense://x", "tls://127.0.0.1:9"])
def test_an_address_where_nobody_answers_is_refused(
    flic_here, config, monkeypatch, tmp_path, address
):
    monkeypatch.setattr(clusters, "CONNECT_S", 0.3)
    for words in (["run", config], ["compare", config], ["reproduce", "tsne", "--quick"]):
        said = flic_here(*words, "--cluster", address, "--out", "one")
        assert said.code == 2
        assert f"--cluster: no scheduler answers at {address} (" in said.err
        assert not (tmp_path / "one").exists()


@pytest.mark.process
def test_a_scheduler_without_workers_is_refused(flic_here, config, monkeypatch):
    monkeypatch.setattr(clusters, "CONNECT_S", 0.3)
    here = {"host": "127.0.0.1", "protocol": "tcp://", "dashboard_address": "127.0.0.1:0"}
    with LocalCluster(n_workers=0, processes=False, **here) as empty:
        said = flic_here("run", config, "--cluster", empty.scheduler_address)
    assert said.code == 2
    assert "has no worker; expected one at least. Start it with: dask worker tcp://" in said.err


def test_workers_with_other_versions_are_refused(flic_here, cluster, config, monkeypatch):
    monkeypatch.setattr(clusters.platform, "python_version_tuple", lambda: ("3", "99", "0"))
    said = flic_here("run", config, "--cluster", cluster.address)
    assert said.code == 2
    assert "--cluster: worker tcp://127.0.0.1:" in said.err
    assert "it has Python 3.1" in said.err
    assert "expected 3.99, as here. Install the same versions on all machines" in said.err
