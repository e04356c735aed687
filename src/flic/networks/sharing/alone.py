"""No sharing: every weight of θ_i is the client's own.

Not a row of table:perso_algo; the rule of the baselines that train alone.
"""

from collections.abc import Collection

from torch import Tensor

from flic.networks.sharing.rule import Rule
from flic.shapes import Named


class Alone(Rule):
    """θ_i = β_i."""

    name = "alone"
    has_shared_phase = False

    def shared_names(self, names: Collection[str]) -> set[str]:
        del names
        return set()

    def personal_names(self, names: Collection[str]) -> set[str]:
        return set(names)

    def compose(self, shared: Named, personal: Named) -> dict[str, Tensor]:
        del shared
        return dict(personal)


RULE = Alone()
