"""The shared part of linked columns, kept for newcomers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from flic.data.schema import SharedFeatures
from flic.data.task import Task
from flic.methods.linked.agreement import Agreement
from flic.shapes import Named
from flic.silos.fit_settings import FitSettings


@dataclass(frozen=True, eq=False)
class LinkedState:
    """The shared part of a federation's linked columns."""

    spaces: Mapping[str, SharedFeatures] = field(default_factory=dict[str, SharedFeatures])
    seed: int = 0
    tensors: Named = field(default_factory=dict[str, Tensor])  # pooled sums and scores

    def agreed(self, settings: FitSettings, task: Task) -> Agreement:
        """The agreement between clients."""
        return Agreement(settings.method.linked, self.spaces, task, self.seed)

    def space_of(self, names: Sequence[str]) -> str | None:
        """Space with most of the given features; None if no space has any."""
        common = {s: len({*names} & {*shared.names}) for s, shared in self.spaces.items()}
        best = max(common, key=lambda space: common[space], default=None)
        return best if best is not None and common[best] else None
