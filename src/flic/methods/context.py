"""What a stack of clients has before it during one visit."""

from dataclasses import dataclass

from torch import Tensor

from flic.data.stacked import StackedData
from flic.methods.protocol import Generators, ServerState, Stack
from flic.shapes import Named


@dataclass(frozen=True)
class VisitContext:
    """Everything a stack has before it during one visit."""

    server: ServerState
    stack: Stack
    data: StackedData
    rngs: Generators

    def __len__(self) -> int:
        return len(self.data)

    def each(self, shared: Named) -> dict[str, Tensor]:
        """A copy of shared tensors for each client of the stack."""
        copies = {}
        for name, value in shared.items():
            copies[name] = value.expand(len(self), *value.shape).contiguous()
        return copies
