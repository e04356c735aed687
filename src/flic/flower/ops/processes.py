"""Flower's programs as processes of their own: their environment, and one supervised service.

Between the commands an operator types and the programs of Flower that do the work.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flic.errors import FederationError
from flic.files import is_locked, parse_json, read_bytes

HERE = Path(__file__).parent
PROGRAMS = Path(sys.executable).parent
TAIL = 65_536


def environment(home: Path) -> dict[str, str]:
    """Variables of every program of Flower: private folder, no telemetry, no installations."""
    return {
        **os.environ,
        "PATH": f"{PROGRAMS}{os.pathsep}{os.environ.get('PATH', '')}",
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "OMP_NUM_THREADS": "1",
        "NO_COLOR": "1",
        "PYTHONUNBUFFERED": "1",
    }


def script(name: str) -> list[str]:
    """Command of a program of this package that needs little of flic, and no weight of torch."""
    return [sys.executable, "-P", str(HERE / f"{name}.py")]


def ask_flower(home: Path, *arguments: str, seconds: float = 120) -> dict[str, Any]:
    """Answer of a `flwr` command; its exit code says nothing, its JSON does."""
    command = [str(PROGRAMS / "flwr"), *arguments, "--format", "json"]
    try:
        done = subprocess.run(
            command,
            env=environment(home),
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        raise FederationError(
            f"`flwr {' '.join(arguments[:2])}` gave no answer; expected one in {seconds:.0f} s. "
            "Is the machine very busy? Try again."
        ) from None
    try:
        answer = parse_json(done.stdout)
    except ValueError:
        answer = {"error-message": (done.stderr or done.stdout).strip()}
    if not answer.get("success"):
        reason = str(answer.get("error-message", "no answer")).strip().splitlines()
        raise FederationError(
            f"Flower refused `flwr {' '.join(arguments[:2])}`: {reason[-1] if reason else ''}"
        )
    return answer


@dataclass(frozen=True)
class Service:
    """A supervised program: the file that says who watches it, and its log."""

    name: str
    pid_file: Path
    log: Path
    ending: str  # the command that stops it

    def facts(self) -> dict[str, int] | None:
        """Numbers of the supervisor and its child while they run."""
        if not self.pid_file.exists():
            return None
        with self.pid_file.open("rb") as file:
            return parse_json(file.read() or b"{}") if is_locked(file) else None

    @property
    def running(self) -> bool:
        """True while its supervisor lives."""
        return self.facts() is not None

    @property
    def was_killed(self) -> bool:
        """True if its supervisor ended without being asked to."""
        if self.running or not self.pid_file.exists():
            return False
        return "pid" in parse_json(read_bytes(self.pid_file) or b"{}")

    def has_lost_a_process(self) -> bool:
        """Return whether a process that the program started has ended, where the system tells."""
        child = (self.facts() or {}).get("child")
        path = Path(f"/proc/{child}/task/{child}/children")
        try:
            return any(map(_is_dead, path.read_text().split()))
        except OSError:
            return False

    def restart(self) -> None:
        """End the program; its supervisor starts it again."""
        if child := (self.facts() or {}).get("child"):
            os.kill(child, signal.SIGTERM)

    def start(
        self,
        command: Sequence[str],
        variables: Mapping[str, str],
        beside: Sequence[str] | None = None,
    ) -> None:
        """Start the program in the background, and one beside it, with their supervisor."""
        self._refuse_second()
        subprocess.Popen(
            self._supervised(command, beside),
            env=dict(variables),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def become(
        self,
        command: Sequence[str],
        variables: Mapping[str, str],
        beside: Sequence[str] | None = None,
    ) -> None:
        """Go on as the supervisor, in the foreground, which is what systemd wants."""
        self._refuse_second()
        supervised = self._supervised(command, beside)
        os.execve(supervised[0], supervised, dict(variables))

    def stop(self, *, seconds: float = 25) -> bool:
        """End the program and its supervisor; False if it did not run."""
        if not self.running:
            return False
        until, asked = time.monotonic() + seconds, False
        while (facts := self.facts()) is not None:
            if "pid" in facts and not asked:  # one that has just begun has not said its number yet
                os.kill(facts["pid"], signal.SIGTERM)
                asked = True
            if time.monotonic() > until:
                raise FederationError(
                    f"{self.name} did not stop within {seconds:.0f} s; expected it to end after "
                    f"SIGTERM. Look at {self.log}."
                )
            time.sleep(0.1)
        return True

    def tail(self, *, start: int = 0) -> str:
        """The end of the log, from byte `start` at the earliest."""
        if not self.log.exists():
            return ""
        with self.log.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            # A log that was rotated since is shorter than where we began.
            file.seek(max(start if start <= size else 0, size - TAIL))
            return file.read().decode(errors="replace")

    def log_size(self) -> int:
        """Bytes of the log now."""
        return self.log.stat().st_size if self.log.exists() else 0

    def _supervised(self, command: Sequence[str], beside: Sequence[str] | None) -> list[str]:
        more = [] if beside is None else ["--", *beside]
        return [*script("supervisor"), str(self.pid_file), str(self.log), *command, *more]

    def _refuse_second(self) -> None:
        if self.running:
            raise FederationError(
                f"{self.name} runs already; expected it to be stopped. To start it anew, first "
                f"run: {self.ending}"
            )


def _is_dead(pid: str) -> bool:
    """Return whether a process has ended and its parent has not noticed."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
