"""The agreement of clients that link features: settings, shared names, layout of the sums."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from flic.data.client_data import Split
from flic.data.schema import SharedFeatures
from flic.data.task import Classification, Task
from flic.method_settings import LinkedConfig, Scatter
from flic.methods.linked.along import directions_between
from flic.methods.linked.sums import Detail, Layout, Moments
from flic.seeding import generator
from flic.shapes import Named, stripped

SumsKind = Literal["linear", "mapped"]
"""Sums of the features as they are, or under the random map."""

DETAILS: Mapping[Scatter, Mapping[SumsKind, Detail]] = {
    "off": {"linear": "off", "mapped": "off"},
    "diagonal": {"linear": "diagonal", "mapped": "diagonal"},
    "directions": {"linear": "directions", "mapped": "directions"},
    "projected": {"linear": "diagonal", "mapped": "full"},
    "full": {"linear": "full", "mapped": "full"},
}
"""Detail sent of the scatter of each kind of sums, from least to most."""

KEPT = "kept."
"""Beginning of the names of sums that a client did not tell, but adds to those that it is sent."""

PRIVATE = "private"
"""The group of clients that share nothing."""


def least_of(agreed: Scatter, own: Scatter) -> Scatter:
    """The most of a scatter that clients agreed on, and that one of them wants to send."""
    if agreed == own or (agreed, own) == ("directions", "full"):
        return agreed
    order = [*DETAILS]
    least = agreed if order.index(agreed) < order.index(own) else own
    return "diagonal" if least == "directions" else least  # the others send other products


def most_detail(scatter: Scatter, kind: SumsKind, task: Task) -> Detail:
    """Most detail that may be sent of the scatter of a kind of sums.

    A response has one direction, which says too little of the columns beside it.
    """
    detail = DETAILS[scatter][kind]
    is_response = not isinstance(task, Classification)
    return "full" if detail == "directions" and is_response else detail


@dataclass(frozen=True)
class PooledSums:
    """Sums of all clients of a space."""

    source: Tensor  # the tensor they were unpacked from
    sums: Moments
    shift: Float[Tensor, " p"]
    scale: Float[Tensor, " p"]
    told: Moments  # without those that this client alone adds

    @cached_property
    def is_of_one_block(self) -> bool:
        """True if the same rows are behind every entry of the scatter."""
        dof = self.sums.dof
        return float(dof.min()) == float(dof.max()) > 0

    @cached_property
    def directions(self) -> Float[Tensor, "p d"]:
        """Directions between the pooled means of the classes, the same for all clients."""
        told, count = self.told, self.told.count
        means = torch.where(count > 0, told.total / count.clamp_min(1), told.mean)
        return directions_between(means, told.deviation, told.dof.diagonal())

    @cached_property
    def spectrum(self) -> tuple[Tensor, Tensor]:
        """Eigenvalues and eigenvectors of the scatter in common units."""
        return torch.linalg.eigh(self.sums.scatter / self.scale[:, None] / self.scale)


@dataclass(frozen=True)
class Agreement:
    """Settings and names that all clients agree on beforehand."""

    settings: LinkedConfig
    shared: Mapping[str, SharedFeatures]  # of each space
    task: Task
    seed: int
    # Made once, for all clients in turn.
    _everyone: dict[tuple[str, SumsKind], PooledSums] = field(default_factory=dict, compare=False)
    _layouts: dict[tuple[str, SumsKind], Layout] = field(default_factory=dict, compare=False)
    _maps: dict[str, tuple[Tensor, Tensor]] = field(default_factory=dict, compare=False)

    @property
    def num_classes(self) -> int:
        """Number of classes; 1 in a regression."""
        return self.task.num_classes if isinstance(self.task, Classification) else 1

    @property
    def responses(self) -> int:
        """Columns that a response adds to the features."""
        return 0 if isinstance(self.task, Classification) else 1

    def group(self, space: str) -> str:
        """Tuning group of a space's clients: the space, or one group of all that share nothing."""
        shares_nothing = len(self.shared) > 1 and not self.shared[space].names
        return PRIVATE if shares_nothing else space

    def detail(self, kind: SumsKind) -> Detail:
        """Most detail that may be sent of the scatter of a kind of sums."""
        return most_detail(self.settings.scatter, kind, self.task)

    def layout(self, space: str, kind: SumsKind) -> Layout:
        """Layout in which the sums of a space are sent."""
        if (space, kind) not in self._layouts:
            block = self.shared[space].block
            own = max(block, default=-1) + 1  # of the response, which all clients have
            if kind == "mapped":
                block, own = (0,) * self.settings.random_features, 0
            made = Layout((*block, *(own,) * self.responses), self.num_classes)
            self._layouts[space, kind] = made
        return self._layouts[space, kind]

    def everyone(self, state: Named, space: str, kind: SumsKind) -> PooledSums:
        """The pooled sums of a space."""
        prefix, layout = f"moments.{space}.{kind}.", self.layout(space, kind)
        source = state[prefix + "total"]
        known = self._everyone.get((space, kind))
        if known is None or known.source is not source:
            sums = layout.unpack(stripped(prefix, state))
            kept = stripped(KEPT + prefix, state)
            told = sums - layout.unpack(kept) if kept else sums
            known = PooledSums(source, sums, sums.mean, sums.deviation, told)
            self._everyone[space, kind] = known
        return known

    def random_map(self, space: str) -> tuple[Float[Tensor, "p m"], Float[Tensor, " m"]]:
        """Directions of shared features, each seeded by its key, and offsets."""
        if space not in self._maps:
            width, names = self.settings.random_features, self.shared[space].names
            own = [torch.randn(width, generator=generator(0, "linked", space, n)) for n in names]
            offsets = 2 * torch.rand(width, generator=generator(0, "linked", space)).double() - 1
            self._maps[space] = torch.stack(own).double(), offsets
        return self._maps[space]


def class_of(agreed: Agreement, split: Split) -> Int[Tensor, " rows"]:
    """Class of each row; 0 for all rows in a regression."""
    return torch.zeros(len(split), dtype=torch.int64) if agreed.responses else split.y


def columns_of(agreed: Agreement, split: Split) -> Float[Tensor, "rows own"]:
    """Features of rows, and in a regression their response."""
    x = split.x.double()
    return torch.cat([x, split.y.double()[:, None]], 1) if agreed.responses else x
