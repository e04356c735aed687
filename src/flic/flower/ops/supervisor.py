"""A process that keeps others alive: `python supervisor.py PIDFILE LOG command… [-- command…]`.

It holds a lock on PIDFILE as long as it lives, so that nobody mistakes a stranger with an old
number for it. Whatever the first command leaves behind ends before that starts anew.
"""

import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType

from flic.files import PRIVATE, lock

FIRST_WAIT, LONGEST_WAIT = 1.0, 20.0
SETTLED = 60.0  # seconds after which a failure counts as the first again
GRACE = 8.0
LARGEST_LOG = 20_000_000
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # of Linux; elsewhere Flower's own watch remains


class Program:
    """One command, its process while it runs, and when it is due again."""

    def __init__(self, command: list[str], log: Path) -> None:
        self.starts = 0
        self._command = command
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None
        self._began = self._due = float("-inf")
        self._wait = FIRST_WAIT

    @property
    def pid(self) -> int | None:
        """Number of its process, if there is one."""
        return self._process.pid if self._process else None

    @property
    def is_due(self) -> bool:
        """True if it does not run and has waited long enough."""
        return self._process is None and time.monotonic() >= self._due

    def start(self) -> None:
        """Start it, in a group of its own."""
        with self._log.open("ab") as log:
            # Not with start_new_session: a terminal's hang-up must reach the child through us.
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                preexec_fn=_end_with_parent,
                process_group=0,
            )
        self._began = time.monotonic()
        self.starts += 1

    def ended(self) -> str | None:
        """A line for the log if it has just ended, else None; its group ends with it."""
        if self._process is None or (code := self._process.poll()) is None:
            return None
        self.signal(signal.SIGKILL)
        self._process = None
        wait = FIRST_WAIT if time.monotonic() - self._began > SETTLED else self._wait
        self._due, self._wait = time.monotonic() + wait, min(2 * wait, LONGEST_WAIT)
        return f"ended with {code}; starting again in {wait:.0f} s"

    def end(self, until: float) -> None:
        """Wait for its end until then, and force it."""
        if self._process is None:
            return
        while self._process.poll() is None and time.monotonic() < until:
            time.sleep(0.1)
        self.signal(signal.SIGKILL)
        self._process.wait()
        self._process = None

    def signal(self, number: int) -> None:
        """Send a signal to its group."""
        if self._process is None:
            return
        try:
            os.killpg(self._process.pid, number)
        except (ProcessLookupError, PermissionError):
            return


class Supervisor:
    """Commands, each started again whenever it ends, until somebody asks for the end."""

    def __init__(self, pid_file: Path, log: Path, commands: list[list[str]]) -> None:
        self._pid_file = _locked(pid_file)
        self._tell({"pid": os.getpid()})  # at once: the file may hold the number of an earlier one
        self._log = log
        self._programs = [Program(command, log) for command in commands]
        self._stopping = False

    def run(self) -> None:
        """Keep the commands alive until SIGTERM or SIGINT."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        _control(PR_SET_CHILD_SUBREAPER, 1)
        while not self._stopping:
            for program in self._programs:
                self._tend(program)
            self._shorten_log()
            time.sleep(0.1)
        for program in self._programs:
            program.signal(signal.SIGTERM)
        until = time.monotonic() + GRACE
        for program in self._programs:
            program.end(until)
        self._sweep()
        self._say("stopped")
        self._tell({})  # as nobody finds it who was killed

    def _tend(self, program: Program) -> None:
        is_first = program is self._programs[0]
        if program.is_due:
            program.start()
            if is_first:
                facts = {"pid": os.getpid(), "child": program.pid or 0, "starts": program.starts}
                self._tell(facts)
        elif (end := program.ended()) is not None:
            if is_first:
                self._sweep()
            self._say(end)

    def _shorten_log(self) -> None:
        """Put a long log aside; the child writes at its end, wherever that is."""
        if self._log.stat().st_size > LARGEST_LOG:
            shutil.copyfile(self._log, self._log.with_name(f"{self._log.name}.1"))
            os.truncate(self._log, 0)

    def _sweep(self) -> None:
        """End what a child left behind; orphans become our children, and theirs then too."""
        until = time.monotonic() + GRACE
        own = {program.pid for program in self._programs}
        while (orphans := {*_children()} - own) and time.monotonic() < until:
            for pid in orphans:
                _signal(pid, signal.SIGKILL)
                _reap(pid)
            time.sleep(0.05)

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
    handle = os.open(path, os.O_RDWR | os.O_CREAT, PRIVATE)
    if not lock(handle, patience_s=2):  # somebody may just be looking whether it is held
        sys.exit(f"{path} is held by another supervisor")
    return handle


def _control(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _end_with_parent() -> None:
    _control(PR_SET_PDEATHSIG, signal.SIGTERM)


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


def _commands(words: list[str]) -> list[list[str]]:
    """Commands, from words with -- between them."""
    found: list[list[str]] = [[]]
    for word in words:
        if word == "--":
            found.append([])
        else:
            found[-1].append(word)
    return found


if __name__ == "__main__":
    os.umask(0o077)  # logs and databases are for their owner, wherever they lie
    Supervisor(Path(sys.argv[1]), Path(sys.argv[2]), _commands(sys.argv[3:])).run()
