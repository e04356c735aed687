"""What every coordinator of masked sums keeps to: enough silos, and the same again.

A silo that has unmasked a sum refuses one over any other set. So the coordinator remembers whom it
asked to unmask one before any of them does.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from flic.errors import FederationError
from flic.files import write_json
from flic.flower.federation_settings import FederationSettings
from flic.settings import read_model

Fewest = tuple[int, str, str]
"""Silos without which no round can count, the rule that says so, and what to do."""


class _Listed(BaseModel):
    model_config = ConfigDict(extra="forbid")
    round: int
    members: list[str]


@dataclass(frozen=True)
class Unmasking:
    """The silos that were last asked to unmask a sum, and the round of it, in a file."""

    path: Path

    def keep(self, round: int, members: Sequence[str]) -> None:
        """Remember silos before any of them is asked."""
        known = _Listed(round=round, members=[*members])
        write_json(self.path, known.model_dump())

    def members(self, round: int | None = None) -> frozenset[str]:
        """The silos, if they were asked for this round, or for any; nobody if none were."""
        known = read_model(_Listed, self.path)
        is_of_it = known is not None and round in (None, known.round)
        return frozenset(known.members if known is not None and is_of_it else ())


def fewest_in_sum(settings: FederationSettings, usual: Fewest) -> Fewest:
    """The fewest silos of a federation under masks; `usual` without them."""
    if settings.min_holders <= settings.quorum:
        return usual
    remedy = "Admit more: with two, each could read the other's part."
    return settings.min_holders, "min_holders", remedy


def not_among(names: Sequence[str]) -> str:
    """The reason why a silo is in no sum of others that were asked to unmask one."""
    return (
        f"failed before {', '.join(names)} were asked to unmask the sum, and whoever did is in "
        "no sum of other silos"
    )


def false_sum(round: int, names: Sequence[str], wrong: str) -> FederationError:
    """The reason to stop after a sum that is none."""
    return FederationError(
        f"round {round}: the sum of {', '.join(names)} {wrong}. One of them sent numbers that are "
        "no sums of rows, and masks hide which. Ask them to look at their tables; the rounds "
        "before are kept."
    )
