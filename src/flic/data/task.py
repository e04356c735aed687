"""Task of a federation: labels are classes, or real responses within a declared range.

All code that depends on the kind of labels uses the federation's task.
Paper: sec:methodo for classes, "Reference Distribution for Regression" for responses.
"""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from flic.errors import SchemaMismatch

if TYPE_CHECKING:
    from torch import Tensor

TaskName = Literal["classification", "regression"]


@dataclass(frozen=True)
class Classification:
    """Labels 0 … C − 1, with a score and an anchor for each."""

    name: ClassVar[TaskName] = "classification"
    num_classes: int  # C

    @property
    def num_outputs(self) -> int:
        """Number of outputs of a model per row."""
        return self.num_classes

    @property
    def num_anchors(self) -> int:
        """Number of anchors that the clients share."""
        return self.num_classes

    def encode(self, y: "Tensor") -> "Tensor":
        """Labels as networks learn them."""
        return y

    def decode(self, outputs: "Tensor") -> "Tensor":
        """Outputs of networks as scores of the labels."""
        return outputs


@dataclass(frozen=True)
class Regression:
    """Real responses, with one output and an anchor at either end of their range.

    Paper: "Reference Distribution for Regression", m(y) = y a + (1 − y) b for y in [0, 1].
    The same response must mean the same point at all clients. So the range that is mapped to
    [0, 1] is declared, from knowledge of the domain, and not taken from any client's rows.
    Responses beyond it are allowed: the map is linear there too.
    """

    name: ClassVar[TaskName] = "regression"
    num_outputs: ClassVar[int] = 1
    num_anchors: ClassVar[int] = 2
    low: float  # the response of anchor 0, b
    high: float  # the response of anchor 1, a

    def __post_init__(self) -> None:
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise SchemaMismatch(
                f"a Regression got the range {self.low} to {self.high}; expected two finite "
                "numbers, the lower one first. Declare between which values responses can lie."
            )

    @property
    def width(self) -> float:
        """Length of the range."""
        return self.high - self.low

    def encode(self, y: "Tensor") -> "Tensor":
        """Responses as networks learn them: the range mapped to [0, 1]."""
        return ((y.double() - self.low) / self.width).to(y.dtype)

    def decode(self, outputs: "Tensor") -> "Tensor":
        """Outputs of networks as responses in the units of the data."""
        return self.low + self.width * outputs


Task = Classification | Regression
