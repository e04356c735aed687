"""The form in which sums of linked features travel: by name, among some features or among all."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from flic.data.task import Regression
from flic.flower.federation_settings import FederationSettings
from flic.methods.linked.agreement import DETAILS
from flic.methods.linked.sums import Layout, Moments
from flic.shapes import Named

SPACE = "linked"
LINEAR = f"moments.{SPACE}.linear."
MAPPED = f"moments.{SPACE}.mapped."


@dataclass(frozen=True)
class SumsForm:
    """Sums as matrices and as they travel."""

    settings: FederationSettings

    @property
    def responses(self) -> int:
        """Columns beyond the features, which every silo has."""
        return int(isinstance(self.settings.common_task, Regression))

    def _layout(self, width: int, prefix: str, *, apart: bool) -> Layout:
        """The layout of sums of so many columns; `apart` where each has holders of its own."""
        features = width - self.responses
        block = tuple(range(features)) if apart else (0,) * features
        last = 0 if prefix == MAPPED else 1 + max(block, default=-1)
        return Layout((*block, *(last,) * self.responses), self.settings.common_task.num_outputs)

    def unpacked(self, state: Named, prefix: str, *, apart: bool = False) -> Moments:
        """Sums as they travel, as matrices."""
        named = {n.removeprefix(prefix): v for n, v in state.items() if n.startswith(prefix)}
        return self._layout(named["total"].shape[1], prefix, apart=apart).unpack(named)

    def spread(self, keys: Sequence[str], sums: Named, union: Sequence[str]) -> Moments:
        """One silo's sums among the features that several silos have."""
        place = {key: i for i, key in enumerate(union)}
        own = [i for i, key in enumerate(keys) if key in place]
        there = [place[keys[i]] for i in own] + [len(union)] * self.responses
        own += [len(keys)] * self.responses
        found = self.unpacked(sums, LINEAR).at(torch.tensor(own, dtype=torch.int64))
        width = len(union) + self.responses
        return found.spread(torch.tensor(there, dtype=torch.int64), width)

    def packed(self, sums: Moments) -> dict[str, Tensor]:
        """Sums of features that have holders of their own, as they travel."""
        layout = self._layout(sums.total.shape[1], LINEAR, apart=True)
        scatter = self.settings.method_settings.linked.scatter
        packed = layout.pack(sums, DETAILS[scatter]["linear"])
        return {LINEAR + name: value for name, value in packed.items()}
