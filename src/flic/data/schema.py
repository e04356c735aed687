"""What one client's columns are.

First step of the flow: a schema says which space a client reads and which features of it,
hence the input dimension k_i that its embedding φ_i is built for.
"""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class FeatureSchema:
    """Features of one client, by name, inside a named space.

    Paper: sec:methodo, 𝒳_i ⊆ ℝ^{k_i}.
    Clients that declare the same space read the same features under the same names; names
    of different spaces have nothing to do with each other.
    """

    space: str
    features: tuple[str, ...]
    kind: Literal["vector"] = "vector"

    @property
    def dim(self) -> int:
        """Number of features, k_i."""
        return len(self.features)
