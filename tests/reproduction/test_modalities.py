"""Laws of the two modalities, on real products and on a small made TextCaps folder."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from flic.data.client_data import ClientData, FederatedData
from flic.data.inspect import refuse_unusable
from flic.errors import DataError
from flic_paper.problems.modalities import ModalitiesConfig, make_modalities
from flic_paper.problems.pairs import Pairs, read_fashion, read_textcaps, twins

VECTORS = "mm_fashion/fashion5000_image1280_text384.npz"
LABELS = "mm_fashion/fashion5000_meta.parquet"


@pytest.fixture(scope="module")
def season(need_data) -> Pairs:
    need_data(VECTORS)
    need_data(LABELS)
    return read_fashion("season")


@pytest.fixture(scope="module")
def data(season) -> FederatedData:
    return make_modalities(ModalitiesConfig(num_clients=200, classes_per_client=3), seed=0)


def write_textcaps(folder: Path, rows: int = 80, *, seed: int = 0) -> Path:
    """Small made folder: four classes, well apart, each image with two captions."""
    rng = np.random.default_rng(seed)
    labels = np.arange(rows) % 4
    half = rows // 2
    image = rng.normal(size=(rows, 12)) + 3 * np.eye(12)[labels]
    image[half:] = image[:half]  # the labels repeat too, since half is a multiple of 4
    text = 0.05 * (rng.normal(size=(rows, 20)) + 3 * np.eye(20)[labels])
    folder.mkdir(exist_ok=True)
    np.save(folder / "image.npy", image.astype(np.float32))
    np.save(folder / "text.npy", text.astype(np.float32))
    content = {"classes": ["Bottle", "Car", "Food", "Book"], "labels": labels.tolist()}
    (folder / "labels.json").write_text(json.dumps(content))
    return folder


@pytest.fixture
def textcaps(tmp_path) -> Path:
    return write_textcaps(tmp_path / "textcaps")


def columns_of(client: ClientData) -> list[int]:
    return [int(name.removeprefix(client.schema.space)) for name in client.schema.features]


def rows_of(client: ClientData, x: torch.Tensor, pairs: Pairs) -> list[set[int]]:
    """All rows of the table that each row may be, found by its values."""
    table = pairs.vectors[client.schema.space][:, columns_of(client)]
    return [set((table == row).all(dim=1).nonzero().flatten().tolist()) for row in x]


def test_season_and_usage_have_the_classes_with_enough_rows(season):
    assert season.num_classes == 4
    assert sorted(season.y.bincount().tolist()) == [336, 1007, 1269, 2384]
    usage = read_fashion("usage")
    assert sorted(usage.y.bincount().tolist()) == [254, 313, 446, 3934]


def test_every_vector_has_length_root_d(season):
    for x in season.vectors.values():
        assert x.norm(dim=1) == pytest.approx(torch.full((len(x),), x.shape[1] ** 0.5), rel=1e-4)


@pytest.mark.slow
def test_two_hundred_clients_alternate_and_can_be_used(data):
    refuse_unusable(data)
    assert len(data.clients) == 200
    assert [client.name for client in data.clients[:3]] == ["image-000", "text-001", "image-002"]
    for client in data.clients:
        assert len(client.classes) == 3
        assert min(client.class_counts.values()) >= 2
        assert 0 < len(client.test) <= 100
        assert client.schema.space == client.name.split("-")[0]
    held = {label for client in data.clients for label in client.classes}
    assert held == {0, 1, 2, 3}


def test_up_to_a_tenth_of_the_coordinates_is_missing(data, season):
    shares = []
    for client in data.clients:
        whole = season.vectors[client.schema.space].shape[1]
        shares.append(1 - client.schema.dim / whole)
    assert min(shares) >= 0
    assert max(shares) <= 0.1 + 1e-3
    assert np.mean(shares) == pytest.approx(0.05, abs=0.01)
    assert len({client.schema.features for client in data.clients}) > 190


def test_each_row_trains_one_client_of_a_modality_and_none_that_is_tested(textcaps):
    pairs = read_textcaps(textcaps)
    config = ModalitiesConfig(source="textcaps", folder=textcaps, num_clients=6)
    made = make_modalities(config, seed=3)
    trained = {"image": 0, "text": 0}
    groups: dict[str, set[int]] = {"train": set(), "test": set()}
    group = twins(pairs)
    for client in made.clients:
        trained[client.schema.space] += len(client.train)
        for which, split in (("train", client.train), ("test", client.test)):
            for rows, label in zip(rows_of(client, split.x, pairs), split.y, strict=True):
                assert {int(pairs.y[row]) for row in rows} == {int(label)}
                groups[which] |= {int(group[row]) for row in rows}
    assert not groups["train"] & groups["test"]
    assert trained == {"image": 64, "text": 64}  # 80 % of the rows, each once
    texts = [c for c in made.clients if c.schema.space == "text"]  # no two texts are equal
    ids = [row for c in texts for [row] in rows_of(c, c.train.x, pairs)]
    assert len(set(ids)) == len(ids)


@pytest.mark.slow
def test_real_rows_of_training_are_never_tested_on(data, season):
    texts = [client for client in data.clients if client.schema.space == "text"][:3]
    group = twins(season)

    def groups(client: ClientData, x: torch.Tensor) -> set[int]:
        return {int(group[row]) for rows in rows_of(client, x, season) for row in rows}

    trained = set().union(*(groups(client, client.train.x) for client in texts))
    tested = set().union(*(groups(client, client.test.x) for client in texts))
    assert not trained & tested


def test_groups_of_equal_rows_are_small_so_a_fifth_is_for_testing(season):
    assert twins(season).bincount().max() < 0.02 * len(season.y)


def test_twins_are_rows_that_share_an_image_or_a_text():
    image = torch.tensor([[1.0], [2.0], [2.0], [3.0], [4.0]])
    text = torch.tensor([[1.0], [1.0], [5.0], [7.0], [8.0]])
    group = twins(Pairs({"image": image, "text": text}, torch.zeros(5).long(), 1)).tolist()
    assert group[0] == group[1] == group[2]
    assert len(set(group)) == 3


def test_seed_decides_everything(textcaps):
    config = ModalitiesConfig(source="textcaps", folder=textcaps, num_clients=4)
    first, again, other = (make_modalities(config, seed=seed) for seed in (0, 0, 1))
    for a, b in zip(first.clients, again.clients, strict=True):
        assert a.schema == b.schema
        assert torch.equal(a.train.x, b.train.x)
        assert torch.equal(a.test.x, b.test.x)
    pairs = read_textcaps(textcaps)
    tested = [
        {row for c in made.clients for rows in rows_of(c, c.test.x, pairs) for row in rows}
        for made in (first, other)
    ]
    assert tested[0] != tested[1]


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"source": "textcaps"}, "folder is missing; source 'textcaps' reads"),
        ({"source": "textcaps", "folder": "x", "label": "usage"}, "label is 'usage'; source"),
        ({"folder": "x"}, "folder is 'x'; source 'fashion' is found through FLIC_DATA"),
        ({"classes_per_client": 1}, "greater than or equal to 2"),
        ({"prune": 1.0}, r"less than or equal to 0\.9"),
        ({"label": "colour"}, "'season' or 'usage'"),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings, sentence):
    with pytest.raises(ValidationError, match=sentence):
        ModalitiesConfig.model_validate(settings)


def test_more_classes_than_there_are_and_too_many_clients_are_refused(textcaps):
    def make(**changes):
        return make_modalities(
            ModalitiesConfig(source="textcaps", folder=textcaps, **changes), seed=0
        )

    with pytest.raises(DataError, match="has 4 classes and a client wants 5"):
        make(classes_per_client=5)
    with pytest.raises(DataError, match="at least one row per shard"):
        make(num_clients=200)


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("image.npy", None, "expected image.npy, text.npy and labels.json"),
        ("text.npy", b"no array", "cannot be read"),
        ("labels.json", b"{", "cannot be read"),
        ("labels.json", b'{"classes": ["a", "b"]}', "KeyError"),
        ("labels.json", b'{"classes": ["a", "b"], "labels": [0, 1]}', r"shape \[80, 12\]"),
        ("labels.json", json.dumps({"classes": ["a"], "labels": [7] * 80}).encode(), "other than"),
        ("labels.json", json.dumps({"classes": "ab", "labels": ["a"] * 80}).encode(), "other than"),
    ],
)
def test_a_folder_that_cannot_be_used_is_refused(name, content, sentence, textcaps):
    (textcaps / name).unlink()
    if content is not None:
        (textcaps / name).write_bytes(content)
    with pytest.raises(DataError, match=sentence):
        read_textcaps(textcaps)


def test_pickled_vectors_are_refused(textcaps):
    np.save(textcaps / "image.npy", np.array([{}] * 80, dtype=object))
    with pytest.raises(DataError, match="allow_pickle=False"):
        read_textcaps(textcaps)


def test_fashion_without_its_table_says_where_to_put_it(need_data, tmp_path, monkeypatch):
    (tmp_path / "mm_fashion").mkdir()
    (tmp_path / VECTORS).symlink_to(need_data(VECTORS))
    monkeypatch.setenv("FLIC_DATA", str(tmp_path))
    with pytest.raises(DataError, match=r"fashion5000_meta\.parquet.*Put it beside the vectors"):
        read_fashion("season")
    shutil.copyfile(tmp_path / VECTORS, tmp_path / LABELS)
    with pytest.raises(DataError, match="expected a Parquet table"):
        read_fashion("season")
