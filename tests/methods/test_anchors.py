import itertools

import pytest
import torch

from flic.errors import ConfigError
from flic.method_settings import AnchorConfig
from flic.methods.flic.anchors import MEAN, Anchors
from flic.methods.flic.covariance import FACTOR, LearntCovariances

C, K = 4, 6


def anchors(**settings) -> Anchors:
    config = AnchorConfig(**settings)
    return Anchors(config) if config.covariance == "identity" else LearntCovariances(config)


def initial(*, classes: int = C, k: int = K, dtype: torch.dtype = torch.float64, **settings):
    rng = torch.Generator().manual_seed(0)
    return anchors(**settings).initial(classes, k, rng=rng, dtype=dtype)


def test_anchors_travel_one_by_one_under_their_class():
    assert set(initial()) == {f"anchor.{c}.mean" for c in range(C)}
    factors = {f"anchor.{c}.factor" for c in range(C)}
    for covariance in ("diagonal", "full"):
        assert set(initial(covariance=covariance)) == set(initial()) | factors


@pytest.mark.parametrize("classes", [2, C, K])
@pytest.mark.parametrize("scale", [1.0, 3.0])
def test_equidistant_means_are_mutually_equidistant(classes, scale):
    named = initial(classes=classes, layout="equidistant", scale=scale)
    means = torch.stack([named[f"anchor.{c}.mean"] for c in range(classes)])
    distances = torch.pdist(means)
    # typical distance of two random means of that scale
    torch.testing.assert_close(distances, torch.full_like(distances, scale * (2 * K) ** 0.5))
    torch.testing.assert_close(means.norm(dim=1), torch.full((classes,), scale * K**0.5).double())


def test_more_classes_than_dimensions_cannot_be_equidistant():
    with pytest.raises(ConfigError, match=r"7 classes .* 6 dimensions.*latent_dim"):
        initial(classes=7, layout="equidistant")


def test_random_means_have_the_standard_deviation_asked_for():
    means = torch.stack(list(initial(classes=50, k=200, scale=3.0).values()))
    assert means.std().item() == pytest.approx(3, rel=0.02)
    assert means.mean().item() == pytest.approx(0, abs=0.1)


def test_anchors_do_not_depend_on_the_precision_of_the_run():
    for name, value in initial(dtype=torch.float32).items():
        assert torch.equal(value, initial()[name].float())


@pytest.mark.parametrize("covariance", ["identity", "diagonal", "full"])
def test_anchors_start_with_the_variance_asked_for(covariance):
    settings = {"covariance": covariance, "variance": 2.5, "eps": 0.25}
    own = anchors(**settings)
    found = own.gaussian(own.copies(initial(**settings), torch.arange(C)[None])).covariance[0]
    # ε is added where the factor is learnt
    diagonal = 2.5 if covariance == "identity" else 2.75
    torch.testing.assert_close(found, diagonal * torch.eye(K).double().expand(C, K, K))


@pytest.mark.parametrize("covariance", ["identity", "diagonal", "full"])
def test_copies_follow_each_clients_own_order(covariance):
    named = initial(covariance=covariance)
    named = {name: value + int(name.split(".")[1]) for name, value in named.items()}
    order = [[0, 1, 2, 3], [3, 1, 0, 2]]
    own = anchors(covariance=covariance)
    copies = own.copies(dict(reversed(named.items())), torch.tensor(order))
    assert copies.keys() == ({MEAN} if covariance == "identity" else {MEAN, FACTOR})
    for i, j in itertools.product(range(2), range(C)):
        for part, name in own.parts.items():
            assert torch.equal(copies[part][i, j], named[name(order[i][j])])


@pytest.mark.parametrize("bad", [{"scale": 0}, {"variance": -1}, {"eps": -1}, {"colour": "red"}])
def test_impossible_settings_are_refused(bad):
    with pytest.raises(ValueError, match=next(iter(bad))):
        AnchorConfig(**bad)
