"""Follows a run on Flower for the operator: begins or continues it, and tells of every round."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from flic.engine.checkpoint import finished_records
from flic.engine.journal import Record
from flic.errors import FederationError
from flic.flower.coordinator_folder import Coordinator
from flic.flower.log import events
from flic.flower.ops.processes import Service
from flic.flower.run_request import is_requested, request_run

POLL_S = 1.0
BACK_S = 5.0  # for whoever watches a supervisor that was killed to start it again
WORTH_TELLING = ("waiting", "quorum", "left out", "suspended", "damaged")

OnRound = Callable[[Record, int, int], None]
"""Told after every round: its record, all rounds of the run, and how many are done."""

Tell = Callable[[str], None]
"""Told of what an operator may have to do something about."""


@dataclass(frozen=True)
class RunFollower:
    """Follows the run of a coordinator, which the restarter beside the SuperLink keeps going."""

    folder: Path
    service: Service
    start: Callable[[], None]  # the SuperLink and the restarter, where they do not run

    def follow(self, on_round: OnRound, tell: Tell) -> None:
        """Have the run begun or continued, and tell of it until it is done.

        Raises:
            FederationError: the run ended before its last round.
        """
        told = _News(self.folder, on_round, tell)
        request_run(self.folder)
        while is_requested(self.folder) and self._is_kept(tell):
            time.sleep(POLL_S)
            told.news()
        told.news()
        found = Coordinator.open(self.folder).status()
        if not found["done"]:
            raise FederationError(
                f"the run was stopped after {found['rounds_done']} of {found['rounds']} "
                f"rounds{': ' + found['problem'] if found['problem'] else '.'} All finished rounds "
                f"are kept; go on with: flic coordinator train {self.folder}"
            )

    def _is_kept(self, tell: Tell) -> bool:
        """Wait for a coordinator that was killed, and return whether it runs."""
        until = time.monotonic() + BACK_S
        while not self.service.running:
            if not self.service.was_killed:
                return False
            if time.monotonic() > until:
                tell("the coordinator was killed, and is started again.")
                self.start()
            time.sleep(POLL_S)
        return True


@dataclass
class _News:
    """News of a run: the rounds and events that the operator has not been told of yet."""

    folder: Path
    on_round: OnRound
    tell: Tell
    rounds: int = field(init=False)
    lines: int = field(init=False)

    def __post_init__(self) -> None:
        self.rounds, self.lines = len(finished_records(self.folder)), len([*events(self.folder)])

    def news(self) -> None:
        """Tell of the rounds and events that are new."""
        for line in [*events(self.folder)][self.lines :]:
            self.lines += 1
            if line["event"] in WORTH_TELLING:
                self.tell(line["message"])
        total = len(Coordinator.open(self.folder).programme)
        for record in finished_records(self.folder)[self.rounds :]:
            self.rounds += 1
            self.on_round(record, total, self.rounds)
