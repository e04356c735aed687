"""FedAvg with fine-tuning (Collins et al. 2022): one shared model, fine-tuned by each client.

Paper: table:perso_algo, g_θi = g_θ. A visit starts from the shared θ and trains all of it;
the client sends the result and keeps it as its fine-tuned model.
"""

from collections.abc import Collection, Mapping

from torch import Tensor

from flic.networks.sharing.rule import Rule
from flic.shapes import Named


class FedAvgFT(Rule):
    """All of θ is shared; the personal copy is the fine-tuned one."""

    name = "fedavg-ft"
    has_shared_phase = False

    def shared_names(self, names: Collection[str]) -> set[str]:
        return set(names)

    def personal_names(self, names: Collection[str]) -> set[str]:
        return set(names)

    def begin(self, shared: Named, personal: Named) -> Mapping[str, Tensor]:
        del personal
        return shared

    def compose(self, shared: Named, personal: Named) -> dict[str, Tensor]:
        del shared
        return dict(personal)

    def upload(self, shared: Named, personal: Named) -> Mapping[str, Tensor]:
        del shared
        return personal


RULE = FedAvgFT()
