"""One shared model with personal class offsets.

Not in table:perso_algo: all of θ is shared except the bias of the last layer. The bias holds what
differs between clients with the same features: the frequency of each class.
"""

from collections.abc import Collection

from torch import Tensor

from flic.networks.sharing.rule import Rule
from flic.shapes import Named

_BIAS = "head.bias"


class Offsets(Rule):
    """α is everything up to the last layer's weights, β_i its bias."""

    name = "offsets"

    def shared_names(self, names: Collection[str]) -> set[str]:
        return set(names) - {_BIAS}

    def personal_names(self, names: Collection[str]) -> set[str]:
        return {_BIAS}

    def compose(self, shared: Named, personal: Named) -> dict[str, Tensor]:
        return {**shared, _BIAS: personal[_BIAS]}


RULE = Offsets()
