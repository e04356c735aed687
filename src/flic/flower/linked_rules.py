"""Rules where columns are linked: keys first, then sums in four rounds, begun anew without who
fails.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from flic.flower.exchange import Reply
from flic.flower.federation_settings import FederationSettings
from flic.flower.log import note
from flic.flower.pooling import DIRECTIONS, FIRST, LAST, SUMS, Pooling, are_keys
from flic.flower.rules import Rules
from flic.flower.sums_form import LINEAR
from flic.methods.linked.link_checks import UNLIKE
from flic.methods.protocol import ServerState, Stage, Step, Update


class LinkedRules(Rules):
    """All silos send keys, then sums; the last to be counted are the members."""

    plan = "of keys and then of sums, each sent once"
    weighted = frozenset({UNLIKE})

    def __init__(
        self, settings: FederationSettings, folder: Path, counted: Callable[[], list[str]]
    ) -> None:
        """`counted` gives the silos of the last round on the disk."""
        super().__init__(settings)
        self.folder = folder
        self.pooling = Pooling(folder / "pooled", settings)
        self._recorded = counted
        self._members: list[str] | None = None  # counted since
        self._keys: dict[str, tuple[str, ...]] = {}  # of the replies of a round

    @property
    def members(self) -> list[str]:
        """Silos whose keys or sums are in the shared part."""
        return self._recorded() if self._members is None else self._members

    def programme(self) -> list[Step]:
        """A round of keys before those of the method; clients are measured after the last."""
        uploads = super().programme()
        keys, last = replace(uploads[0], round=FIRST), replace(uploads[-1], measured="always")
        return [keys, *uploads[:-1], last]

    def initial(self) -> ServerState:
        return ServerState(FIRST, {})

    def count(self, stage: Stage, server: ServerState, updates: Sequence[Update]) -> ServerState:
        names = [update.client for update in updates]
        missing = sorted({*self.members} - {*names})
        if missing:
            self._leave_out(missing, server.round)
        if server.round == FIRST:
            self.pooling.keep_keys({name: self._keys[name] for name in names})
        elif server.round == SUMS or missing:
            if server.round == SUMS:
                self.pooling.keep(updates, self.members)
            server = self.pooling.start(names)
        else:
            if server.round == DIRECTIONS:
                updates = [self.pooling.among_all(update, names) for update in updates]
            server = self.pooling.method(names).aggregate(server, updates)
        self._members = names
        return server

    def unsound(self, server: ServerState) -> list[str]:
        """Of a finished run nothing is known: its keys are forgotten, and nobody reads it."""
        if server.round == FIRST:
            return [*server.shared]
        is_known = self.pooling.folder.exists()
        return self.pooling.method(self.members).unsound(server.shared) if is_known else []

    def _leave_out(self, missing: Sequence[str], round: int) -> None:
        message = (
            f"{', '.join(missing)} failed in round {round - FIRST + 1} of {LAST - FIRST + 1} and "
            "is left out: the others go on as if it had not been there."
        )
        note(self.folder, "left out", round=round, silos=list(missing), message=message)

    # ---- what silos are sent -------------------------------------------------------------

    def asked(self, stage: str, round: int, names: Iterable[str]) -> list[str]:
        del stage
        members = {*names} if round == FIRST else {*names} & {*self.members}
        return sorted(members)

    def shared_with(self, name: str, server: ServerState) -> ServerState:
        return self.pooling.shared_with(name, server, self.members) if self.members else server

    def holders(self, name: str) -> tuple[int, ...]:
        return self.pooling.holders(name, self.members) if self.members else ()

    # ---- what is taken from them ---------------------------------------------------------

    def expects(self, server: ServerState, keys: Sequence[str]) -> ServerState:
        if server.round in (SUMS, DIRECTIONS) and are_keys(keys):
            return self.pooling.expected(keys, server.round)
        return super().expects(server, keys) if server.round > SUMS else self.initial()

    def check(self, name: str, stage: Stage, server: ServerState, reply: Reply) -> str | None:
        wrong = super().check(name, stage, server, reply)
        if wrong is not None:
            return wrong
        round, keys = server.round, reply.keys
        if round == FIRST and not are_keys(keys):
            return f"answer of silo {name!r} holds no keys of columns; expected them in round 1."
        has_columns = any(n.startswith(LINEAR) for n in reply.update.entries)
        is_of_columns = round == SUMS or has_columns or (round == DIRECTIONS and bool(keys))
        if is_of_columns and list(keys) != self.pooling.linked(name, self.members):
            return (
                f"answer of silo {name!r} holds sums of other columns than those it has in common "
                "with others; expected these. Give all silos one version of flic."
            )
        return self.pooling.lacking(reply.update, needed=round == SUMS and bool(keys))

    def outliers(self, server: ServerState, replies: Mapping[str, Reply]) -> dict[str, str]:
        del server
        self._keys = {name: reply.keys for name, reply in replies.items()}
        updates = [reply.update for reply in replies.values()]
        return self.pooling.outliers(updates, self._keys, self.settings.norm_factor)

    def contributes(self, update: Update) -> bool:
        del update
        return True

    def finish(self) -> None:
        self.pooling.forget()
