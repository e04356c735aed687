"""The rules of a round where columns are linked: four rounds, begun anew without who fails."""

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

from flic.engine.engine import Stage
from flic.engine.journal import Record
from flic.flower.log import note
from flic.flower.pooling import FIRST, LAST, SUMS, Pooling, are_keys
from flic.flower.rounds import Coordinator
from flic.methods.linked.link_checks import UNLIKE
from flic.methods.protocol import ServerState, Update


class LinkedCoordinator(Coordinator):
    """All silos send keys, then sums in three rounds; the last to be counted are the members."""

    @cached_property
    def pooling(self) -> Pooling:
        """The sums of silos."""
        return Pooling(self.folder / "pooled", self.settings)

    @property
    def members(self) -> list[str]:
        """Silos whose sums are in the shared part."""
        records = self.journal.records
        return self._counted or (records[-1]["active"] if records else [])

    _counted: list[str] | None = None  # in the round under way, once it is known

    # ---- which round it is ---------------------------------------------------------------

    @property
    def num_rounds(self) -> int:
        return LAST - FIRST + 1

    @property
    def last_round(self) -> int:
        return LAST

    def number_of(self, round: int) -> int:
        return round - FIRST + 1

    @property
    def stage(self) -> Stage:
        return "prepare"

    @property
    def plan(self) -> str:
        return "of keys and then of sums, each sent once"

    def round_after(self, records: Sequence[Record]) -> int:
        return records[-1]["round"] + 1 if records else FIRST

    def is_measured(self, round: int) -> bool:
        return round == LAST

    # ---- what is shared ------------------------------------------------------------------

    def initial(self) -> ServerState:
        return ServerState(FIRST, {})

    def shared_with(self, name: str, server: ServerState) -> ServerState:
        return self.pooling.shared_with(name, server, self.members) if self.members else server

    def holders(self, name: str) -> tuple[int, ...]:
        return self.pooling.holders(name, self.members) if self.members else ()

    def expects(self, keys: Sequence[str]) -> ServerState:
        if self.round > SUMS:
            return super().expects(keys)
        if self.round == SUMS and are_keys(keys):
            return self.pooling.expected(keys)
        return self.initial()

    def check(self, name: str, round: int, update: Update, keys: Sequence[str] = ()) -> str | None:
        wrong = super().check(name, round, update, keys)
        if wrong is not None:
            return wrong
        if self.round == FIRST and not are_keys(keys):
            return f"answer of silo {name!r} holds no keys of columns; expected them in round 1."
        if self.round == SUMS and list(keys) != self._linked(name):
            return (
                f"answer of silo {name!r} holds sums of other columns than those it has in common "
                "with others; expected these. Give all silos one version of flic."
            )
        return self.pooling.lacking(update, needed=self.round == SUMS and bool(keys))

    def _linked(self, name: str) -> list[str]:
        return self.pooling.linked(name, self.members)

    weighted = frozenset({UNLIKE})

    # ---- who is asked, and what counts ---------------------------------------------------

    def choose(self, connected: Iterable[str]) -> list[str]:
        names = super().choose(connected)
        return names if self.round == FIRST else self.measured(names)

    def measured(self, connected: Iterable[str]) -> list[str]:
        members = {*self.members}
        return sorted(name for name in connected if name in members)

    def outliers(
        self, updates: Sequence[Update], keys: Mapping[str, Sequence[str]]
    ) -> dict[str, str]:
        return self.pooling.outliers(updates, keys, self.settings.norm_factor)

    def count(self, updates: Sequence[Update], keys: Mapping[str, Sequence[str]]) -> ServerState:
        names = [update.client for update in updates]
        missing = sorted({*self.members} - {*names})
        if missing:
            message = (
                f"{', '.join(missing)} failed in round {self.number_of(self.round)} of "
                f"{self.num_rounds} and is left out: the others go on as if it had not been there."
            )
            note(self.folder, "left out", round=self.round, silos=missing, message=message)
        if self.round == FIRST:
            self.pooling.keep_keys({name: keys[name] for name in names})
            server = self.initial()
        elif self.round == SUMS or missing:
            if self.round == SUMS:
                self.pooling.keep(updates, self.members)
            server = self.pooling.start(names)
        else:
            server = self.pooling.method(names).aggregate(self.server, updates)
        self._counted = names
        return server

    def finish(self, *answers: Any, **named: Any) -> Record | None:
        record = super().finish(*answers, **named)
        if self.is_done:
            self.pooling.forget()
        return record
