"""Odd input for everything that flic reads, for some minutes: `scripts/fuzz MINUTES [SEED]`.

Each target has a process of its own. A case follows from the seed and its number alone, so a seed
that is given again makes the same cases. Inputs that fail are made smaller and kept.
"""

import multiprocessing
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random, SystemRandom
from typing import Any

from mutations import Case, varied
from targets import MAKERS, WALL_SECONDS, FuzzTarget, Trouble, attempt, write

SMALLER_TRIES, SMALLER_S = 150, 20.0
GRACE_S = 40.0  # beyond a case's own limit, where it cannot be interrupted

Make = Callable[[Path], FuzzTarget]


def case_of(target: FuzzTarget, name: str, seed: int, number: int) -> dict[str, bytes]:
    """One input by its number."""
    random = Random(f"{seed} {name} {number}")
    return varied(random.choice(target.seeds), random)


# ---- one target, in a process of its own ----------------------------------------------------


@dataclass(frozen=True)
class FuzzJob:
    """A target to be tried until some time."""

    name: str
    make: Make
    seed: int
    folder: Path
    until: float
    number: Any  # shared memory: the case that is being tried, from 0
    began: Any  # and when; 0 between two cases

    def work(self, died: str | None) -> None:
        """Try case after case; one that ended the process before this is kept and passed over."""
        target = self.make(_new(self.folder / "seeds"))
        if died is not None:
            self._keep(target, self._case(target), Trouble(died))
        while time.monotonic() < self.until:
            self.number.value += 1
            case = self._case(target)
            self.began.value = time.monotonic()
            found = attempt(target, case, self.folder / "now")
            self.began.value = time.monotonic()
            if isinstance(found, Trouble):
                self._keep(target, case, found)
            self.began.value = 0.0

    def _case(self, target: FuzzTarget) -> dict[str, bytes]:
        return case_of(target, self.name, self.seed, self.number.value)

    def _keep(self, target: FuzzTarget, case: Case, trouble: Trouble) -> None:
        """Keep the first input that fails in some way, and count the others."""
        words = "".join(c if c.isalnum() else "-" for c in trouble.what)
        folder = self.folder / "failures" / words[:100]
        if not folder.exists():
            if trouble.is_harmless:
                case = smaller(target, case, trouble, self.folder / "now")
            write(folder / "input", case)
            told = f"{trouble.what}\nseed {self.seed}, case {self.number.value}"
            (folder / "trouble.txt").write_text(f"{told}\n\n{trouble.traceback}\n")
        with (folder / "count.txt").open("a") as file:
            file.write(f"{self.number.value}\n")


def smaller(target: FuzzTarget, case: Case, trouble: Trouble, folder: Path) -> dict[str, bytes]:
    """The case without pieces that the failure does not need, as far as some tries show."""
    best, tries, until = dict(case), 0, time.monotonic() + SMALLER_S
    for name in [name for name in case if all(case[name] != s.get(name) for s in target.seeds)]:
        size = max(1, len(best[name]) // 2)
        while size:
            at = 0
            while at < len(best[name]):
                tries += 1
                if tries > SMALLER_TRIES or time.monotonic() > until:
                    return best
                cut = best | {name: best[name][:at] + best[name][at + size :]}
                found = attempt(target, cut, folder)
                if isinstance(found, Trouble) and found.what == trouble.what:
                    best = cut
                else:
                    at += size
            size //= 2
    return best


def _new(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


# ---- all targets ----------------------------------------------------------------------------

FORK = multiprocessing.get_context("fork")  # what is imported here need not be imported again


class Watched:
    """A job whose process is started again when a case ends it, or holds it up."""

    def __init__(self, job: FuzzJob) -> None:
        self.job = job
        self._start(None)

    def _start(self, died: str | None) -> None:
        self.job.began.value = 0.0
        self.process = FORK.Process(target=self.job.work, args=(died,), daemon=True)
        self.process.start()

    def is_done(self) -> bool:
        """Return whether the job's time is over."""
        began = self.job.began.value
        if began and time.monotonic() - began > WALL_SECONDS + GRACE_S:
            self.process.kill()
            self.process.join()
            self._start("hangs where Python cannot interrupt it")
        elif not self.process.is_alive():
            if self.process.exitcode == 0:
                return True
            if not began:
                sys.exit(f"{self.job.name}: the process ended outside of any case; see above")
            self._start(f"ends the process with exit code {self.process.exitcode}")
        return False


def fuzz(makers: Mapping[str, Make], minutes: float, seed: int, root: Path) -> int:
    """Try all targets, as many at once as there are cores; the number of ways to fail."""
    cores = min(os.cpu_count() or 1, len(makers))
    seconds = 60 * minutes * cores / len(makers)
    waiting, running, failures = [*makers.items()], list[Watched](), 0
    while waiting or running:
        while waiting and len(running) < cores:
            name, make = waiting.pop(0)
            until, facts = time.monotonic() + seconds, (FORK.Value("q", -1), FORK.Value("d", 0))
            running.append(Watched(FuzzJob(name, make, seed, _new(root / name), until, *facts)))
        for watched in [own for own in running if own.is_done()]:
            running.remove(watched)
            failures += _told(watched.job)
        time.sleep(0.05)
    return failures


def _told(job: FuzzJob) -> int:
    """Say what came of a target; the number of ways to fail."""
    found = sorted((job.folder / "failures").glob("*/trouble.txt"))
    print(f"{job.name}: {job.number.value + 1} cases, failures of {len(found)} kinds", flush=True)
    for path in found:
        what = path.read_text().splitlines()[0]
        count = len((path.parent / "count.txt").read_text().splitlines())
        print(f"  {what}, {count} times: {path.parent}", flush=True)
    return len(found)


def main(minutes: float, seed: int) -> int:
    """Exit code of a whole run."""
    root = Path(tempfile.mkdtemp(prefix="flic-fuzz-"))
    print(f"seed {seed}, {minutes:g} minutes, {len(MAKERS)} targets", flush=True)
    failures = fuzz(MAKERS, minutes, seed, root)
    if failures:
        print(f"{failures} kinds of failures: inputs and tracebacks are in {root}")
        print(f"the same cases again: scripts/fuzz {minutes:g} {seed}")
        return 1
    shutil.rmtree(root)
    print("nothing failed")
    return 0


if __name__ == "__main__":
    given = dict(enumerate(sys.argv))
    sys.exit(main(float(given[1]), int(given.get(2, SystemRandom().randrange(2**31)))))
