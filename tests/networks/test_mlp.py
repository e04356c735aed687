import pytest
import torch
from torch import Tensor, nn

from flic.engine.clients import pad_features
from flic.method_settings import OptimiserConfig
from flic.networks.descent import descend
from flic.networks.mlp import FIRST_LAYER, Mlp
from flic.seeding import generator

FEATURES, WIDTH, ROWS = (3, 5), 16, 7


def parameters_of(mlp: Mlp, *, width: int = WIDTH) -> list[dict[str, Tensor]]:
    """Parameters of each client, padded."""
    return [
        pad_features(mlp.init(dim, rng=generator(0, i), dtype=torch.float64), width)
        for i, dim in enumerate(FEATURES)
    ]


def stacked(mlp: Mlp) -> dict[str, Tensor]:
    own = parameters_of(mlp)
    return {name: torch.stack([p[name] for p in own]) for name in own[0]}


def rows() -> Tensor:
    """Rows of both clients, padded."""
    x = torch.zeros(len(FEATURES), ROWS, WIDTH, dtype=torch.float64)
    for i, dim in enumerate(FEATURES):
        x[i, :, :dim].normal_(generator=generator(1, i))
    return x


def torch_twin(mlp: Mlp, client: int) -> nn.Sequential:
    """The same network of one client, without padding, out of torch's own layers."""
    own = mlp.init(FEATURES[client], rng=generator(0, client), dtype=torch.float64)
    layers: list[nn.Module] = []
    for layer in range(len(own) // 2):
        weight, bias = own[f"embedding.{layer}.weight"], own[f"embedding.{layer}.bias"]
        linear = nn.Linear(*weight.shape, dtype=torch.float64)
        linear.load_state_dict({"weight": weight.T, "bias": bias})
        layers += [linear, nn.ReLU()]
    return nn.Sequential(*layers[:-1])


@pytest.mark.parametrize("hidden", [(), (8,), (8, 6, 5)])
def test_each_client_has_a_network_of_its_own(hidden):
    mlp = Mlp(WIDTH, hidden, 4)
    latent = mlp.apply(stacked(mlp), rows())
    for i, dim in enumerate(FEATURES):
        expected = torch_twin(mlp, i)(rows()[i, :, :dim])
        torch.testing.assert_close(latent[i], expected.detach(), atol=1e-14, rtol=0)


def test_gradients_are_those_of_torch():
    mlp = Mlp(WIDTH, (8, 6), 4)
    own = {name: value.requires_grad_() for name, value in stacked(mlp).items()}
    mlp.apply(own, rows()).square().sum().backward()
    for i, dim in enumerate(FEATURES):
        twin = torch_twin(mlp, i)
        twin(rows()[i, :, :dim]).square().sum().backward()
        for layer, linear in enumerate(twin[::2]):
            weight = own[f"embedding.{layer}.weight"].grad[i]
            weight = weight[:dim] if layer == 0 else weight
            torch.testing.assert_close(weight, linear.weight.grad.T)
            torch.testing.assert_close(own[f"embedding.{layer}.bias"].grad[i], linear.bias.grad)


@pytest.mark.parametrize("kind", ["adam", "sgd"])
def test_weights_of_padded_features_stay_exactly_zero(kind):
    mlp, before = Mlp(WIDTH, (8,), 4), stacked(Mlp(WIDTH, (8,), 4))
    trained, _ = descend(
        before,
        lambda p, *_: {"x": mlp.apply(p, rows()).square().sum((1, 2))},
        [2] * 5,
        optimiser=OptimiserConfig(kind=kind, learning_rate=0.01),
        weight_decay={FIRST_LAYER: 0.1},
    )
    for i, dim in enumerate(FEATURES):
        assert not trained[FIRST_LAYER][i, dim:].any()
        assert (trained[FIRST_LAYER][i, :dim] != before[FIRST_LAYER][i, :dim]).all()


def test_initial_weights_depend_on_the_features_and_not_on_the_padding():
    narrow, wide = (Mlp(w, (8,), 4) for w in (16, 64))
    a, b = (mlp.init(3, rng=generator(0), dtype=torch.float64) for mlp in (narrow, wide))
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert a[FIRST_LAYER].shape == (3, 8)


def test_initial_weights_are_uniform_within_one_over_root_fan_in():
    own = Mlp(200, (300,), 4).init(100, rng=generator(0), dtype=torch.float64)
    for layer, fan_in in enumerate((100, 300)):
        for part in ("weight", "bias"):
            assert own[f"embedding.{layer}.{part}"].abs().max() <= fan_in**-0.5
    weight = own[FIRST_LAYER]
    assert weight.abs().max().item() == pytest.approx(0.1, rel=1e-3)
    assert weight.var().item() == pytest.approx(0.1**2 / 3, rel=0.05)


def test_initial_weights_do_not_depend_on_the_precision_of_the_run():
    mlp = Mlp(WIDTH, (8,), 4)
    wide, narrow = (mlp.init(3, rng=generator(0), dtype=d) for d in (torch.double, torch.float))
    assert all(torch.equal(wide[name].float(), narrow[name]) for name in wide)


def test_masks_act_on_the_inner_layers():
    mlp = Mlp(WIDTH, (8,), 4)
    own, mask = stacked(mlp), torch.zeros(2, ROWS, 8, dtype=torch.float64)
    latent = mlp.apply(own, rows(), masks=[mask])
    # nothing passes the hidden layer: what is left is the last bias
    assert torch.equal(latent, own["embedding.1.bias"][:, None].expand_as(latent))


def test_dropout_keeps_the_mean():
    mlp = Mlp(WIDTH, (80, 60), 4, dropout=0.25)
    first, second = mlp.draw_masks([500], [generator(0)], dtype=torch.float64)
    assert first.shape == (1, 500, 80)
    assert second.shape == (1, 500, 60)
    torch.testing.assert_close(first.unique(), torch.tensor([0, 1 / 0.75]).double())
    assert first.mean().item() == pytest.approx(1, abs=0.02)


def test_dropout_of_a_client_does_not_depend_on_its_company():
    mlp = Mlp(WIDTH, (8, 6), 4, dropout=0.25)
    counts = [5, 3, 4]
    together = mlp.draw_masks(counts, [generator(0, i) for i in range(3)], dtype=torch.float64)
    for i, count in enumerate(counts):
        alone = mlp.draw_masks([count], [generator(0, i)], dtype=torch.float64)
        for mask, own in zip(together, alone, strict=True):
            assert torch.equal(mask[i, :count], own[0])
            assert not mask[i, count:].any()


def test_without_dropout_nothing_is_drawn():
    rng = generator(0)
    before = rng.get_state()
    assert Mlp(WIDTH, (8,), 4).draw_masks([ROWS], [rng], dtype=torch.float64) == []
    assert torch.equal(rng.get_state(), before)


def test_rows_are_left_as_they_are():
    mlp, x = Mlp(WIDTH, (8,), 4), rows()
    mlp.apply(stacked(mlp), x)
    assert torch.equal(x, rows())
