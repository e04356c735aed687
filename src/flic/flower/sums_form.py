"""The form in which sums of linked features travel: by name, among some features or among all."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from flic.data.task import Regression
from flic.flower.federation_settings import FederationSettings
from flic.methods.linked.agreement import most_detail
from flic.methods.linked.sums import ALONG, Layout, Moments
from flic.shapes import Named, stripped

SPACE = "linked"
LINEAR = f"moments.{SPACE}.linear."
MAPPED = f"moments.{SPACE}.mapped."

_OF_ALL = ("core", "overlap")  # sums of a silo's rows that are of no column


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
        named = stripped(prefix, state)
        return self._layout(named["total"].shape[1], prefix, apart=apart).unpack(named)

    def of_columns(self, state: Named, there: Sequence[int]) -> dict[str, Tensor]:
        """Sums of some of the linked features, from those of more, as they travel."""
        named, at, found = stripped(LINEAR, state), torch.tensor(there), dict[str, Tensor]()
        if "total" in named:
            found |= self.packed(self.unpacked(state, LINEAR, apart=True).at(at))
        for name in ALONG:
            if name in named:
                own = named[name] if name in _OF_ALL else named[name][at]
                found[LINEAR + name] = own.contiguous()
        return found

    def among(self, keys: Sequence[str], sums: Named, union: Sequence[str]) -> dict[str, Tensor]:
        """One silo's sums among the features that several silos have, as they travel."""
        named, found = stripped(LINEAR, sums), dict[str, Tensor]()
        if "total" in named:
            packed = self.packed(self.spread(keys, sums, union))
            found |= {name: packed[name] for name in sums}
        place = {key: i for i, key in enumerate(union)}
        there = torch.tensor([place[key] for key in keys], dtype=torch.int64)
        for name in ALONG:
            if name in named:
                own = named[name]
                if name not in _OF_ALL:
                    own = torch.zeros(len(union), *own.shape[1:]).double().index_copy(0, there, own)
                found[LINEAR + name] = own
        return found

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
        packed = layout.pack(sums, most_detail(scatter, "linear", self.settings.common_task))
        return {LINEAR + name: value for name, value in packed.items()}
