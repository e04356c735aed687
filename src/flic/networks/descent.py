"""DescStep over a stack: gradient descent of many clients' parameters at once.

Paper: algo:FLIC-FEDREP, steps 7, 8, 13 and 14.

Parameters have a leading client axis, so a step of the optimiser is one fused kernel for the
whole stack. Clients are sorted by their number of steps, descending: those still at work are then
a prefix of every tensor, and no client waits or is masked.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch.optim.adam import adam

from flic.method_settings import OptimiserConfig
from flic.shapes import Named

Losses = dict[str, Float[Tensor, " clients"]]
"""Weighted loss terms of each client, by name; their sum is minimised."""

# Elements in the widest vector register of a processor: 512 bits of float32.
VECTOR = 16

LossFn = Callable[[Named, int, int], Losses]
"""Loss terms from (parameters of the working clients, step, number of working clients)."""


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
        parameters: stacked parameters, client axis first; not changed.
        loss_fn: the loss terms of the first `working[step]` clients.
        working: number of clients that still work at each step; never increases.
        optimiser: the rule of a step. Its state starts anew with every call.
        weight_decay: coefficient of ½‖·‖² by name; none where a name is absent.
    """
    slabs = {name: _slab(value) for name, value in parameters.items()}
    shapes = {name: value.shape[1:] for name, value in parameters.items()}
    clients = len(next(iter(slabs.values())))
    state = _State.of(list(slabs.values()))
    totals: Losses = {}
    decay = weight_decay or {}
    for step, count in enumerate(working):
        leaves = {name: slab[:count].requires_grad_(True) for name, slab in slabs.items()}
        losses = loss_fn(_views(leaves, shapes), step, count)
        total = torch.stack(list(losses.values())).sum()
        gradients = torch.autograd.grad(total, list(leaves.values()), materialize_grads=True)
        values = [leaf.detach() for leaf in leaves.values()]
        # Not in place: autograd may return one tensor for two parameters, or an expanded one.
        gradients = [
            gradient.add(value, alpha=decay[name]) if decay.get(name) else gradient
            for name, value, gradient in zip(leaves, values, gradients, strict=True)
        ]
        _descent_step(values, gradients, state, optimiser)
        _accumulate(totals, losses, clients=clients)
    return _views(slabs, shapes), _mean_over_steps(totals, working)


def _slab(value: Tensor) -> Float[Tensor, "clients size"]:
    """A copy with one row per client, padded to whole vectors of the processor.

    The fused kernel rounds the rest after the last whole vector differently; without padding a
    result would depend on a client's place in the stack.
    """
    flat = value.detach().flatten(1)
    return torch.nn.functional.pad(flat, (0, -flat.shape[1] % VECTOR)).clone()


def _views(slabs: Named, shapes: Mapping[str, torch.Size]) -> dict[str, Tensor]:
    """Parameters in their own shapes, as views of the slabs."""
    views = {}
    for name, slab in slabs.items():
        size = shapes[name].numel()
        own = slab if size == slab.shape[1] else slab[:, :size]
        views[name] = own.unflatten(1, shapes[name])
    return views


@dataclass(frozen=True)
class _State:
    """Running means of the gradients and of their squares, and the number of steps taken."""

    first: list[Tensor]
    second: list[Tensor]
    steps: list[Tensor]

    @classmethod
    def of(cls, values: Sequence[Tensor]) -> "_State":
        first, second = ([torch.zeros_like(v) for v in values] for _ in range(2))
        return cls(first, second, [torch.zeros(()) for _ in values])


def _descent_step(
    values: Sequence[Tensor],
    gradients: Sequence[Tensor],
    state: _State,
    optimiser: OptimiserConfig,
) -> None:
    """One step of the working clients, in place. All have taken the same number of steps."""
    # The fused kernel ignores strides: it would misread a gradient with another layout.
    gradients = [gradient.contiguous() for gradient in gradients]
    if optimiser.kind == "sgd":
        for value, gradient in zip(values, gradients, strict=True):
            value.sub_(gradient, alpha=optimiser.learning_rate)
        return
    count = len(values[0])
    # The functional form, since the working clients are a shrinking prefix of every tensor.
    adam(
        list(values),
        gradients,
        [first[:count] for first in state.first],
        [second[:count] for second in state.second],
        [],
        state.steps,
        fused=True,
        amsgrad=False,
        beta1=0.9,
        beta2=0.999,
        lr=optimiser.learning_rate,
        weight_decay=0.0,
        eps=1e-8,
        maximize=False,
    )


def _accumulate(
    totals: Losses, losses: Mapping[str, Float[Tensor, " working"]], *, clients: int
) -> None:
    for term, value in losses.items():
        if term not in totals:
            totals[term] = value.new_zeros(clients)
        totals[term][: len(value)] += value.detach()


def _mean_over_steps(totals: Losses, working: Sequence[int]) -> Losses:
    clients = max(working, default=0)
    ranks = torch.arange(clients)[:, None]
    steps = (torch.tensor(list(working)) > ranks).sum(1)
    return {term: total / steps.clamp_min(1).to(total) for term, total in totals.items()}
