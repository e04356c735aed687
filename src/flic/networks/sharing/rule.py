"""Personalisation rule: splits θ into a shared part and a part that stays with the client.

Paper: table:perso_algo, a row per file beside this one. A new rule is a new file that
defines `RULE`; nothing else changes.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from typing import ClassVar

from torch import Tensor

from flic.method_settings import TrainingConfig
from flic.shapes import Named


class Rule(ABC):
    """One row of table:perso_algo. All maps are from names in θ to tensors."""

    name: ClassVar[str]

    #: Whether a separate phase trains the shared part after the local steps (step 13).
    has_shared_phase: ClassVar[bool] = True

    def with_settings(self, settings: TrainingConfig) -> "Rule":
        """The rule under these settings."""
        del settings
        return self

    @abstractmethod
    def shared_names(self, names: Collection[str]) -> set[str]:
        """Names of the weights of θ that the server holds, α."""

    @abstractmethod
    def personal_names(self, names: Collection[str]) -> set[str]:
        """Names of the weights of θ that the client has its own values of, β_i."""

    def begin(self, shared: Named, personal: Named) -> Mapping[str, Tensor]:
        """Personal part at the start of a visit."""
        del shared
        return personal

    @abstractmethod
    def compose(self, shared: Named, personal: Named) -> dict[str, Tensor]:
        """θ_i of the local model."""

    def upload(self, shared: Named, personal: Named) -> Mapping[str, Tensor]:
        """The client's version of the shared part, which it sends."""
        del personal
        return shared
