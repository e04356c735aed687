"""Fixtures of all tests."""

import errno
import gc
import multiprocessing.util
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jaxtyping
import matplotlib.font_manager  # noqa: F401  on a new machine it asks a program for fonts, here
import pytest
import torch

import dask_cluster

# The tests are small and run side by side; more threads only make them wait for each other.
torch.set_num_threads(1)

# scikit-learn would ask a program how many cores there are.
os.environ["LOKY_MAX_CPU_COUNT"] = "1"

# Thousands of small files are written. That they outlast a cut of power no test can show, and on a
# slow disk they would take most of the time; processes that tests start do wait for the disk.
os.fsync = lambda handle: None

FLIC = Path(sys.executable).with_name("flic")

# Where real data sets may lie beside a checkout. Set for the whole session, so that commands
# started by a test see it too; whoever names another folder is obeyed.
BESIDE = Path(__file__).parents[2] / "shared" / "data"

if not os.environ.get("FLIC_DATA") and BESIDE.is_dir():
    os.environ["FLIC_DATA"] = str(BESIDE)


NO_DATA = "needs the real data set"

#: Real data that studies of the paper are made of.
DATA_OF_STUDIES = {
    "table-digits": "mnist/mnist.npz",
    "digits-authors": "mnist/mnist.npz",
    "table-modalities": "mm_fashion/fashion5000_meta.parquet",
    "views": "mfeat/mfeat.npz",
    "linked": "mfeat/mfeat.npz",
    "eeg": "bci/bci_users40_5c_common.npz",
}


@pytest.fixture(scope="session")
def need_data() -> Callable[[str], Path]:
    """Function that gives a file of the real data sets, or skips the test that asks for it."""

    folder = os.environ.get("FLIC_DATA")  # read once: tests unset it

    def need(relative: str) -> Path:
        if not folder or not (Path(folder) / relative).exists():
            pytest.skip(f"{NO_DATA} {relative}: set FLIC_DATA to its folder")
        return Path(folder) / relative

    return need


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how many tests were not run for lack of data."""
    skipped = terminalreporter.stats.get("skipped", [])
    missed = sum(NO_DATA in str(report.longrepr) for report in skipped)
    if missed:
        terminalreporter.line(
            f"not run for lack of data: {missed} tests; docs/data.md says where it comes from"
        )


@pytest.fixture
def need_data_of(need_data) -> Callable[[str], Path | None]:
    """Function that gives the file of a study's real data, or skips the test that asks for it."""
    return lambda study: need_data(DATA_OF_STUDIES[study]) if study in DATA_OF_STUDIES else None


@dataclass(frozen=True)
class Said:
    """The output of a command, and its exit code."""

    code: int
    out: str
    err: str


@pytest.fixture
def flic(tmp_path) -> Callable[..., Said]:
    """flic(*arguments): the command in a process of its own; never a traceback."""

    def run(*arguments: object) -> Said:
        command = [FLIC, *map(str, arguments)]
        done = subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
        )
        assert "Traceback" not in done.stderr, done.stderr
        return Said(done.returncode, done.stdout, done.stderr)

    return run


@pytest.fixture
def flic_here(tmp_path, monkeypatch, capsys) -> Callable[..., Said]:
    """The same command inside this process, which saves seconds of imports.

    Only what `main` itself turns into an exit gets past it: a traceback fails the test.
    """
    from flic.cli.main import main

    def run(*arguments: object) -> Said:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["flic", *map(str, arguments)])
        code = 0
        try:
            main()
        except SystemExit as end:
            code = end.code
        said = capsys.readouterr()
        return Said(code, said.out, said.err)

    return run


@pytest.fixture(scope="session")
def cluster(tmp_path_factory) -> Iterator[dask_cluster.DaskCluster]:
    """A real cluster on loopback, with two workers."""
    with dask_cluster.start(tmp_path_factory.mktemp("cluster")) as started:
        yield started


@pytest.fixture
def two_threads() -> Iterator[None]:
    """Two threads for torch, as a user may have set."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def full_disk(monkeypatch):
    """full_disk(count): the disk is full after so many files."""
    real = os.fsync

    def fill(count):
        left = [count * 2]  # a file and its folder each

        def fsync(handle):
            left[0] -= 1
            if left[0] < 0:
                raise OSError(errno.ENOSPC, "No space left on device")
            real(handle)

        monkeypatch.setattr(os, "fsync", fsync)

    return fill


@pytest.fixture
def modes() -> Iterator[Callable[[Path], set[str]]]:
    """modes(folder): modes of it and of all in it, made while the umask forbids nothing."""

    def of(folder: Path) -> set[str]:
        paths = [folder, *folder.rglob("*")]
        return {f"{'folder' if p.is_dir() else 'file'} {p.stat().st_mode & 0o777:o}" for p in paths}

    before = os.umask(0)
    yield of
    os.umask(before)


@pytest.fixture
def nearly() -> Callable[[Any], Any]:
    """nearly(values): equal to them but for roundings in double precision, however nested."""

    def near(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: near(own) for name, own in value.items()}
        if isinstance(value, list):
            return [near(own) for own in value]
        return pytest.approx(value, rel=1e-9) if isinstance(value, float) else value

    return near


#: Shapes of tensors are checked where the mathematics is tested. Elsewhere the same code runs
#: thousands of times more, and the checks would take twice as long as the work. So do whole
#: federations beside the tests of their parts, which carry the mark.
CHECKED = {"gaussians", "networks", "methods", "paper"}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Let jaxtyping look at the tensors of a test and of its fixtures, or not."""
    where = item.path.relative_to(Path(__file__).parent).parts[0]
    checks = where in CHECKED and not item.get_closest_marker("federation")
    jaxtyping.config.update("jaxtyping_disable", not checks)
    return (yield)


@pytest.fixture(autouse=True)
def only_marked_tests_start_processes(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`scripts/test fast` leaves out what starts processes, so such a test carries the mark."""
    if any(request.node.get_closest_marker(name) for name in ("process", "browser")):
        return

    def refuse(*arguments: object, **named: object) -> None:
        raise AssertionError("this test starts a process: mark it with pytest.mark.process")

    monkeypatch.setattr(subprocess.Popen, "__init__", refuse)
    monkeypatch.setattr(multiprocessing.util, "spawnv_passfds", refuse)


def pytest_collection_finish() -> None:
    """Keep what was imported out of searches for garbage, which take a tenth of the time."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish() -> None:
    """Let it be searched again, lest libraries call what is left at the end a leak."""
    gc.unfreeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that ask for a program or a page carry the mark without saying so.

    Long ones that wait for processes come first: the others fill the time that they wait. Those
    on a cluster come together, at the end: each process that runs some of them starts one.
    """
    for item in items:
        names = getattr(item, "fixturenames", ())
        for fixture, mark in (
            ("flic", "process"),
            ("cluster", "process"),
            ("browser", "browser"),
        ):
            if fixture in names:
                item.add_marker(mark)

    def place(item: pytest.Item) -> tuple[bool, bool]:
        is_long = all(item.get_closest_marker(name) for name in ("slow", "process"))
        is_on_cluster = "cluster" in getattr(item, "fixturenames", ()) or "--cluster" in item.name
        return is_on_cluster, not is_long

    items.sort(key=place)
