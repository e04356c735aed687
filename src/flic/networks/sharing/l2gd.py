"""L2GD (Hanzely and Richtárik 2020): a mixture of a global and a local model.

Paper: table:perso_algo, θ_i = ω α + (1 − ω) β_i with ω = ½.
"""

from collections.abc import Collection

from torch import Tensor

from flic.networks.sharing.rule import Rule
from flic.shapes import Named

MIX = 0.5


class L2GD(Rule):
    """Global and local weights of the whole model; their mixture predicts."""

    name = "l2gd"

    def shared_names(self, names: Collection[str]) -> set[str]:
        return set(names)

    def personal_names(self, names: Collection[str]) -> set[str]:
        return set(names)

    def compose(self, shared: Named, personal: Named) -> dict[str, Tensor]:
        return {n: MIX * shared[n] + (1 - MIX) * personal[n] for n in personal}


RULE = L2GD()
