"""Restarter of a coordinator's run: `python restarter.py DIR`, beside the SuperLink, no torch.

DIR/wanted is there while the run is wanted: `flic coordinator train` makes it; the app removes it
after the last round, or where it must stop, and so does `flic coordinator stop`. Flower goes on
with no run whose app or SuperLink was killed. So wherever a run is wanted and nobody does rounds, a
new one is begun, which goes on after the last finished round.
"""

import sys
import time
from logging import getLogger
from pathlib import Path

from flic.errors import FederationError
from flic.files import is_worked_on
from flic.flower.log import note
from flic.flower.ops.processes import Service, ask_flower
from flic.flower.run_request import clear_request, is_requested
from flic.notation import counted, toml_text

log = getLogger(__name__)

POLL_S = 1.0
START_S = 120.0  # for an app to start, of which torch takes most
AGAIN_S = 5.0  # after a start that failed
TRIES = 10  # starts without a finished round after which the run stops


def superlink(folder: Path) -> Service:
    """The SuperLink of a coordinator's folder, under its supervisor."""
    return Service(
        f"the coordinator in {folder}",
        folder / "superlink.pid",
        folder / "superlink.log",
        f"flic coordinator stop {folder}",
    )


class Restarter:
    """Begins a coordinator's run wherever it is wanted and nobody works on it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._starting: tuple[float, object] | None = None  # until when, and under which SuperLink
        self._rounds, self._tries = _finished(folder), 0

    def look(self) -> None:
        """Begin the run if it is wanted and nobody works on it."""
        if not is_requested(self._folder):
            self._starting, self._tries = None, 0
        elif is_worked_on(self._folder):
            self._starting = None
        elif not self._is_starting():
            self._begin()

    def _is_starting(self) -> bool:
        if self._starting is None:
            return False
        until, under = self._starting
        return time.monotonic() < until and under == superlink(self._folder).facts()

    def _begin(self) -> None:
        finished = _finished(self._folder)
        self._tries = 0 if finished > self._rounds else self._tries
        self._rounds = finished
        if self._tries >= TRIES:
            self._give_up()
            return
        under = superlink(self._folder).facts()
        if under is not None and superlink(self._folder).has_lost_a_process():
            superlink(self._folder).restart()  # Flower starts its executor of apps only once
            return
        where = f"coordinator-dir={toml_text(str(self._folder))}"
        try:
            ask_flower(self._folder / "flower", "run", str(self._folder / "app"), "-c", where)
        except FederationError as error:  # the SuperLink may be starting again
            log.warning("restarter: the run is not begun yet: %s", error)
            self._starting = (time.monotonic() + AGAIN_S, under)
            return
        self._tries += 1
        self._starting = (time.monotonic() + START_S, under)

    def _give_up(self) -> None:
        message = (
            f"the run was begun {TRIES} times after {counted(self._rounds, 'round')}, and no "
            f"further one was finished; expected one. Look at {superlink(self._folder).log}."
        )
        note(self._folder, "stopped", message=message)
        clear_request(self._folder)


def _finished(folder: Path) -> int:
    """Number of finished rounds, of which each leaves a file."""
    return len([*(folder / "checkpoints").glob("[0-9]*.json")])


def main() -> None:
    """Look, again and again."""
    restarter = Restarter(Path(sys.argv[1]))
    while True:
        restarter.look()
        time.sleep(POLL_S)


if __name__ == "__main__":
    main()
