"""The coordinator's folder and the rules of a round; how messages travel is not its concern.

DIR/
  federation.json   the run's name and the settings that all silos get
  silos.json offences.json   who takes part (flic.flower.members)
  checkpoints/      the shared part after every round (flic.engine.checkpoint)
  log.jsonl         a line per round and per refusal

A round that was not finished never happened: whoever opens the folder goes on after the last one.
"""

import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from flic.digests import digest_of
from flic.engine.checkpoint import DiskJournal
from flic.engine.engine import Stage
from flic.engine.journal import Record
from flic.engine.sampling import active_clients
from flic.errors import ConfigError, FederationError, IncompatibleUpdate, RunFolderError
from flic.flower.answers import Answers, Figures, finished_rounds
from flic.flower.keeper import release
from flic.flower.log import events, note
from flic.flower.members import Members, damaged, read_json, write_json
from flic.flower.proportion import is_evaluation, too_far, too_heavy
from flic.flower.settings import FederationSettings, federation_settings
from flic.flower.silo_engine import as_coordinated
from flic.method_settings import unit_of
from flic.methods import METHODS
from flic.methods.protocol import Method, ServerState, Update, check_update

FACTS = "federation.json"

TRIES = 3
"""How often a round is tried without a quorum before the run stops."""


HARMLESS = {"steps": 0.02, "epochs": 0.25}
"""Share of a tensor's first size by which one silo may move it whatever the others do.

All silos take the same number of steps; of epochs, one of more rows takes more.
"""


class Coordinator:
    """A federation's coordinator: who is asked, what counts, what is kept."""

    def __init__(self, folder: Path, run: str, settings: FederationSettings) -> None:
        self.folder = folder
        self.run = run
        self.settings = settings
        self.members = Members(folder, settings.max_offences)
        self._tries = 0

    @cached_property
    def method(self) -> Method:
        """The method, without facts that are silos' own."""
        return as_coordinated(self.settings)

    @cached_property
    def journal(self) -> DiskJournal:
        """The finished rounds; to open it tidies up, so only whoever does rounds may."""
        agreed = {"run": self.run, **self.settings.agreement}
        opened = DiskJournal(self.folder / "checkpoints", {"settings": digest_of(agreed)})
        for message in opened.notices:
            note(self.folder, "damaged", message=message)
        return opened

    @staticmethod
    def create(folder: Path, settings: FederationSettings) -> "Coordinator":
        """A new federation; the folder may hold other files, but none of another federation."""
        if (folder / FACTS).exists():
            raise RunFolderError(
                f"{folder} holds a federation already; expected none. Choose another folder, or go "
                f"on with: flic coordinator train {folder}"
            )
        folder.mkdir(parents=True, exist_ok=True)
        run = secrets.token_hex(8)
        if settings.is_closed_form and not settings.salt:
            settings = settings.model_copy(update={"salt": secrets.token_hex(16)})
        facts = {"run": run, "settings": settings.model_dump(mode="json")}
        coordinator = _kind(settings)(folder, run, settings)
        coordinator._refuse_too_large()  # and settings that cannot start
        coordinator.members.create()
        write_json(folder / FACTS, facts)
        return coordinator

    @staticmethod
    def open(folder: Path) -> "Coordinator":
        """The federation of a folder, after its last finished round."""
        if not (folder / FACTS).exists():
            raise RunFolderError(
                f"{folder} holds no federation: {FACTS} is missing; expected a folder that flic "
                "coordinator init made."
            )
        facts = read_json(folder / FACTS)
        if not isinstance(facts.get("run"), str) or not isinstance(facts.get("settings"), dict):
            raise damaged(folder / FACTS, "a part is missing")
        settings = federation_settings(facts["settings"], source=str(folder / FACTS))
        return _kind(settings)(folder, facts["run"], settings)

    def _refuse_too_large(self) -> None:
        shared = self.initial().shared.values()
        size = sum(value.numel() * value.element_size() for value in shared)
        if size > self.settings.max_message_mb * 2**20:
            raise ConfigError(
                f"max_message_mb is {self.settings.max_message_mb:g} and the shared part has "
                f"{size} bytes; expected room for it. Raise max_message_mb, or share less."
            )

    # ---- a round -------------------------------------------------------------------------

    @property
    def round(self) -> int:
        """The round to be done next."""
        return self.round_after(self.journal.records)

    def round_after(self, records: Sequence[Record]) -> int:
        """The round that follows finished ones."""
        return len(records) + 1

    @property
    def last_round(self) -> int:
        """The number of the last round."""
        return self.num_rounds

    def number_of(self, round: int) -> int:
        """How a round is counted by people, from 1."""
        return round

    @property
    def num_rounds(self) -> int:
        """All rounds, with the last one, from which no tensor leaves."""
        return self.settings.rounds + 1

    @property
    def is_done(self) -> bool:
        """Whether the run is finished."""
        return self.round > self.last_round

    @property
    def stage(self) -> Stage:
        """What is done in the next round."""
        if self.round <= self.settings.rounds:
            return "update"
        return "adapt" if self.settings.method_settings.training.final_round else "evaluate"

    @property
    def server(self) -> ServerState:
        """The shared part before the next round."""
        return replace(self.journal.server or self.initial(), round=self.round)

    def initial(self) -> ServerState:
        """The shared part before the first round."""
        return self.method.init_server()

    def shared_with(self, name: str, server: ServerState) -> ServerState:
        """The shared part as a silo is sent it."""
        del name
        return server

    def holders(self, name: str) -> tuple[int, ...]:
        """Silos that have each feature of a silo, where columns are linked."""
        del name
        return ()

    def expects(self, keys: Sequence[str]) -> ServerState:
        """Names and shapes that an answer may hold in the next round."""
        return self.server if not keys else ServerState(self.round, {})

    def choose(self, connected: Iterable[str]) -> list[str]:
        """Silos that are asked in the next round: a seeded draw, or everyone in the last.

        Raises:
            FederationError: too few silos may take part at all.
        """
        names, able = sorted(connected), len(self.members.welcome())
        if self._needs_quorum and able < self.settings.quorum:
            raise FederationError(
                f"{able} silos are admitted and not suspended; expected {self.settings.quorum} at "
                "least (quorum). Admit more, or lower the quorum."
            )
        if self.stage != "update" or not names:
            return names
        share, seed = self.settings.participation, self.settings.seed
        return active_clients(names, share, seed=seed, round=self.round)

    #: Tensors whose weight is no number of rows, and need not be 1 where silos count alike.
    weighted: frozenset[str] = frozenset()

    def check(self, name: str, round: int, update: Update, keys: Sequence[str] = ()) -> str | None:
        """Why an update cannot be counted, if it cannot."""
        if name not in self.members.silos:
            return f"silo {name!r} is not admitted any more; expected one that is. Admit it again."
        if self.members.is_suspended(name):
            return f"silo {name!r} is suspended; expected one that is not. Admit it again."
        if round != self.round:
            return (
                f"update of silo {name!r} is of round {round}; expected one of round {self.round}. "
                "It may be a replay; look at the silo's log."
            )
        if self.stage in ("adapt", "evaluate") and update.entries:
            return (
                f"update of silo {name!r} holds tensors in a round from which none leaves; "
                "expected loss terms alone. Give all silos one version of flic."
            )
        entries = update.entries.items()
        weights = {entry.weight for name, entry in entries if name not in self.weighted}
        if self.settings.weights == "equal" and weights - {1.0}:
            return (
                f"update of silo {name!r} has weights other than 1; expected equal weights. Give "
                "all silos one version of flic."
            )
        try:
            check_update(self.expects(keys), update, METHODS[self.settings.method].fixed)
        except IncompatibleUpdate as error:
            return str(error)
        return None

    def outliers(
        self, updates: Sequence[Update], keys: Mapping[str, Sequence[str]]
    ) -> dict[str, str]:
        """Updates out of all proportion to the others and to the shared part at the beginning."""
        del keys
        far = too_far(
            updates,
            self.server.shared,
            self.initial().shared,
            factor=self.settings.norm_factor,
            harmless=HARMLESS[unit_of(self.settings.method_settings.training.shared)],
        )
        return too_heavy(updates) | far

    def finish(
        self,
        round: int,
        answers: Answers,
        *,
        started: float,
        measure: Callable[[ServerState], Figures] = lambda server: {},
    ) -> Record | None:
        """Record of the round, once it is counted and on the disk; None without a quorum.

        Args:
            round: the round that was asked for.
            answers: what came of it.
            started: when, on the clock of time.perf_counter.
            measure: figures of the silos under a shared part, where they are due.

        Raises:
            FederationError: no quorum again and again.
        """
        assert round == self.round
        for name, why in answers.refused.items():
            self.members.offend(name, why, round=self.round)
        if self._contributing(answers) < self.settings.quorum and self._needs_quorum:
            self._repeat(answers)
            return None
        self._tries = 0
        # A fixed order: sums of floating-point numbers depend on it, results must not.
        updates = sorted(answers.updates, key=lambda update: update.client)
        server = self.count(updates, answers.keys)
        self._refuse_infinite(server)
        figures = measure(server) if self.is_measured(server.round) else {}
        seconds = time.perf_counter() - started
        record = answers.record(self.stage, server.round, figures, seconds)
        self.journal.commit(server, record)
        self.members.clear(update.client for update in updates)
        note(self.folder, "round", **record)
        return record

    def _refuse_infinite(self, server: ServerState) -> None:
        """What every silo would start from must be numbers; nothing of the round is kept else."""
        wrong = [n for n, v in server.shared.items() if not bool(v.isfinite().all())]
        if wrong:
            raise FederationError(
                f"round {self.round}: the shared {', '.join(wrong)} would not be finite; expected "
                "numbers. The rounds before are kept; look for a silo whose updates are out of "
                f"proportion in {self.folder / 'log.jsonl'}, and revoke it."
            )

    def count(self, updates: Sequence[Update], keys: Mapping[str, Sequence[str]]) -> ServerState:
        """The shared part after the next round, and the round that it is after."""
        del keys
        return self.method.aggregate(self.server, updates) if updates else self.server

    def measured(self, connected: Iterable[str]) -> list[str]:
        """Silos that are asked for figures."""
        return sorted(connected)

    def sound_figures(self, numbers: Mapping[str, float]) -> bool:
        """Whether numbers are what an evaluation gives."""
        return is_evaluation(numbers, self.settings.task)

    def leave_out_figures(self, name: str, round: int) -> None:
        """Log that what a silo gave for an evaluation is none."""
        message = (
            f"figures of silo {name!r} cannot be sums over its held-out rows, or are of another "
            "round; expected those of this one. They are left out; look at the silo's log."
        )
        note(self.folder, "figures", round=round, silo=name, message=message)

    def status(self) -> dict[str, Any]:
        """Where the run stands, ready for JSON; it disturbs no run that is under way."""
        records = finished_rounds(self.folder)
        problem = None
        for event in events(self.folder):
            problem = event if event["event"] in ("quorum", "stopped") else problem
            problem = None if event["event"] == "round" else problem
        return {
            "run": self.run,
            "method": self.settings.method,
            "rounds_done": len(records),
            "rounds": self.num_rounds,
            "plan": self.plan,
            "done": self.round_after(records) > self.last_round,
            "silos": {
                name: {
                    "node": node,
                    "offences": self.members.offences(name),
                    "suspended": self.members.is_suspended(name),
                    "last_round": max(
                        (self.number_of(r["round"]) for r in records if name in r["bytes"]),
                        default=0,
                    ),
                }
                for name, node in self.members.silos.items()
            },
            "last": records[-1] if records else None,
            "problem": problem and problem["message"],
        }

    @property
    def plan(self) -> str:
        """What the rounds are."""
        return f"{self.settings.rounds} of training and a last one from which no tensor leaves"

    def wait_for(self, names: Iterable[str]) -> None:
        """Log who is not there yet."""
        missing = sorted(names)
        message = f"round {self.round}: waiting for {', '.join(missing)}."
        note(self.folder, "waiting", round=self.round, silos=missing, message=message)

    def stop(self, message: str) -> None:
        """Log why the run cannot go on, and have it begun no more."""
        note(self.folder, "stopped", round=self.round, message=message)
        release(self.folder)

    def is_measured(self, round: int) -> bool:
        """Whether figures are due after a round."""
        every = self.settings.evaluate_every
        return self.stage != "update" or (every > 0 and round % every == 0)

    @property
    def _needs_quorum(self) -> bool:
        return self.stage in ("prepare", "update")

    def _contributing(self, answers: Answers) -> int:
        """Silos that a quorum counts: who sends nothing hides nobody else among its rows."""
        if self.stage == "prepare":
            return len(answers.updates)
        return sum(bool(update.entries) for update in answers.updates)

    def _repeat(self, answers: Answers) -> None:
        """Log that the round did not count; after some tries, give up."""
        self._tries += 1
        got, need = self._contributing(answers), self.settings.quorum
        left_out = {**answers.absent, **answers.refused}
        why = "; ".join(f"{name}: {reason}" for name, reason in left_out.items())
        message = (
            f"round {self.round}: {got} updates could be counted; expected {need} (quorum). "
            f"{why or 'No other silo was asked.'} Start the silos that are missing, admit more, or "
            "lower the quorum."
        )
        note(self.folder, "quorum", round=self.round, tries=self._tries, message=message)
        if self._tries >= TRIES:
            raise FederationError(
                f"{message} Tried {TRIES} times; the rounds before are kept. Go on with: flic "
                f"coordinator train {self.folder}"
            )


def _kind(settings: FederationSettings) -> type[Coordinator]:
    """What coordinates such a federation."""
    if not settings.is_closed_form:
        return Coordinator
    from flic.flower.linked_rounds import LinkedCoordinator  # which derives from it

    return LinkedCoordinator
