"""A run on Flower as the operator follows it: begun or found under way, told round by round."""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flic.errors import FederationError, RunFolderError
from flic.federation.journal import Record
from flic.flower.answers import finished_rounds
from flic.flower.log import events
from flic.flower.processes import Service
from flic.flower.roll import write_json
from flic.flower.rounds import Coordinator
from flic.notation import toml_text
from flic.report.run_folder import alone_in

POLL_S = 1.0
ASK_S = 10.0  # each question to Flower costs a second of a core
END_S = 90.0  # for an app that outlived its SuperLink to end
PATIENCE = 10  # failed questions in a row after which the SuperLink counts as gone
UNDER_WAY = ("pending", "starting", "running")
WORTH_TELLING = ("waiting", "quorum", "left out", "suspended", "damaged")

OnRound = Callable[[Record, int, int], None]
"""Told after every round: its record, all rounds of the run, and how many are done."""

Tell = Callable[[str], None]
"""Told of what an operator may have to do something about."""


@dataclass(frozen=True)
class Training:
    """The run of one coordinator's folder."""

    folder: Path
    service: Service
    ask: Callable[..., dict[str, Any]]  # Flower's own commands

    def go_on(self, on_round: OnRound, tell: Tell) -> None:
        """Start the run or go on with it, and stay until all rounds are done.

        Raises:
            FederationError: the run ended before its last round.
        """
        told = _Told(self.folder, on_round, tell)
        self._follow(self.under_way() or self._begin(), told)
        coordinator = Coordinator.open(self.folder)
        if not coordinator.status()["done"]:
            problem = coordinator.status()["problem"] or f"Look at {self.service.log}."
            raise FederationError(f"the run ended before its last round: {problem}")

    def under_way(self) -> str | None:
        """The run that goes on; Flower calls one running for a while after its SuperLink died."""
        begun = json.loads(self._begun.read_bytes()) if self._begun.exists() else {}
        if not begun or begun["superlink"] != self.service.facts():
            return None
        return begun["run"] if self._status_of(begun["run"]) in UNDER_WAY else None

    @property
    def _begun(self) -> Path:
        """The latest run, and the process that it belongs to."""
        return self.folder / "flower" / "run.json"

    def _begin(self) -> str:
        """The number of a new run, once an app that outlived its SuperLink is gone."""
        until = time.monotonic() + END_S
        while True:
            try:
                with alone_in(self.folder):
                    break
            except RunFolderError:
                if time.monotonic() > until:
                    raise
                time.sleep(POLL_S)
        where = f"coordinator-dir={toml_text(str(self.folder))}"
        run = str(self.ask("run", str(self.folder / "app"), "-c", where)["run-id"])
        write_json(self._begun, {"run": run, "superlink": self.service.facts()})
        return run

    def _follow(self, run: str, told: "_Told") -> None:
        """Tell of every round until Flower says that the run is over."""
        failures, asked, status = 0, float("-inf"), "running"
        while not status.startswith("finished"):
            time.sleep(POLL_S)
            told.news()
            if not self.service.running:
                status = "finished:stopped with its coordinator"
            elif told.everything or time.monotonic() - asked > ASK_S:
                asked = time.monotonic()
                try:
                    status, failures = self._status_of(run), 0
                except FederationError:  # the SuperLink may be starting again
                    failures += 1
                    if failures > PATIENCE:
                        raise
        told.news()
        if status != "finished:completed":
            found = Coordinator.open(self.folder).status()
            raise FederationError(
                f"the run is {status.removeprefix('finished:')} after {found['rounds_done']} of "
                f"{found['rounds']} rounds{': ' + found['problem'] if found['problem'] else '.'} "
                f"All finished rounds are kept; go on with: flic coordinator train {self.folder}"
            )

    def _status_of(self, run: str) -> str:
        return str(self.ask("list", "--run-id", run)["runs"][0]["status"])


@dataclass
class _Told:
    """What the operator has been told so far."""

    folder: Path
    on_round: OnRound
    tell: Tell
    rounds: int = field(init=False)
    lines: int = field(init=False)

    def __post_init__(self) -> None:
        self.rounds, self.lines = len(finished_rounds(self.folder)), len([*events(self.folder)])

    @property
    def everything(self) -> bool:
        """Whether the last round was told."""
        return self.rounds >= Coordinator.open(self.folder).num_rounds

    def news(self) -> None:
        """Tell of the rounds and events that are new."""
        for line in [*events(self.folder)][self.lines :]:
            self.lines += 1
            if line["event"] in WORTH_TELLING:
                self.tell(line["message"])
        total = Coordinator.open(self.folder).num_rounds
        for record in finished_rounds(self.folder)[self.rounds :]:
            self.rounds += 1
            self.on_round(record, total, self.rounds)
