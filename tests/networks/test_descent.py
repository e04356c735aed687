"""`descend` against torch.optim, one client after another."""

import pytest
import torch
from torch import Tensor

from flic.method_settings import OptimiserConfig
from flic.networks.descent import VECTOR, descend

STEPS = [7, 4, 4, 1]  # of each client
WORKING = [4, 3, 3, 3, 1, 1, 1]
RATE = 0.03


def normal(*shape: int) -> Tensor:
    return torch.randn(
        shape, generator=torch.Generator().manual_seed(len(shape)), dtype=torch.double
    )


def start() -> dict[str, Tensor]:
    return {"weight": normal(4, 8, 2), "bias": normal(4, 2)}


X = normal(4, 5, 8) / 2


def terms(p: dict[str, Tensor], step: int, x: Tensor) -> dict[str, Tensor]:
    """Loss terms of one client or of a stack; `step` stands for the batch."""
    scores = torch.tanh(x @ p["weight"] + p["bias"].unsqueeze(-2))
    return {
        "data": ((scores - 0.1 * step) ** 2).sum((-2, -1)),
        "penalty": p["bias"].exp().sum(-1),
    }


def stacked(decay: dict[str, float] | None = None, *, kind: str = "adam"):
    optimiser = OptimiserConfig(kind=kind, learning_rate=RATE)
    return descend(
        start(),
        lambda p, step, count: terms(p, step, X[:count]),
        WORKING,
        optimiser=optimiser,
        weight_decay=decay,
    )


def alone(client: int, decay: dict[str, float], *, kind: str) -> tuple[dict, dict]:
    """The client's parameters by torch.optim, and the mean of its loss terms."""
    own = {name: value[client].clone().requires_grad_() for name, value in start().items()}
    groups = [{"params": [p], "weight_decay": decay.get(name, 0)} for name, p in own.items()]
    optimiser = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}[kind](groups, lr=RATE)
    history = []
    for step in range(STEPS[client]):
        optimiser.zero_grad()
        history.append(terms(own, step, X[client]))
        sum(history[-1].values()).backward()
        optimiser.step()
    return own, {term: torch.stack([h[term] for h in history]).mean() for term in history[0]}


@pytest.mark.parametrize("decay", [{}, {"weight": 0.3}, {"weight": 0.3, "bias": 0.1}])
@pytest.mark.parametrize("kind", ["adam", "sgd"])
def test_every_client_descends_as_if_alone(kind, decay):
    trained, losses = stacked(decay, kind=kind)
    for client in range(4):
        expected, means = alone(client, decay, kind=kind)
        for name, value in expected.items():
            torch.testing.assert_close(trained[name][client], value.detach(), atol=1e-12, rtol=0)
        for term, value in means.items():
            torch.testing.assert_close(losses[term][client], value.detach(), atol=1e-12, rtol=0)


def test_inputs_are_left_as_they_are():
    parameters, before = start(), start()
    step = {"optimiser": OptimiserConfig()}
    descend(parameters, lambda p, step, count: terms(p, step, X[:count]), WORKING, **step)
    for name, value in parameters.items():
        assert torch.equal(value, before[name])
        assert not value.requires_grad


def test_result_carries_no_gradient():
    trained, losses = stacked()
    assert not any(value.requires_grad for value in (*trained.values(), *losses.values()))


def test_without_steps_nothing_moves():
    trained, losses = descend(start(), terms, [], optimiser=OptimiserConfig())
    assert all(torch.equal(value, start()[name]) for name, value in trained.items())
    assert losses == {}


def test_parameters_the_loss_does_not_ask_for_stay_but_for_weight_decay():
    unused = {**start(), "unused": torch.ones(4, 1, dtype=torch.double)}
    sgd = OptimiserConfig(kind="sgd", learning_rate=0.5)
    for decay, expected in ((0.0, 1.0), (0.4, 0.8)):
        trained, _ = descend(
            unused,
            lambda p, step, count: terms(p, step, X[:count]),
            [4],
            optimiser=sgd,
            weight_decay={"unused": decay},
        )
        torch.testing.assert_close(trained["unused"], expected * unused["unused"])


LAYOUTS = {
    "transposed": lambda w: (normal(1, 8, 4) * w.mT).sum((1, 2)),
    "expanded": lambda w: w.sum((1, 2)),
    "sliced": lambda w: w[:, ::2].sum((1, 2)),
}


@pytest.mark.parametrize("loss", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_gradients_of_any_layout_are_read_rightly(loss):
    w = torch.zeros(1, 4, 8, dtype=torch.double, requires_grad=True)  # two vectors, no padding
    (gradient,) = torch.autograd.grad(loss(w).sum(), w)
    optimiser = OptimiserConfig(learning_rate=RATE)
    trained, _ = descend({"w": w}, lambda p, *_: {"x": loss(p["w"])}, [1], optimiser=optimiser)
    # the first step of Adam is the rate times the sign of the gradient
    torch.testing.assert_close(trained["w"], -RATE * gradient.sign(), atol=1e-7, rtol=0)


def test_weight_decay_of_one_parameter_does_not_reach_another():
    # autograd gives a and b one and the same gradient, and c an expanded one
    named = {name: torch.ones(1, VECTOR, dtype=torch.double) for name in "abc"}
    trained, _ = descend(
        named,
        lambda p, *_: {"x": ((p["a"] + p["b"]) ** 2 + p["c"]).sum(1)},
        [1],
        optimiser=OptimiserConfig(kind="sgd", learning_rate=0.1),
        weight_decay={"a": 1.0, "c": 2.0},
    )
    # gradients 4 + 1, 4 and 1 + 2
    assert [trained[name][0, 0].item() for name in "abc"] == pytest.approx([0.5, 0.6, 0.7])


def test_bits_of_a_client_do_not_depend_on_its_company():
    rng = torch.Generator().manual_seed(0)
    w, slopes = torch.randn(7, 13, generator=rng), torch.randn(30, 7, 13, generator=rng)

    def fall(who: slice) -> Tensor:
        steps = [len(w[who])] * len(slopes)
        trained, _ = descend(
            {"w": w[who]},
            lambda p, step, _: {"x": (p["w"] * slopes[step, who]).sum(1)},
            steps,
            optimiser=OptimiserConfig(),
        )
        return trained["w"]

    together = fall(slice(7))
    for i in range(7):
        assert torch.equal(fall(slice(i, i + 1))[0], together[i])


def test_every_call_starts_a_new_optimiser():
    once, _ = stacked()
    again, _ = stacked()
    assert torch.equal(once["weight"], again["weight"])
