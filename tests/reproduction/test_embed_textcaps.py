"""From TextCaps annotations and pictures to a folder, with made encoders, and on to clients."""

import json
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from flic.data.inspect import refuse_unusable
from flic.errors import DataError
from flic_paper.problems.modalities import ModalitiesConfig, make_modalities

CLASSES = ("Bottle", "Car", "Food", "Book")
OTHER = {"two": ["Car", "Food"], "none": ["Dog"], "unlabelled": []}


def entry(image_id: str, classes: list[str], caption: str) -> dict:
    return {
        "image_id": image_id,
        "image_classes": classes,
        "caption_str": caption,
        "caption_id": 1,
        "reference_strs": [caption],
    }


@pytest.fixture
def script(load_script):
    return load_script("embed_textcaps")


@pytest.fixture
def annotations(tmp_path) -> list[Path]:
    """Ten pictures per class with two captions each, in two files, and some of other classes."""
    kept = [
        entry(f"{name}{i}", ["Poster", name], f"{name} number {i} {turn}")
        for name in CLASSES
        for i in range(10)
        for turn in ("once", "again")
    ]
    others = [entry(image_id, classes, "a caption") for image_id, classes in OTHER.items()]
    paths = [tmp_path / f"TextCaps_0.1_{part}.json" for part in ("train", "val")]
    for path, entries in zip(paths, (kept[::2] + others, kept[1::2]), strict=True):
        path.write_text(json.dumps({"dataset_name": "textcaps", "data": entries}))
    return paths


@pytest.fixture
def pictures(tmp_path) -> Path:
    folder = tmp_path / "train_images"
    folder.mkdir()
    for label, name in enumerate(CLASSES):
        for i in range(10):
            Image.new("RGB", (4, 4), (60 * label, 10 * i, 90)).save(folder / f"{name}{i}.jpg")
    return folder


def encode_images(files) -> np.ndarray:
    """Mean colour, its square and a one."""
    colours = np.stack([np.asarray(Image.open(file)).mean(axis=(0, 1)) / 255 for file in files])
    return np.concatenate([colours, colours**2, np.ones((len(files), 1))], axis=1)


def encode_texts(captions) -> np.ndarray:
    """How often each letter and number occurs."""
    counts = [Counter(caption.lower()) for caption in captions]
    return np.array([[count[chr(48 + j)] for j in range(75)] for count in counts]) + 0.1


@pytest.fixture
def made(script, annotations, pictures, tmp_path) -> Path:
    number = script.make_folder(
        tmp_path / "textcaps",
        pictures,
        annotations,
        encode_images=encode_images,
        encode_texts=encode_texts,
    )
    assert number == 80
    return tmp_path / "textcaps"


def test_pictures_of_exactly_one_class_are_kept(script, annotations):
    pairs = script.select_pairs(script.read_annotations(annotations))
    assert Counter(pair.label for pair in pairs) == {0: 20, 1: 20, 2: 20, 3: 20}
    for pair in pairs:
        assert pair.image_id.startswith(CLASSES[pair.label])
        assert pair.caption.startswith(CLASSES[pair.label])


def test_rows_of_the_folder_belong_together(made, pictures, script, annotations):
    image, text = (np.load(made / f"{which}.npy") for which in ("image", "text"))
    content = json.loads((made / "labels.json").read_text())
    assert content["classes"] == list(CLASSES)
    assert (image.shape, text.shape, image.dtype) == ((80, 7), (80, 75), np.float32)
    pairs = script.select_pairs(script.read_annotations(annotations))
    for row in (0, 41, 79):
        [vector] = encode_images([pictures / f"{pairs[row].image_id}.jpg"])
        assert image[row] == pytest.approx(vector, abs=1e-6)
        assert text[row] == pytest.approx(encode_texts([pairs[row].caption])[0])
        assert content["labels"][row] == pairs[row].label


def test_a_picture_with_two_captions_is_encoded_once(script, annotations, pictures):
    seen: list[Path] = []

    def counting(files) -> np.ndarray:
        seen.extend(files)
        return encode_images(files)

    pairs = script.select_pairs(script.read_annotations(annotations))
    assert len(script.embed_images(pairs, pictures, counting)) == 80
    assert len(seen) == len(set(seen)) == 40


def test_the_folder_becomes_clients(made):
    config = ModalitiesConfig(source="textcaps", folder=made, num_clients=4, prune=0.3)
    data = make_modalities(config, seed=0)
    refuse_unusable(data)
    assert [client.schema.space for client in data.clients] == ["image", "text"] * 2
    assert data.task.num_classes == 4


def test_a_missing_picture_is_named(script, annotations, pictures, tmp_path):
    (pictures / "Car3.jpg").unlink()
    encoders = {"encode_images": encode_images, "encode_texts": encode_texts}
    with pytest.raises(DataError, match=r"lacks 1 of 40 pictures, such as Car3\.jpg"):
        script.make_folder(tmp_path / "x", pictures, annotations, **encoders)
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"data": [{"image_classes": []}]}'])
def test_unusable_annotations_are_refused(script, content, pictures, tmp_path):
    path = tmp_path / "bad.json"
    path.write_text(content)
    encoders = {"encode_images": encode_images, "encode_texts": encode_texts}
    with pytest.raises(DataError, match="Annotations"):
        script.make_folder(tmp_path / "x", pictures, [path], **encoders)


@pytest.mark.parametrize(
    ("encoder", "module"), [("resnet18", "torchvision.models"), ("bert", "transformers")]
)
def test_a_missing_package_names_the_command(script, encoder, module, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(DataError, match="Run: pip install torchvision transformers"):
        getattr(script, encoder)()


def test_the_script_explains_itself(script):
    with pytest.raises(SystemExit, match="PICTURES DEST ANNOTATIONS"):
        script.main([])
