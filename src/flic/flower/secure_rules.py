"""Rules where sums of linked columns are masked: only sums over silos can be looked at.

What is linked stays as the first round's keys have it. A silo that fails later stays in the sums
that were unmasked with it, and is in no later one: to make those sums again without it would show
its part as the difference.

A silo that has unmasked a sum refuses one over any other set. So where too few answered, the sum is
tried again with the silos that were asked to unmask it, as soon as all of these are there.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from flic.engine.engine import EVALUATE
from flic.errors import FederationError
from flic.files import write_json
from flic.flower.federation_settings import FederationSettings
from flic.flower.linked_rules import LinkedRules
from flic.flower.log import note
from flic.flower.pooling import FIRST, LAST, SUMS
from flic.flower.secure.contribution import SumLayout
from flic.flower.secure.plausible import wrong_in_sum
from flic.flower.secure.pooled_sum import PooledSum
from flic.flower.secure.statements import MOST_LINKED
from flic.flower.secure.tags import AllTotals, KnownTotals
from flic.flower.unmasking import Unmasking, false_sum, fewest_in_sum, not_among
from flic.methods.linked.linked import UPLOAD
from flic.methods.protocol import ServerState, Stage, Update
from flic.settings import read_model

TOTALS = "totals.json"
"""File in the folder of pooled sums: the tags of the totals that silos are sent."""

LISTED, MEASURED = "listed.json", "measured.json"
"""Files beside it: the silos that were last asked to unmask a sum, and one of figures."""


class SecureRules(LinkedRules):
    """All silos send keys, and then masked sums."""

    plan = "of keys and then of masked sums, each sent once"

    def __init__(
        self,
        settings: FederationSettings,
        folder: Path,
        counted: Callable[[], list[str]],
        first: Callable[[], list[str]],
    ) -> None:
        """`counted` and `first` give the silos of the last and of the first round on the disk."""
        super().__init__(settings, folder, counted)
        self._first = first

    @property
    def fewest(self) -> tuple[int, str, str]:
        return fewest_in_sum(self.settings, super().fewest)

    @property
    def _pool(self) -> list[str]:
        """Silos whose keys say what is linked."""
        return self._first() or self.members

    def _unmasking(self, stage: str) -> Unmasking:
        return Unmasking(self.pooling.folder / (MEASURED if stage == EVALUATE else LISTED))

    def sum_layout(self, stage: str, round: int) -> SumLayout | None:
        if round == FIRST:  # keys are of no row
            return None
        union = self.pooling.union(self._pool)
        if len(union) > MOST_LINKED:
            raise FederationError(
                f"{len(union)} columns are linked; expected {MOST_LINKED} at most where sums are "
                "masked, since there is a number for every pair. Link fewer columns."
            )
        return SumLayout(self.settings, stage, round, tuple(union))

    def take(self, one: PooledSum, update: Update, server: ServerState) -> None:
        del server
        names, round = one.members, one.occasion.round
        if wrong := wrong_in_sum(update, len(names)):
            raise false_sum(round - FIRST + 1, names, wrong)
        if missing := sorted({*self.members} - {*names}):
            why = "; ".join(f"{name}: {one.absent[name]}" for name in missing if name in one.absent)
            message = (
                f"{', '.join(missing)} failed in round {round - FIRST + 1} of {LAST - FIRST + 1} "
                f"and is left out: the others go on with the sums that they have. {why}"
            )
            note(self.folder, "left out", round=round, silos=missing, message=message)
        others = [own for own in self._known_totals.groups if own.totals.round != round]
        known = KnownTotals(groups=[*others, *one.totals])
        write_json(self.pooling.folder / TOTALS, known.model_dump())
        self._members = [*names]

    def keep_list(self, stage: str, round: int, members: Sequence[str]) -> None:
        self._unmasking(stage).keep(round, members)

    def listed(self, stage: str, round: int) -> frozenset[str]:
        return self._unmasking(stage).members(round)

    def asked(self, stage: str, round: int, names: Iterable[str]) -> list[str]:
        """Those of an earlier try alone, if all are there: who unmasked it refuses other sets.

        Without some of them the others are asked: perhaps nobody has unmasked it.
        """
        there, listed = super().asked(stage, round, names), self.listed(stage, round)
        return sorted(listed) if listed and listed <= {*there} else there

    def passed_over(
        self, round: int, names: Sequence[str], there: Collection[str]
    ) -> dict[str, str]:
        del there
        if self.listed(UPLOAD, round) != {*names}:
            return {}
        return dict.fromkeys(sorted({*self.members} - {*names}), not_among(names))

    @property
    def _known_totals(self) -> KnownTotals:
        return read_model(KnownTotals, self.pooling.folder / TOTALS) or KnownTotals()

    def totals(self, name: str) -> str:
        groups = self._known_totals.groups
        return AllTotals(rounds=[g.totals for g in groups if name in g.names]).model_dump_json()

    def count(self, stage: Stage, server: ServerState, updates: Sequence[Update]) -> ServerState:
        if server.round == FIRST:
            return super().count(stage, server, updates)
        method = self.pooling.method(self._pool)
        begun = server.shared if server.round > SUMS else method.init_server().shared
        return method.aggregate(replace(server, shared=begun), updates)

    def unsound(self, server: ServerState) -> list[str]:
        if server.round == FIRST:
            return super().unsound(server)
        is_known = self.pooling.folder.exists()
        return self.pooling.method(self._pool).unsound(server.shared) if is_known else []

    def shared_with(self, name: str, server: ServerState) -> ServerState:
        return self.pooling.shared_with(name, server, self._pool) if self._pool else server
