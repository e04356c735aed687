"""Laws of the eight views, checked against the digits themselves."""

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from flic.data.client_data import ClientData, FederatedData
from flic.data.inspect import refuse_unusable
from flic.errors import DataError
from flic_paper.problems.store import load_arrays
from flic_paper.problems.views import ViewsConfig, make_views

MFEAT = {
    "fourier": "fou",
    "factors": "fac",
    "karhunen": "kar",
    "pixels": "pix",
    "zernike": "zer",
    "morphology": "mor",
}
LARGEST = {"pixels": 6, "optical": 16, "pen": 100}
SPACES = [*MFEAT, "optical", "pen"]


@pytest.fixture(scope="module")
def tables(need_data) -> dict[str, torch.Tensor]:
    need_data("mfeat/mfeat.npz")
    need_data("digits_optical_pen/digits_optical_pen.npz")
    mfeat, others = load_arrays("mfeat"), load_arrays("digits_optical_pen")
    arrays = {space: mfeat[key] for space, key in MFEAT.items()}
    arrays |= {"optical": others["x_optdigits"], "pen": others["x_penbased"]}
    return {space: torch.from_numpy(x.astype(np.float32)) for space, x in arrays.items()}


@pytest.fixture(scope="module")
def data(tables) -> FederatedData:
    return make_views(ViewsConfig(), seed=0)


def digits_of(client: ClientData, x: torch.Tensor) -> list[tuple[float, ...]]:
    """Original values of each row, for a view with a known range."""
    half = LARGEST[client.schema.space] / 2
    return [tuple(row) for row in (x * half + half).round().tolist()]


def test_clients_take_the_views_in_turn(data):
    assert [client.schema.space for client in data.clients] == SPACES * 5
    assert data.clients[3].name == "pixels-03"
    dims = [client.schema.dim for client in data.clients[:8]]
    assert dims == [76, 216, 64, 240, 47, 6, 64, 16]
    assert data.task.num_classes == 10


def test_no_two_spaces_have_a_feature_in_common(data):
    names = [name for client in data.clients[:8] for name in client.schema.features]
    assert len(set(names)) == len(names)


def test_sizes_lie_in_their_ranges(data):
    refuse_unusable(data)
    assert {len(client.classes) for client in data.clients} == {3, 4, 5}
    sizes = {size for client in data.clients for size in client.class_counts.values()}
    assert (min(sizes), max(sizes)) == (5, 12)
    for client in data.clients:
        assert client.test.y.bincount()[list(client.classes)].tolist() == [40] * len(client.classes)


def test_training_digits_of_a_view_are_disjoint_and_never_tested(data, tables):
    for space in LARGEST:
        known = {tuple(row) for row in tables[space].tolist()}
        members = [client for client in data.clients if client.schema.space == space]
        trained = [digit for c in members for digit in digits_of(c, c.train.x)]
        tested = {digit for c in members for digit in digits_of(c, c.test.x)}
        assert len(set(trained)) == len(trained)
        assert not set(trained) & tested
        assert set(trained) | tested <= known


def test_no_digit_is_trained_on_in_one_view_and_tested_in_another(tables, monkeypatch):
    """With every view replaced by the digit's own number, which then survives scaling."""
    numbers = {key: np.arange(2000)[:, None] for key in MFEAT.values()}
    numbers["y"] = load_arrays("mfeat")["y"]
    others = load_arrays("digits_optical_pen")
    monkeypatch.setattr(
        "flic_paper.problems.views.load_arrays", lambda name: numbers if name == "mfeat" else others
    )
    monkeypatch.setattr(
        "flic_paper.problems.views._centre_and_scale",
        lambda view, own: (torch.zeros(1), torch.ones(1)),
    )
    made = make_views(ViewsConfig(num_clients=80), seed=1)
    clients = [client for client in made.clients if client.schema.space in MFEAT]
    trained = {int(number) for client in clients for number in client.train.x}
    tested = {int(number) for client in clients for number in client.test.x}
    assert len(trained) > 800
    assert not trained & tested


def test_values_are_of_size_one(data):
    for client in data.clients:
        if client.schema.space in LARGEST:
            assert client.train.x.abs().max() <= 1
        else:
            assert client.train.x.mean(dim=0).abs().max() < 1e-4
            spread = client.train.x.std(dim=0, correction=0)
            assert spread[spread > 0] == pytest.approx(
                torch.ones(int((spread > 0).sum())), rel=1e-3
            )


def test_seed_decides_everything(data):
    again, other = (make_views(ViewsConfig(), seed=seed) for seed in (0, 1))
    for a, b in zip(data.clients, again.clients, strict=True):
        assert torch.equal(a.train.x, b.train.x)
        assert torch.equal(a.test.x, b.test.x)
    assert [c.classes for c in data.clients] != [c.classes for c in other.clients]


def test_too_many_clients_for_the_digits_are_refused(tables):
    with pytest.raises(DataError, match="Lower num_clients"):
        make_views(ViewsConfig(num_clients=600), seed=0)


@pytest.mark.parametrize(
    "settings",
    [
        {"classes_per_client": (1, 3)},
        {"classes_per_client": (3, 11)},
        {"rows_per_class": (0, 3)},
        {"rows_per_class": (5, 121)},
    ],
)
def test_impossible_ranges_are_refused_by_name(settings):
    with pytest.raises(ValidationError, match=f"{next(iter(settings))} is .* expected a lower"):
        ViewsConfig.model_validate(settings)
