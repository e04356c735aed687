"""The control experiment: FLIC with each client's anchors shuffled.

Every client keeps C anchors and every loss of FLIC, but no anchor means the same class at two
clients. FLIC's gain over this is the worth of the *shared meaning* of the anchors. In a regression
each client draws at random which of the two anchors stands for low responses.
"""

import torch
from jaxtyping import Int
from torch import Tensor

from flic.data.stacked import StackedData
from flic.methods.flic.algorithm import Flic
from flic.seeding import generator


class PermutedAnchors(Flic):
    """FLIC whose client i aligns class c with the anchor π_i(c)."""

    name = "permuted-anchors"

    def anchor_of(self, data: StackedData) -> Int[Tensor, "clients classes"]:
        rngs = (generator(self.seed, "permutation", name) for name in data.names)
        return torch.stack([torch.randperm(data.task.num_anchors, generator=rng) for rng in rngs])
