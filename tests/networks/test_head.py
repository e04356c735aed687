import pytest
import torch
from torch import Tensor, nn

from flic.networks.sharing import SplitModel
from flic.seeding import generator

K, C = 4, 6


def thetas_of(model: SplitModel, clients: int = 2) -> dict[str, Tensor]:
    own = [model.init(rng=generator(0, i), dtype=torch.float64) for i in range(clients)]
    return {name: torch.stack([theta[name] for theta in own]) for name in own[0]}


def torch_twin(theta: dict[str, Tensor], client: int) -> nn.Sequential:
    """The same model of one client out of torch's own layers."""
    layers: list[nn.Module] = []
    for part in ("hidden", "head"):
        if f"{part}.weight" in theta:
            weight, bias = theta[f"{part}.weight"][client], theta[f"{part}.bias"][client]
            linear = nn.Linear(*weight.shape, dtype=torch.float64)
            linear.load_state_dict({"weight": weight.T, "bias": bias})
            layers += [linear, nn.LeakyReLU()]
    return nn.Sequential(*layers[:-1])


def latent() -> Tensor:
    return torch.randn(2, 9, K, generator=generator(1), dtype=torch.float64)


@pytest.mark.parametrize("hidden_dim", [None, 5])
def test_scores_are_those_of_torch_for_every_client(hidden_dim):
    model = SplitModel(K, hidden_dim, C)
    theta = thetas_of(model)
    scores = model.apply(theta, latent())
    assert scores.shape == (2, 9, C)
    for i in range(2):
        expected = torch_twin(theta, i)(latent()[i])
        torch.testing.assert_close(scores[i], expected.detach(), atol=1e-14, rtol=0)


def test_gradients_are_those_of_torch():
    model = SplitModel(K, 5, C)
    theta = thetas_of(model)
    twin = torch_twin(theta, 1)
    twin(latent()[1]).square().sum().backward()
    own = {name: value.requires_grad_() for name, value in theta.items()}
    model.apply(own, latent()).square().sum().backward()
    for part, linear in (("hidden", twin[0]), ("head", twin[2])):
        torch.testing.assert_close(own[f"{part}.weight"].grad[1], linear.weight.grad.T)
        torch.testing.assert_close(own[f"{part}.bias"].grad[1], linear.bias.grad)


def test_representation_is_what_the_head_reads():
    for hidden_dim in (None, 5):
        model = SplitModel(K, hidden_dim, C)
        theta = thetas_of(model)
        inner = model.represent(theta, latent())
        head = SplitModel(inner.shape[2], None, C)
        assert torch.equal(head.apply(theta, inner), model.apply(theta, latent()))


def test_without_a_hidden_layer_the_representation_is_the_latent_row():
    model = SplitModel(K, None, C)
    assert torch.equal(model.represent(thetas_of(model), latent()), latent())


@pytest.mark.parametrize("hidden_dim", [None, 5])
def test_parameters_have_the_shapes_of_the_layers(hidden_dim):
    theta = SplitModel(K, hidden_dim, C).init(rng=generator(0), dtype=torch.float32)
    hidden = {"hidden.weight": (K, 5), "hidden.bias": (5,)} if hidden_dim else {}
    expected = {**hidden, "head.weight": (hidden_dim or K, C), "head.bias": (C,)}
    assert {name: tuple(value.shape) for name, value in theta.items()} == expected


def test_latent_rows_are_left_as_they_are():
    model, z = SplitModel(K, 5, C), latent()
    model.apply(thetas_of(model), z)
    assert torch.equal(z, latent())
