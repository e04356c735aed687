"""FedRep (Collins et al. 2021): a shared representation with personal heads.

Paper: table:perso_algo, θ_i = [α, β_i].
"""

from collections.abc import Collection

from torch import Tensor

from flic.networks.sharing.rule import Rule
from flic.shapes import Named, under


class FedRep(Rule):
    """α is the hidden layer, β_i the head. Without a hidden layer nothing is shared."""

    name = "fedrep"

    def shared_names(self, names: Collection[str]) -> set[str]:
        return set(names) - self.personal_names(names)

    def personal_names(self, names: Collection[str]) -> set[str]:
        return {name for name in names if name.startswith("head.")}

    def compose(self, shared: Named, personal: Named) -> dict[str, Tensor]:
        return {**shared, **under("head.", personal)}


RULE = FedRep()
