"""Names of the axes in tensor annotations, and the aliases used throughout.

clients   the leading client axis of a stack
rows      rows of a batch or a table (n)
k         latent dimension (Φ ⊆ ℝᵏ)
dim       input features after padding (k_i)
slots     class slots of a client, |𝒴_i| after padding
classes   C, all classes of the federation
"""

from collections.abc import Mapping
from typing import TypeVar

from torch import Tensor

T = TypeVar("T")

Named = Mapping[str, Tensor]
"""Tensors by name; the only container of parameters."""


def unlike_forms(known: Named, found: Named) -> list[str]:
    """Names of tensors that are missing, unknown, or of another shape or type than known ones."""

    def form(tensor: Tensor | None) -> object:
        return None if tensor is None else (tensor.shape, tensor.dtype)

    return [name for name in {**known, **found} if form(known.get(name)) != form(found.get(name))]


def under(prefix: str, named: Mapping[str, T]) -> dict[str, T]:
    """Values whose name starts with `prefix`."""
    return {name: value for name, value in named.items() if name.startswith(prefix)}


def stripped(prefix: str, named: Mapping[str, T]) -> dict[str, T]:
    """Values whose name starts with `prefix`, by the rest of it."""
    return {name.removeprefix(prefix): value for name, value in under(prefix, named).items()}
