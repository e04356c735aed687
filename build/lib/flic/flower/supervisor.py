"""A process that keeps another alive: `python supervisor.py PIDFILE LOG command…`.

It holds a lock on PIDFILE as long as it lives, so that nobody mistakes a stranger with an old
number for it. Whatever its command leaves behind ends before the command starts anew.
"""

import ctypes
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType

FIRST_WAIT, LONGEST_WAIT = 1.0, 20.0
SETTLED = 60.0  # seconds after which a failure counts as the first again
GRACE = 8.0
LARGEST_LOG = 20_000_000
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # of Linux; elsewhere Flower's own watch remains


class Supervisor:
    """One command, started again whenever it ends, until somebody asks for the end."""

    def __init__(self, pid_file: Path, log: Path, command: list[str]) -> None:
        self._pid_file = _locked(pid_file)
        self._tell({"pid": os.getpid()})  # at once: the file may hold the number of an earlier one
        self._log = log
        self._command = command
        self._child: subprocess.Popen[bytes] | None = None
        self._stopping = False

    def run(self) -> None:
        """Keep the command alive until SIGTERM or SIGINT."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        _control(PR_SET_CHILD_SUBREAPER, 1)
        wait, starts = FIRST_WAIT, 0
        while not self._stopping:
            began = time.monotonic()
            code = self._once(starts)
            starts += 1
            if time.monotonic() - began > SETTLED:
                wait = FIRST_WAIT
            if not self._stopping:
                self._say(f"ended with {code}; starting again in {wait:.0f} s")
                self._sleep(wait)
                wait = min(2 * wait, LONGEST_WAIT)
        self._say("stopped")

    def _once(self, starts: int) -> int:
        with self._log.open("ab") as log:
            # Not with start_new_session: a terminal's hang-up must reach the child through us.
            self._child = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                preexec_fn=_end_with_parent,
                process_group=0,
            )
        self._tell({"pid": os.getpid(), "child": self._child.pid, "starts": starts + 1})
        try:
            return self._wait()
        finally:
            self._sweep()

    def _wait(self) -> int:
        """Exit code of the child; after a request to stop, it gets some seconds."""
        assert self._child is not None
        until = float("inf")
        while (code := self._child.poll()) is None:
            if self._stopping and until == float("inf"):
                _signal_group(self._child.pid, signal.SIGTERM)
                until = time.monotonic() + GRACE
            if time.monotonic() > until:
                break
            self._shorten_log()
            time.sleep(0.1)
        _signal_group(self._child.pid, signal.SIGKILL)
        return self._child.wait() if code is None else code

    def _shorten_log(self) -> None:
        """Put a long log aside; the child writes at its end, wherever that is."""
        if self._log.stat().st_size > LARGEST_LOG:
            shutil.copyfile(self._log, self._log.with_name(f"{self._log.name}.1"))
            os.truncate(self._log, 0)

    def _sweep(self) -> None:
        """End what the child left behind; orphans become our children, and theirs then too."""
        until = time.monotonic() + GRACE
        while (orphans := _children()) and time.monotonic() < until:
            for pid in orphans:
                _signal(pid, signal.SIGKILL)
                _reap(pid)
            time.sleep(0.05)

    def _sleep(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while not self._stopping and time.monotonic() < until:
            time.sleep(0.1)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        self._stopping = True

    def _say(self, message: str) -> None:
        now = time.strftime("%Y-%m-%dT%H:%M:%S%z")
        with self._log.open("a", encoding="utf-8") as log:
            log.write(f"{now} supervisor: {message}\n")

    def _tell(self, facts: dict[str, int]) -> None:
        os.ftruncate(self._pid_file, 0)
        os.pwrite(self._pid_file, json.dumps(facts).encode(), 0)


def _locked(path: Path) -> int:
    """A handle of the file with the lock that says that we live."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    os.set_inheritable(handle, False)
    until = time.monotonic() + 2
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return handle
        except BlockingIOError:  # somebody may just be looking whether it is held
            if time.monotonic() > until:
                sys.exit(f"{path} is held by another supervisor")
            time.sleep(0.05)


def _control(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _end_with_parent() -> None:
    _control(PR_SET_PDEATHSIG, signal.SIGTERM)


def _signal_group(group: int, number: int) -> None:
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def _reap(pid: int) -> None:
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return


def _children() -> list[int]:
    """Processes whose parent we are, where the system tells."""
    path = Path(f"/proc/self/task/{os.getpid()}/children")
    return [int(pid) for pid in path.read_text().split()] if path.exists() else []


if __name__ == "__main__":
    os.umask(0o077)  # logs and databases are for their owner, wherever they lie
    Supervisor(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]).run()
