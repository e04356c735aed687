"""A supervised program comes back when it dies, and leaves nothing behind when it is stopped."""

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from flic.errors import FederationError
from flic.flower.coordinator_folder import Coordinator
from flic.flower.federation_settings import FederationSettings
from flic.flower.ops.processes import Service, environment
from flic.flower.ops.run_follower import RunFollower
from flic.flower.run_request import is_requested

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(sys.platform != "linux", reason="asks /proc who is alive"),
    # A supervisor outlives whoever started it: that is what it is for.
    pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning"),
]

# A program that starts another in a session of its own, as Flower does, and waits.
PARENT = """
import subprocess, sys, time
from pathlib import Path
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"],
                         start_new_session=True)
Path(sys.argv[1]).open("a").write(f"{child.pid}\\n")
time.sleep(600)
"""


@pytest.fixture
def service(tmp_path):
    made = Service("the program", tmp_path / "pid", tmp_path / "log", "kill")
    yield made
    made.stop()


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_for(condition, seconds=30):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.05)


def start(service, tmp_path):
    """Facts of the started program, and the number of what it started itself."""
    service.start([sys.executable, "-c", PARENT, str(tmp_path / "children")], environment(tmp_path))
    return latest(service, tmp_path, 1)


def latest(service, tmp_path, starts):
    wait_for(lambda: (service.facts() or {}).get("starts") == starts)
    wait_for(lambda: children(tmp_path) >= starts)
    return service.facts(), int((tmp_path / "children").read_text().split()[-1])


def children(tmp_path):
    path = tmp_path / "children"
    return path.read_text().count("\n") if path.exists() else 0


def test_it_comes_back_after_a_kill_and_its_orphans_do_not(service, tmp_path):
    before, orphan = start(service, tmp_path)
    os.kill(before["child"], signal.SIGKILL)
    after, own = latest(service, tmp_path, 2)
    assert after["pid"] == before["pid"]
    assert after["child"] != before["child"]
    assert not is_alive(orphan)
    assert is_alive(own)
    assert "ended with -9; starting again" in service.tail()


def test_stopping_ends_everything(service, tmp_path):
    facts, child = start(service, tmp_path)
    assert service.running
    assert service.stop()
    assert not service.running
    assert not service.was_killed
    assert not any(map(is_alive, (facts["child"], child)))
    assert not service.stop()


SLOW = """
import fcntl, json, os, sys, time
handle = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
fcntl.flock(handle, fcntl.LOCK_EX)
time.sleep(1)
os.pwrite(handle, json.dumps({"pid": os.getpid()}).encode(), 0)
time.sleep(60)
"""


def test_one_that_has_not_said_its_number_yet_is_stopped_all_the_same(service):
    with subprocess.Popen([sys.executable, "-c", SLOW, str(service.pid_file)]) as slow:
        wait_for(lambda: service.running)
        assert service.facts() == {}
        assert service.stop(seconds=10)
        assert slow.wait(10) == -signal.SIGTERM


def test_the_program_ends_with_a_killed_supervisor(service, tmp_path):
    facts, child = start(service, tmp_path)
    os.kill(facts["pid"], signal.SIGKILL)
    wait_for(lambda: not is_alive(facts["child"]))
    assert not service.running
    assert service.was_killed
    os.kill(child, signal.SIGKILL)  # Flower's own watch ends what it started; this one has none


LASTING = "import time; time.sleep(600)"


def test_one_beside_it_comes_back_by_itself(service, tmp_path):
    beside = [sys.executable, "-c", PARENT, str(tmp_path / "children")]
    service.start([sys.executable, "-c", LASTING], environment(tmp_path), beside)
    wait_for(lambda: children(tmp_path) == 1)
    facts, orphan = service.facts(), int((tmp_path / "children").read_text())
    [program] = {*map(int, below(facts["pid"]))} - {facts["child"], orphan}
    os.kill(program, signal.SIGKILL)
    wait_for(lambda: children(tmp_path) == 2)
    assert service.facts() == facts
    service.stop()
    assert not any(map(is_alive, (facts["child"], orphan)))


def below(pid):
    own = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [*own, *(further for child in own for further in below(child))]


def test_a_process_that_the_program_lost_is_noticed_and_the_program_started_again(
    service, tmp_path
):
    facts, child = start(service, tmp_path)
    assert not service.has_lost_a_process()
    os.kill(child, signal.SIGKILL)
    wait_for(service.has_lost_a_process)
    service.restart()
    after, _ = latest(service, tmp_path, 2)
    assert after["child"] != facts["child"]
    assert not service.has_lost_a_process()


def test_who_follows_a_run_starts_a_coordinator_that_was_killed_and_no_other(service, tmp_path):
    folder, began = tmp_path / "federation", []
    Coordinator.create(folder, FederationSettings(classes=("a", "b")))

    def begin():
        began.append(time.monotonic())
        service.start([sys.executable, "-c", LASTING], environment(tmp_path))

    def follow():
        with pytest.raises(FederationError, match=r"stopped after 0 of 51 rounds.* go on with"):
            RunFollower(folder, service, begin).follow(lambda *record: None, lambda message: None)

    with ThreadPoolExecutor(1) as pool:
        begin()
        wait_for(lambda: "child" in (service.facts() or {}))
        following = pool.submit(follow)
        wait_for(lambda: is_requested(folder))
        os.kill(service.facts()["pid"], signal.SIGKILL)
        wait_for(lambda: len(began) == 2)
        wait_for(lambda: "child" in (service.facts() or {}))
        service.stop()  # as whoever wants it to end
        following.result(30)
    assert len(began) == 2
    assert is_requested(folder)  # so that it goes on when the coordinator is started again


def test_a_second_one_is_refused(service, tmp_path):
    start(service, tmp_path)
    with pytest.raises(FederationError, match="runs already"):
        service.start(["true"], environment(tmp_path))


def test_an_old_number_is_not_taken_for_a_living_one(service, tmp_path):
    (tmp_path / "pid").write_text(f'{{"pid": {os.getpid()}, "child": {os.getpid()}}}')
    assert not service.running
    assert not service.stop()


def test_a_long_log_is_put_aside_while_the_program_runs(service, tmp_path):
    loud = "import time\nfor _ in range(25): print('x' * 1_000_000)\nprint('end')\ntime.sleep(600)"
    service.start([sys.executable, "-c", loud], environment(tmp_path))
    wait_for(lambda: (tmp_path / "log.1").exists())
    wait_for(lambda: "end" in service.tail() + (tmp_path / "log.1").read_text()[-10:])
    wait_for(lambda: service.log_size() < 20_000_000)
    assert service.facts()["starts"] == 1


@pytest.mark.process
def test_the_work_of_a_silo_ends_with_it_however_it_was_started():
    """A shell has what it starts in the background ignore the signal by which Flower ends it."""
    code = (
        "import signal; from flic.flower.ops.executor import heed_interrupts; heed_interrupts(); "
        "signal.raise_signal(signal.SIGINT); print('goes on')"
    )
    ignore = 'trap \'\' INT; exec "$0" -c "$1"'
    done = subprocess.run(
        ["bash", "-c", ignore, sys.executable, code], capture_output=True, text=True, check=False
    )
    assert "KeyboardInterrupt" in done.stderr
    assert "goes on" not in done.stdout


SILO = """
import os, signal, time
from flwr.supernode.runtime import run_clientapp
from flic.flower.ops.executor import ForkingExecutor, answer

def stubborn(**arguments):
    signal.signal(signal.SIGINT, lambda number, frame: None)
    print("works", flush=True)
    while True:
        time.sleep(1)

def work(*arguments):
    run_clientapp.run_clientapp = stubborn
    answer(*arguments)

if __name__ == "__main__":
    executor = ForkingExecutor()
    executor._context.Process(target=work, args=("127.0.0.1:9", "token", os.getpid())).start()
    time.sleep(600)
"""


@pytest.mark.process
@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
def test_work_that_heeds_no_signal_ends_with_its_silo(tmp_path):
    """Flower, once it is asked to end, tries for a minute to reach a SuperNode that is gone."""
    (tmp_path / "silo.py").write_text(SILO)
    mark = f"FLIC_MARK={tmp_path}".encode()

    def alive() -> list[bytes]:
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if mark in (path / "environ").read_bytes():
                    found.append((path / "cmdline").read_bytes())
        return found

    with (tmp_path / "log").open("w") as log:
        variables = {**os.environ, "FLIC_MARK": str(tmp_path)}
        silo = subprocess.Popen([sys.executable, tmp_path / "silo.py"], env=variables, stdout=log)
    wait_for(lambda: "works" in (tmp_path / "log").read_text(), seconds=120)
    silo.kill()
    silo.wait()
    wait_for(lambda: not alive(), seconds=10)
