"""The shared part of linked columns, kept for those who come later."""

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
    """What a federation shares of its linked columns."""

    spaces: Mapping[str, SharedFeatures] = field(default_factory=dict[str, SharedFeatures])
    seed: int = 0
    tensors: Named = field(default_factory=dict[str, Tensor])  # everyone's sums and scores

    def agreed(self, settings: FitSettings, task: Task) -> Agreement:
        """What clients agree on."""
        return Agreement(settings.method.linked, self.spaces, task, self.seed)

    def space_of(self, names: Sequence[str]) -> str | None:
        """Space that has most of some features; None if none has any."""
        common = {s: len({*names} & {*shared.names}) for s, shared in self.spaces.items()}
        best = max(common, key=lambda space: common[space], default=None)
        return best if best is not None and common[best] else None
