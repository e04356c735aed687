"""The convolutional embedding against plain PyTorch modules, image by image size."""

import pytest
import torch
from torch import Tensor, nn

from flic.errors import ConfigError
from flic.networks import cnn as module
from flic.networks.cnn import CHANNELS, SIDE_WITHOUT_PADDING, Cnn
from flic.networks.fused_trunk import kernels
from flic.networks.trunk_sizes import KERNEL
from flic.seeding import generator

SHAPES = [(28, 28), (16, 16), (8, 8), (20, 17), (15, 40), (4, 5)]
ROWS = [7, 5, 1]


def parameters_of(cnn: Cnn) -> list[dict[str, Tensor]]:
    rngs = [generator(0, "cnn", i) for i in range(len(ROWS))]
    return [cnn.init(cnn.dim, rng=rng, dtype=torch.float64) for rng in rngs]


def torch_twin(cnn: Cnn, own: dict[str, Tensor]) -> nn.Sequential:
    """The same network as one writes it first: bias and sigmoid before the pooling."""
    margin = 0 if min(cnn.shape) >= SIDE_WITHOUT_PADDING else KERNEL // 2
    layers = []
    for i in (1, 2):
        layers += [nn.Conv2d(CHANNELS[i - 1], CHANNELS[i], KERNEL, padding=margin)]
        layers += [nn.Sigmoid(), nn.MaxPool2d(2)]
    net = nn.Sequential(*layers, nn.Flatten(), nn.LazyLinear(cnn.latent_dim)).double()
    net(torch.zeros(1, 1, *cnn.shape, dtype=torch.float64))
    state = {"0": "conv1", "3": "conv2", "7": "latent"}
    with torch.no_grad():
        for place, name in state.items():
            weight = own[f"embedding.{name}.weight"]
            net[int(place)].weight.copy_(weight.mT if name == "latent" else weight)
            net[int(place)].bias.copy_(own[f"embedding.{name}.bias"])
    return net


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.filterwarnings("ignore:Lazy modules")
def test_values_and_gradients_are_those_of_plain_modules(shape: tuple[int, int]) -> None:
    cnn = Cnn(shape, 6)
    each = parameters_of(cnn)
    stack = {n: torch.stack([own[n] for own in each]).requires_grad_() for n in each[0]}
    x = torch.randn(len(ROWS), max(ROWS), cnn.dim, generator=generator(1), dtype=torch.float64)
    latent = cnn.apply(stack, x, rows=ROWS)
    for i, (own, count) in enumerate(zip(each, ROWS, strict=True)):
        net = torch_twin(cnn, own)
        expected = net(x[i, :count].view(count, 1, *shape))
        torch.testing.assert_close(latent[i, :count], expected, rtol=1e-11, atol=1e-12)
        loss = latent[i, :count].square().sum()
        found = torch.autograd.grad(loss, list(stack.values()), retain_graph=True)
        expected.square().sum().backward()
        wanted = [
            net[0].weight,
            net[0].bias,
            net[3].weight,
            net[3].bias,
            net[7].weight,
            net[7].bias,
        ]
        for gradient, parameter in zip(found, wanted, strict=True):
            grad = parameter.grad.mT if parameter is net[7].weight else parameter.grad
            torch.testing.assert_close(gradient[i], grad, rtol=1e-9, atol=1e-11)


def test_a_client_depends_on_its_own_rows_and_parameters_alone() -> None:
    cnn = Cnn((8, 8), 6)
    each = parameters_of(cnn)
    x = torch.randn(len(ROWS), max(ROWS), cnn.dim, generator=generator(1), dtype=torch.float64)
    both = cnn.apply({n: torch.stack([o[n] for o in each]) for n in each[0]}, x, rows=ROWS)
    for i, (own, count) in enumerate(zip(each, ROWS, strict=True)):
        alone = cnn.apply({n: v[None] for n, v in own.items()}, x[i : i + 1], rows=[count])
        assert torch.equal(alone[0, :count], both[i, :count])


def test_dropout_leaves_the_mean_of_the_trunk_alone() -> None:
    cnn = Cnn((8, 8), 6, dropout=0.25)
    [mask] = cnn.draw_masks([400, 3], [generator(0), generator(1)], dtype=torch.float64)
    assert mask.shape == (2, 400, cnn.trunk_dim)
    assert mask[0].mean().item() == pytest.approx(1, abs=0.02)
    assert set(mask[0].unique().tolist()) == {0.0, 1 / 0.75}
    assert not mask[1, 3:].any()


def test_images_too_small_for_two_poolings_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"3×9 pixels; expected at least 4×4"):
        Cnn((3, 9), 6)


@pytest.mark.filterwarnings("ignore:Lazy modules")
def test_dropped_channels_are_those_of_a_layer_before_the_pooling() -> None:
    """As Dropout2d right after the second convolution: a dropped channel is ½ everywhere."""
    cnn = Cnn((16, 16), 6, dropout=0.5, drops="channels")
    own = parameters_of(cnn)[0]
    [mask] = cnn.draw_masks([7], [generator(2)], dtype=torch.float64)
    assert mask.shape == (1, 7, CHANNELS[-1])
    assert {*mask.flatten().tolist()} == {0.0, 2.0}
    x = torch.randn(1, 7, cnn.dim, generator=generator(1), dtype=torch.float64)
    found = cnn.apply({n: value[None] for n, value in own.items()}, x, masks=[mask])
    twin = torch_twin(cnn, own)
    convolved = twin[:4](x.view(7, 1, 16, 16))
    expected = twin[4:](convolved * mask[0, :, :, None, None])
    torch.testing.assert_close(found[0], expected, rtol=1e-11, atol=1e-12)


def test_the_latent_may_have_an_activation() -> None:
    plain, leaky = Cnn((16, 16), 6), Cnn((16, 16), 6, activation="leaky-relu")
    own = {n: value[None] for n, value in parameters_of(plain)[0].items()}
    x = torch.randn(1, 7, plain.dim, generator=generator(1), dtype=torch.float64)
    expected = nn.functional.leaky_relu(plain.apply(own, x))
    assert (expected < 0).any()
    torch.testing.assert_close(leaky.apply(own, x), expected)


#: Image sizes and rows of each client; the last two fill several of the kernels' blocks.
FUSED = [*((shape, ROWS) for shape in SHAPES), ((16, 17), [130, 300, 37]), ((80, 76), [1, 2, 1])]


@pytest.mark.slow
@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize(("shape", "rows"), FUSED)
def test_fused_kernels_give_what_plain_pytorch_gives(
    monkeypatch: pytest.MonkeyPatch, shape: tuple[int, int], rows: list[int], dropout: float
) -> None:
    """Values and gradients of the compiled kernels beside those of the plain form."""
    assert kernels() is not None, "install the extra `fast`"
    network = Cnn(shape, 6, dropout, "channels")
    each = [network.init(network.dim, rng=generator(0, i), dtype=torch.float32) for i in range(3)]
    # Binary fractions: the first convolution is exact, so no rounding chooses between its pixels.
    for own in each:
        own["embedding.conv1.weight"] = torch.round(own["embedding.conv1.weight"] * 64) / 64
    x = torch.round(torch.randn(3, max(rows), network.dim, generator=generator(1)) * 4) / 4
    masks = network.draw_masks(rows, [generator(2, i) for i in range(3)], dtype=torch.float32)
    pull = torch.randn(3, max(rows), 6, generator=generator(3))
    found = []
    for own in (kernels, lambda: None):
        monkeypatch.setattr(module, "kernels", own)
        stack = {n: torch.stack([one[n] for one in each]).requires_grad_() for n in each[0]}
        latent = network.apply(stack, x, masks=masks, rows=rows)
        gradients = torch.autograd.grad((latent * pull).sum(), list(stack.values()))
        found.append((latent.detach(), gradients))
    (fused, fused_gradients), (plain, plain_gradients) = found
    torch.testing.assert_close(fused, plain, rtol=1e-5, atol=1e-6)
    for one, other in zip(fused_gradients, plain_gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5 * float(other.abs().max()))
