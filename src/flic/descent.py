"""DescStep over a stack: gradient descent of many clients' parameters at once.

Paper: algo:FLIC-FEDREP, steps 7, 8, 13 and 14.

Parameters carry a leading client axis and live in one contiguous buffer, so that a step
of the optimiser is one fused kernel for the whole stack. Clients are sorted by their number
of steps, descending: those still at work are then a prefix, and nobody waits or is masked.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from flic.shapes import Named

# A slice of the buffer that starts a multiple of 64 bytes from the next makes matrix products
# independent of a client's place in the stack, to the last bit.
ALIGNMENT = 16

Losses = dict[str, Float[Tensor, " clients"]]
"""Weighted loss terms of each client, by name; their sum is what descends."""

LossFn = Callable[[Named, int, int], Losses]
"""Loss terms from (parameters of the working clients, step, number of working clients)."""


class OptimiserConfig(BaseModel):
    """Settings of DescStep.  Paper: append:models (Adam, 0.001)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["adam", "sgd"] = "adam"
    learning_rate: float = Field(default=1e-3, gt=0)


@dataclass(frozen=True)
class Layout:
    """Where each named parameter of one client lies in its row of the buffer."""

    shapes: Mapping[str, tuple[int, ...]]

    @classmethod
    def of(cls, parameters: Named) -> "Layout":
        """Layout of stacked parameters, the client axis left out."""
        return cls({name: tuple(value.shape[1:]) for name, value in parameters.items()})

    def sizes(self) -> list[int]:
        """Lengths of the pieces of a row: each parameter, then the gap to the next."""
        pieces = []
        for shape in self.shapes.values():
            size = torch.Size(shape).numel()
            pieces += [size, -size % ALIGNMENT]
        return pieces

    def buffer(self, parameters: Named) -> Float[Tensor, "clients total"]:
        """One contiguous copy of all parameters, a row per client."""
        first = next(iter(parameters.values()))
        flat = first.new_zeros(len(first), sum(self.sizes()))
        for name, view in self.views(flat).items():
            view.copy_(parameters[name])
        return flat

    def views(self, flat: Float[Tensor, "clients total"]) -> dict[str, Tensor]:
        """Parameters as views of the buffer; one `split`, whose backward is one `cat`."""
        pieces = flat.split(self.sizes(), dim=1)[::2]
        items = zip(self.shapes.items(), pieces, strict=True)
        return {name: piece.unflatten(1, shape or (1,)) for (name, shape), piece in items}


def descend(
    parameters: Named,
    loss_fn: LossFn,
    working: Sequence[int],
    *,
    optimiser: OptimiserConfig,
    weight_decay: Mapping[str, float] | None = None,
) -> tuple[dict[str, Tensor], Losses]:
    """Parameters after one descent step per entry of `working`, and the mean loss terms.

    Args:
        parameters: stacked parameters, client axis first; left as they are.
        loss_fn: the loss terms of the first `working[step]` clients.
        working: how many clients still work at each step; never increases.
        optimiser: the rule of a step. Its state starts anew with every call.
        weight_decay: coefficient of ½‖·‖² by name; none where a name is absent.
    """
    layout = Layout.of(parameters)
    flat = layout.buffer(parameters)
    decay = _decay_row(layout, weight_decay or {}, like=flat)
    totals: Losses = {}
    step_fn = None
    for step, count in enumerate(working):
        if step_fn is None or count != len(leaf):
            leaf = flat[:count]
            leaf.requires_grad_(True)
            step_fn = _optimiser(leaf, optimiser, previous=step_fn)
        losses = loss_fn(layout.views(leaf), step, count)
        (leaf.grad,) = torch.autograd.grad(_total(losses), leaf)
        # The fused kernel ignores strides: a gradient laid out otherwise would be misread.
        assert leaf.grad.is_contiguous()
        if decay is not None:
            leaf.grad.addcmul_(leaf.detach(), decay)
        step_fn.step()
        _accumulate(totals, losses, clients=len(flat))
    return layout.views(flat.detach()), _mean_over_steps(totals, working, like=flat)


def _total(losses: Losses) -> Tensor:
    return torch.stack(list(losses.values())).sum()


def _optimiser(
    leaf: Tensor, config: OptimiserConfig, *, previous: torch.optim.Optimizer | None
) -> torch.optim.Optimizer:
    """An optimiser of `leaf` that goes on from the state of a longer prefix."""
    kind = torch.optim.Adam if config.kind == "adam" else torch.optim.SGD
    fresh = kind([leaf], lr=config.learning_rate, fused=True)
    if previous is not None:
        (old,) = previous.state.values() or ({},)
        fresh.state[leaf] = {
            key: value[: len(leaf)] if torch.is_tensor(value) and value.ndim else value
            for key, value in old.items()
        }
    return fresh


def _decay_row(layout: Layout, weight_decay: Mapping[str, float], *, like: Tensor) -> Tensor | None:
    if not any(weight_decay.values()):
        return None
    row = like.new_zeros(1, like.shape[1])
    for name, view in layout.views(row).items():
        view.fill_(weight_decay.get(name, 0.0))
    return row


def _accumulate(totals: Losses, losses: Losses, *, clients: int) -> None:
    for term, value in losses.items():
        if term not in totals:
            totals[term] = value.new_zeros(clients)
        totals[term][: len(value)] += value.detach()


def _mean_over_steps(totals: Losses, working: Sequence[int], *, like: Tensor) -> Losses:
    steps = torch.tensor(list(working))
    own = (steps[None, :] > torch.arange(len(like))[:, None]).sum(1).clamp_min(1)
    return {term: total / own.to(total) for term, total in totals.items()}
