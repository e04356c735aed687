"""A real Dask cluster on loopback: a scheduler and two worker processes of one thread."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib

HERE = Path(__file__).parent
DASK = Path(sys.executable).with_name("dask")

# Both as docs/running.md has them, but for address and ports; test_docs.py looks.
SCHEDULER = ["scheduler", "--host", "127.0.0.1"]
WORKER = ["--nworkers", "2", "--nthreads", "1"]


@dataclass(frozen=True)
class DaskCluster:
    """The cluster's address, and the folder in which its workers look for data sets."""

    address: str
    data: Path

    def kill_one_at_work(self) -> str:
        """Wait until a worker is at work, and kill it; returns its address."""
        from distributed import Client

        client: Any
        with Client(self.address, set_as_default=False) as client:
            pids = client.run(os.getpid)
            deadline = time.monotonic() + 60
            while not (busy := [w for w, keys in client.processing().items() if keys]):
                assert time.monotonic() < deadline, "no worker was at work"
                time.sleep(0.005)
            os.kill(pids[busy[0]], signal.SIGKILL)
            return busy[0]

    def wait_for_both(self) -> None:
        """Wait until both workers are there; Dask starts one that died again."""
        from distributed import Client

        with Client(self.address, set_as_default=False) as client:
            client.wait_for_workers(2, timeout=60)


@contextmanager
def start(folder: Path) -> Generator[DaskCluster]:
    """Start the cluster, and end it after the block."""
    own = {**os.environ, "FLIC_DATA": str(folder), "XDG_CACHE_HOME": str(folder)}
    own["MPLCONFIGDIR"] = matplotlib.get_cachedir()  # or each worker would look for all fonts
    paths = [HERE / "contract", os.environ.get("PYTHONPATH", "")]
    own |= {"PYTHONPATH": os.pathsep.join(filter(None, map(str, paths))), "OMP_NUM_THREADS": "1"}
    ports = ["--port", "0", "--dashboard-address", "127.0.0.1:0"]
    running: list[subprocess.Popen[bytes]] = []

    def begin(*words: object) -> None:
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        command = [DASK, *map(str, words)]
        # A group of its own, which can be ended with all its workers at once.
        process = subprocess.Popen(command, cwd=folder, env=own, start_new_session=True, **quiet)
        running.append(process)

    try:
        begin(*SCHEDULER, *ports, "--scheduler-file", "scheduler.json")
        address = _address(folder / "scheduler.json")
        local = ["--host", "127.0.0.1", "--memory-limit", "0", "--no-dashboard"]
        begin("worker", address, *WORKER, *local, "--local-directory", folder)
        cluster = DaskCluster(address, folder)
        cluster.wait_for_both()
        yield cluster
    finally:
        for process in running:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _address(file: Path) -> str:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            return json.loads(file.read_text())["address"]
        except (FileNotFoundError, ValueError):
            time.sleep(0.02)
    raise AssertionError("the scheduler did not start")
