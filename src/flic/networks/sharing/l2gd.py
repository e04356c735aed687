"""L2GD (Hanzely and Richtárik 2020): a mixture of a global and a local model.

Paper: table:perso_algo, θ_i = ω α + (1 − ω) β_i; ω is `training.l2gd_mix`.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from flic.method_settings import TrainingConfig
from flic.networks.sharing.rule import Rule
from flic.shapes import Named


@dataclass(frozen=True)
class L2GD(Rule):
    """Global and local weights of the whole model; their mixture predicts."""

    name: ClassVar[str] = "l2gd"
    mix: float = 0.5  # ω

    def with_settings(self, settings: TrainingConfig) -> "L2GD":
        return L2GD(settings.l2gd_mix)

    def shared_names(self, names: Collection[str]) -> set[str]:
        return set(names)

    def personal_names(self, names: Collection[str]) -> set[str]:
        return set(names)

    def compose(self, shared: Named, personal: Named) -> dict[str, Tensor]:
        return {n: self.mix * shared[n] + (1 - self.mix) * personal[n] for n in personal}


RULE = L2GD()
