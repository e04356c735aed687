"""Names of the axes in tensor annotations, and the aliases used throughout.

clients   the leading client axis of a stack
rows      rows of a batch or a table (n)
k         latent dimension (Φ ⊆ ℝᵏ)
dim       input features after padding (k_i)
slots     class slots of a client, |𝒴_i| after padding
classes   C, all classes of the federation
"""

from collections.abc import Mapping

from torch import Tensor

Named = Mapping[str, Tensor]
"""Tensors by name; the only container of parameters."""
