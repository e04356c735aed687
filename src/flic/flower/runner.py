"""Silos as a runner of the round loop: deadline, quorum, offences, and who is left out."""

import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from functools import partial

from flic.engine.engine import EVALUATE
from flic.engine.journal import Record
from flic.engine.rounds import Figures, Work
from flic.errors import FederationError
from flic.flower.coordinator_folder import Coordinator
from flic.flower.exchange import Asked, Reply, SumPhase
from flic.flower.federation_settings import NUMBER_BYTES
from flic.flower.log import note
from flic.flower.pooling import FIRST, KEY_BYTES
from flic.flower.rules import is_evaluation
from flic.flower.secure.contribution import SumLayout, added_figures
from flic.flower.secure.pooled_sum import PooledSum
from flic.flower.secure.statements import FalseTotals, Occasion
from flic.methods.protocol import ServerState, Stage, Step, Update
from flic.notation import are, counted

POLL_S = 1.0  # between looks at who is there

TRIES = 3
"""Number of tries of a round without a quorum before the run stops."""


class SiloRunner(ABC):
    """Asks the silos of a coordinator; how messages travel is said by a subclass."""

    def __init__(self, coordinator: Coordinator) -> None:
        self.coordinator = coordinator
        self._settings, self._rules = coordinator.settings, coordinator.rules
        self._everyone = len(coordinator.members.welcome())
        self._there: set[str] = set()  # when the round began
        self._tries = 0
        self._set_aside: dict[str, str] = {}  # refused in a sum that came to nothing, and why

    @abstractmethod
    def connected(self) -> set[str]:
        """Silos that may take part and are there."""

    @abstractmethod
    def ask(
        self,
        stage: str,
        server: ServerState,
        names: Sequence[str],
        phase: SumPhase | None = None,
    ) -> Asked:
        """Ask silos, and wait for their answers until the deadline; `phase` of a secure sum."""

    # ---- the round loop's view -----------------------------------------------------------

    def members(self, step: Step) -> list[str]:
        """Silos that are there, once a quorum is.

        Raises:
            FederationError: too few silos may take part at all.
        """
        fewest, rule, remedy = self._rules.fewest
        listed = (
            self._rules.listed(_stage_of(step), step.round)
            & self.coordinator.members.welcome().keys()
        )
        self.wait(min(self._everyone, fewest), listed)
        able = len(self.coordinator.members.welcome())
        if step.sends and able < fewest:
            raise FederationError(
                f"{counted(able, 'silo')} {are(able)} admitted and not suspended; expected "
                f"{fewest} at least ({rule}). {remedy}"
            )
        self._there = self.connected()
        there = self._there - self._set_aside.keys()
        return self._rules.asked(_stage_of(step), step.round, there)

    def work(self, stage: Stage, server: ServerState, names: Sequence[str]) -> Work | None:
        """Ask these silos, and count what they sent; None without a quorum.

        Raises:
            FederationError: no quorum again and again.
        """
        layout = self._rules.sum_layout(stage.name, server.round)
        if layout is not None:
            return self._secure_work(layout, stage, server, names)
        asked = self.ask(stage.name, server, names)
        absent = self._away() | asked.absent
        sound, refused = self._judged(stage, server, asked)
        for name, why in refused.items():
            self.coordinator.members.offend(name, why, round=server.round)
        updates = [reply.update for reply in sound.values()]
        contributing = sum(map(self._rules.contributes, updates))
        if stage.sends and contributing < self._settings.quorum:
            got = counted(contributing, "update")
            problem = f"{got} could be counted; expected {self._settings.quorum} (quorum)."
            self._repeat(server.round, problem, {**absent, **refused})
            return None
        self._tries = 0
        sent = {name: _bytes_of(reply) for name, reply in sound.items()}
        facts = {"active": sorted(sent), "absent": absent, "refused": refused, "bytes": sent}
        losses = {name: reply.numbers for name, reply in sound.items()}
        return Work(updates, losses, sum(sent.values()), facts)

    def _secure_work(
        self, layout: SumLayout, stage: Stage, server: ServerState, names: Sequence[str]
    ) -> Work | None:
        """One sum of these silos under masks; None if too few were left for it."""
        one = self._sum(layout, server, names)
        one.absent |= self._rules.passed_over(server.round, names, self._there)
        update = self._added(one)
        members, absent = one.members, self._away() | one.absent
        refused = one.refused | self._set_aside
        if isinstance(update, Update) and stage.sends and not self._rules.contributes(update):
            update = "too few silos have anything to tell of enough rows (min_rows, min_holders)."
        if isinstance(update, str):
            # Who unmasked a sum is in none over other silos, so its members stay in the next try.
            self._set_aside = {n: why for n, why in refused.items() if n not in members}
            there = self._there - self._set_aside.keys()
            problem = update + self._missed(stage.name, server.round, there)
            self._repeat(server.round, problem, {**absent, **refused})
            return None
        self._tries, self._set_aside = 0, {}
        self._rules.take(one, update, server)
        # Who fails once its numbers have arrived is counted all the same.
        absent, refused = (
            {name: why for name, why in own.items() if name not in members}
            for own in (absent, refused)
        )
        sent = {name: one.num_bytes[name] for name in members}
        facts = {"active": members, "absent": absent, "refused": refused, "bytes": sent}
        return Work([update], {}, one.num_bytes.total(), facts)

    def _sum(self, layout: SumLayout, server: ServerState, names: Sequence[str]) -> PooledSum:
        """One attempt at a sum of these silos."""
        occasion = Occasion(
            run=self.coordinator.run,
            round=server.round,
            stage=layout.stage,
            attempt=secrets.token_hex(16),
            invited=sorted(names),
            union=list(layout.union),
        )

        def ask(phase: SumPhase) -> Asked:
            return self.ask(layout.stage, server, sorted(phase.statements), phase)

        keep_list = partial(self._rules.keep_list, layout.stage, server.round)
        return PooledSum(occasion, layout, ask, keep_list, fewest=self._rules.fewest[0])

    def _added(self, one: PooledSum) -> Update | str:
        """A sum, or the reason why it came to nothing; offences are noted."""
        try:
            update = one.run()
        except FalseTotals as error:
            raise self._of_whom(error) from None
        for name, why in one.refused.items():
            self.coordinator.members.offend(name, why, round=one.occasion.round)
        return update

    def _of_whom(self, error: FalseTotals) -> FederationError:
        """The reason to stop after a sum with a false tag: any silo of that sum may have lied."""
        records = self.coordinator.journal.records
        members = next(r["active"] for r in records if r["round"] == error.round)
        return FederationError(
            f"{error}, those of round {error.round - FIRST + 1}; expected the tag that came out "
            f"of the same sum. One of {', '.join(members)} added another tag than that of its "
            "numbers, or says so of one that fits, and masks hide which. Ask them all, and begin "
            "a new run."
        )

    def count(self, stage: Stage, server: ServerState, updates: Sequence[Update]) -> ServerState:
        """The shared part after a stage, by the federation's rules."""
        return self._rules.count(stage, server, updates)

    def figures(self, server: ServerState) -> Figures:
        """Figures of every silo that is there, on its own held-out rows; or those of all added."""
        names = self._rules.asked(EVALUATE, server.round, self.connected())
        layout = self._rules.sum_layout(EVALUATE, server.round)
        if layout is not None:
            return self._added_figures(layout, server, names)
        replies = self.ask(EVALUATE, server, names).replies
        sound = {
            name: reply.numbers
            for name, reply in sorted(replies.items())
            if reply.round == server.round and is_evaluation(reply.numbers, self._settings.task)
        }
        told = {name for name, reply in replies.items() if reply.numbers}  # not of few rows
        for name in sorted(told - {*sound}):
            self._leave_out_figures(name, server.round)
        return sound

    def _added_figures(
        self, layout: SumLayout, server: ServerState, names: Sequence[str]
    ) -> Figures:
        """Figures of all silos together, under the number of them; none if too few answer."""
        if self._settings.sends_sums:
            self.ask(EVALUATE, server, names)  # each makes its own model, however few they are
        problem = ""
        for _ in range(TRIES):
            there = self.connected()
            names = self._rules.asked(EVALUATE, server.round, there)
            one = self._sum(layout, server, names)
            found = self._added(one)
            if isinstance(found, Update):
                figures = added_figures(found, self._settings.common_task)
                if is_evaluation(figures, self._settings.task):
                    return {counted(len(one.members), "silo"): figures}
                problem = "they are of no rows, since too few silos tell theirs"
                break
            problem = found + self._missed(EVALUATE, server.round, there)
        message = f"round {server.round} has no figures of held-out rows: {problem}"
        note(self.coordinator.folder, "figures", round=server.round, message=message)
        return {}

    def committed(self, record: Record) -> None:
        """Log the round, and forget the reasons that silos were told."""
        self.coordinator.members.clear(record.get("active", ()))
        note(self.coordinator.folder, "round", **record)

    # ---- parts ---------------------------------------------------------------------------

    def wait(self, count: int, names: Collection[str] = ()) -> None:
        """Wait until so many silos are connected and these are, or the deadline has passed."""
        deadline, told = time.monotonic() + self._settings.deadline_s, False
        while time.monotonic() < deadline:
            there = self.connected()
            if len(there) >= count and {*names} <= there:
                return
            if not told:
                self.coordinator.wait_for(self.coordinator.members.welcome().keys() - there)
            told = True
            time.sleep(min(POLL_S, self._settings.deadline_s))

    def _missed(self, stage: str, round: int, there: Collection[str]) -> str:
        """A sentence on silos without which others may refuse a secure sum; "" if none."""
        listed = self._rules.listed(stage, round)
        missing = sorted(listed - {*there})
        if not missing:
            return ""
        return (
            f" {', '.join(sorted(listed))} were asked to unmask it before, and whoever did is in "
            f"no sum of other silos; expected {', '.join(missing)} too."
        )

    def _away(self) -> dict[str, str]:
        """Silos that were not there when the round began."""
        away = self.coordinator.members.welcome().keys() - self._there
        return dict.fromkeys(sorted(away), "not connected")

    def _judged(
        self, stage: Stage, server: ServerState, asked: Asked
    ) -> tuple[dict[str, Reply], dict[str, str]]:
        """Replies that count, and why the others do not."""
        refused, sound = dict(asked.refused), dict(asked.replies)
        for name, reply in asked.replies.items():
            why = self.coordinator.members.why_not(name)
            why = why or self._rules.check(name, stage, server, reply)
            if why is not None:
                refused[name] = why
                del sound[name]
        refused |= self._rules.outliers(server, sound)
        return {name: own for name, own in sound.items() if name not in refused}, refused

    def _repeat(self, round: int, problem: str, left_out: Mapping[str, str]) -> None:
        """Log that the round did not count; after some tries, give up."""
        self._tries += 1
        why = "; ".join(f"{name}: {reason}" for name, reason in left_out.items())
        message = (
            f"round {round}: {problem} {why or 'No other silo was asked.'} Start the silos that "
            "are missing, admit more, or lower the quorum."
        )
        folder = self.coordinator.folder
        note(folder, "quorum", round=round, tries=self._tries, message=message)
        if self._tries >= TRIES:
            raise FederationError(
                f"{message} Tried {TRIES} times; the rounds before are kept. Go on with: flic "
                f"coordinator train {folder}"
            )

    def _leave_out_figures(self, name: str, round: int) -> None:
        """Log that what a silo gave for an evaluation is none."""
        message = (
            f"figures of silo {name!r} cannot be sums over its held-out rows, or are of another "
            "round; expected those of this one. They are left out; look at the silo's log."
        )
        note(self.coordinator.folder, "figures", round=round, silo=name, message=message)


def _stage_of(step: Step) -> str:
    """Name of the first work of a step."""
    return step.stages[0].name if step.stages else EVALUATE


def _bytes_of(reply: Reply) -> int:
    numbers = len(reply.update.entries) + len(reply.numbers)
    return reply.update.num_bytes + NUMBER_BYTES * numbers + KEY_BYTES * len(reply.keys)
