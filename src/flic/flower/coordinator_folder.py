"""The coordinator's folder: settings, members, finished rounds and the log.

DIR/
  federation.json   the run's name and the settings that all silos get
  silos.json offences.json   who takes part (flic.flower.members)
  checkpoints/      the shared part after every round (flic.engine.checkpoint)
  log.jsonl         a line per round and per refusal

A round that was not finished never happened: whoever opens the folder goes on after the last one.
"""

import secrets
from collections.abc import Iterable
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from flic.digests import digest_of
from flic.engine.checkpoint import CHECKPOINTS, DiskJournal, finished_records
from flic.engine.rounds import Rounds, Runner, Schedule, next_step
from flic.engine.soundness import refuse_wrong, wrong_in_shared
from flic.errors import ConfigError, RunFolderError
from flic.files import write_json
from flic.flower.federation_settings import FederationSettings, federation_settings
from flic.flower.linked_rules import LinkedRules
from flic.flower.log import events, note
from flic.flower.members import Members
from flic.flower.rules import Rules
from flic.flower.run_request import clear_request
from flic.flower.secure_rules import SecureRules
from flic.flower.secure_training import SecureTrainingRules
from flic.methods.protocol import ServerState, Step
from flic.settings import damaged, read_object

FACTS = "federation.json"


class Coordinator:
    """A federation's coordinator, as its folder says."""

    def __init__(self, folder: Path, run: str, settings: FederationSettings) -> None:
        self.folder = folder
        self.run = run
        self.settings = settings
        self.members = Members(folder, settings.max_offences)

    @cached_property
    def journal(self) -> DiskJournal:
        """The finished rounds; to open it tidies up, so only whoever does rounds may."""
        opened = self._opened
        if opened.server is not None:
            wrong = wrong_in_shared(self.rules.unsound(opened.server), opened.server.shared)
            refuse_wrong(self.folder, wrong)
        return opened

    @cached_property
    def _opened(self) -> DiskJournal:
        agreed = {"run": self.run, **self.settings.agreement}
        origin = {"settings": digest_of(agreed)}
        shown = {key: value for key, value in agreed.items() if key != "salt"}  # a secret
        opened = DiskJournal(self.folder / CHECKPOINTS, origin, shown)
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
        if settings.sends_sums and not settings.salt:
            settings = settings.model_copy(update={"salt": secrets.token_hex(16)})
        facts = {"run": run, "settings": settings.model_dump(mode="json")}
        coordinator = Coordinator(folder, run, settings)
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
        facts = read_object(folder / FACTS)
        if not isinstance(facts.get("run"), str) or not isinstance(facts.get("settings"), dict):
            raise damaged(folder / FACTS, "a part is missing")
        settings = federation_settings(facts["settings"], source=str(folder / FACTS))
        return Coordinator(folder, facts["run"], settings)

    def _refuse_too_large(self) -> None:
        shared = self.rules.initial().shared.values()
        size = sum(value.numel() * value.element_size() for value in shared)
        if size > self.settings.max_message_mb * 2**20:
            raise ConfigError(
                f"max_message_mb is {self.settings.max_message_mb:g} and the shared part has "
                f"{size} bytes; expected room for it. Raise max_message_mb, or share less."
            )

    # ---- the run -------------------------------------------------------------------------

    @cached_property
    def rules(self) -> Rules:
        """Rules for what silos are sent, and what is taken from them."""
        if not self.settings.sends_sums:
            if self.settings.masks_sums:
                return SecureTrainingRules(self.settings, self.folder)
            return Rules(self.settings)
        counted = [lambda at=at: self._counted(at) for at in (-1, 0)]
        if self.settings.masks_sums:
            return SecureRules(self.settings, self.folder, *counted)
        return LinkedRules(self.settings, self.folder, counted[0])

    def _counted(self, at: int) -> list[str]:
        """Silos that were counted in one of the rounds on the disk."""
        records = self._opened.records
        return records[at]["active"] if records else []

    @cached_property
    def programme(self) -> list[Step]:
        """All rounds, the last of which trains or measures and sends no tensor."""
        return self.rules.programme()

    @property
    def next_step(self) -> Step | None:
        """The round to be done next; None after the last."""
        return next_step(self.programme, self.journal.records)

    @property
    def server(self) -> ServerState:
        """The shared part before the next round, or after the last."""
        server, step = self.journal.server or self.rules.initial(), self.next_step
        return server if step is None else replace(server, round=step.round)

    def rounds(self, runner: Runner) -> Rounds:
        """The rounds still to be done, on a runner."""
        training = self.settings.method_settings.training
        schedule = Schedule.of(training, evaluate_every=self.settings.evaluate_every)
        return Rounds(
            self.programme,
            self.rules.initial(),
            schedule,
            self.journal,
            runner,
            seed=self.settings.seed,
        )

    def status(self) -> dict[str, Any]:
        """State of the run, ready for JSON; it disturbs no run that is under way."""
        records = finished_records(self.folder)
        number = {step.round: n for n, step in enumerate(self.programme, 1)}
        problem = None
        for event in events(self.folder):
            problem = event if event["event"] in ("quorum", "stopped") else problem
            problem = None if event["event"] == "round" else problem
        return {
            "run": self.run,
            "method": self.settings.method,
            "rounds_done": len(records),
            "rounds": len(self.programme),
            "plan": self.rules.plan.format(rounds=self.settings.rounds),
            "done": next_step(self.programme, records) is None,
            "silos": {
                name: {
                    "node": node,
                    "offences": self.members.offences(name),
                    "suspended": self.members.is_suspended(name),
                    "last_round": max(
                        (number[r["round"]] for r in records if name in r.get("bytes", ())),
                        default=0,
                    ),
                }
                for name, node in self.members.silos.items()
            },
            "last": records[-1] if records else None,
            "problem": problem and problem["message"],
        }

    def wait_for(self, names: Iterable[str]) -> None:
        """Log who is not there yet."""
        missing = sorted(names)
        round = self.server.round
        message = f"round {round}: waiting for {', '.join(missing)}."
        note(self.folder, "waiting", round=round, silos=missing, message=message)

    def stop(self, message: str) -> None:
        """Log why the run cannot go on, and have it begun no more."""
        note(self.folder, "stopped", round=self.server.round, message=message)
        clear_request(self.folder)
