"""Rules for methods that train networks where α and anchors are masked: totals alone are looked at.

What is averaged travels as n · v and n, so that the total is the average. The same silos are in
every round: once training has settled, versions hardly change from round to round, and a round
without one silo would show its part as the difference.
"""

from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from flic.engine.engine import EVALUATE
from flic.flower.federation_settings import FederationSettings
from flic.flower.rules import HARMLESS, Rules, too_far
from flic.flower.secure.contribution import SumLayout, is_masked
from flic.flower.secure.plausible import wrong_in_sum
from flic.flower.secure.pooled_sum import PooledSum
from flic.flower.unmasking import Unmasking, false_sum, fewest_in_sum
from flic.method_settings import unit_of
from flic.methods.protocol import ServerState, Update
from flic.shapes import Named

MEMBERS = "masked.json"
"""File in the coordinator's folder: the silos whose totals were, or may have been, unmasked."""


class SecureTrainingRules(Rules):
    """All silos add their versions of what is shared under masks, in every round the same silos."""

    plan = "{rounds} of training under masks and a last one from which no tensor leaves"

    def __init__(self, settings: FederationSettings, folder: Path) -> None:
        super().__init__(settings)
        self._unmasking = Unmasking(folder / MEMBERS)

    @property
    def fewest(self) -> tuple[int, str, str]:
        return fewest_in_sum(self.settings, super().fewest)

    def sum_layout(self, stage: str, round: int) -> SumLayout | None:
        is_sum = is_masked(self.settings, stage, round)
        return SumLayout(self.settings, stage, round, ()) if is_sum else None

    def keep_list(self, stage: str, round: int, members: Sequence[str]) -> None:
        if stage != EVALUATE:  # which is of the same silos, or of none
            self._unmasking.keep(round, members)

    def listed(self, stage: str, round: int) -> frozenset[str]:
        is_sum = is_masked(self.settings, stage, round)
        return self._unmasking.members() if is_sum else frozenset()

    def asked(self, stage: str, round: int, names: Iterable[str]) -> list[str]:
        """The silos of the rounds before, or nobody as long as some of them are missing."""
        there, listed = super().asked(stage, round, names), self.listed(stage, round)
        if not listed:
            return there
        return sorted(listed) if listed <= {*there} else []

    def passed_over(
        self, round: int, names: Sequence[str], there: Collection[str]
    ) -> dict[str, str]:
        others = sorted({*there} - {*names}) if names and self._unmasking.members() else []
        why = f"is in no round, since all rounds are of the same silos: {', '.join(names)}"
        return dict.fromkeys(others, why)

    def take(self, one: PooledSum, update: Update, server: ServerState) -> None:
        """Take a total, unless it is none or out of all proportion.

        Raises:
            FederationError: saying what is wrong with it.
        """
        round, names = server.round, one.members
        if wrong := wrong_in_sum(update, len(names)):
            raise false_sum(round, names, wrong)
        if wrong := out_of_proportion(update, server.shared, self.initial().shared, self.settings):
            raise false_sum(round, names, f"is out of proportion ({wrong})")


def out_of_proportion(
    update: Update, shared: Named, first: Named, settings: FederationSettings
) -> str | None:
    """The reason why an update is too far from what was sent, by its tensors' first size.

    Of one update, or of a total, there are no others to compare it with.
    """
    harmless = HARMLESS[unit_of(settings.method_settings.training.shared)]
    found = too_far([update], shared, first, factor=settings.norm_factor, harmless=harmless)
    return next(iter(found.values()), None)
