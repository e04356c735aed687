"""From TextCaps annotations and pictures, drawn here, to a folder, and on to a federation."""

import json
import os
import random
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageDraw
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GroupKFold, cross_val_score

from flic.data.inspect import refuse_unusable
from flic.errors import DataError
from flic_paper.problems.modalities import ModalitiesConfig, make_modalities
from flic_paper.problems.pairs import read_textcaps, twins

ROOT = Path(__file__).parents[2]
OTHER = {"two": ["Car", "Food"], "none": ["Dog"], "unlabelled": []}
COLOURS = ["firebrick", "seagreen", "navy", "orange", "purple"]
COLOURS += ["teal", "olive", "crimson", "chocolate", "indigo"]

#: What pictures are of. Words of a class have meaning in common, not letters: only what an
#: encoder has learnt can bring its captions together.
WORDS = {
    "Bottle": "wine beer cola lemonade champagne whisky juice vodka cider rum",
    "Car": "taxi van truck bus sedan jeep limousine ambulance lorry tractor",
    "Food": "pizza bread soup cheese cake rice salad sausage pasta steak",
    "Book": "novel author chapter paperback library poetry publisher biography atlas page",
}
CLASSES = tuple(WORDS)
EXTRA = "-c constraints.txt -e './reproduction[textcaps]'"


def draw_bottle(draw: ImageDraw.ImageDraw, colour: str) -> None:
    draw.rounded_rectangle((34, 40, 62, 92), 6, fill=colour)
    draw.rectangle((43, 10, 53, 42), fill=colour)
    draw.rectangle((36, 55, 60, 75), fill="white")


def draw_car(draw: ImageDraw.ImageDraw, colour: str) -> None:
    draw.rectangle((8, 48, 88, 70), fill=colour)
    draw.polygon([(22, 48), (34, 30), (64, 30), (76, 48)], fill=colour)
    draw.ellipse((16, 60, 36, 80), fill="black", outline="grey", width=4)
    draw.ellipse((60, 60, 80, 80), fill="black", outline="grey", width=4)


def draw_food(draw: ImageDraw.ImageDraw, colour: str) -> None:
    draw.ellipse((10, 10, 86, 86), fill="wheat", outline="saddlebrown", width=6)
    for x, y in ((35, 35), (60, 30), (50, 55), (30, 62), (66, 60)):
        draw.ellipse((x - 7, y - 7, x + 7, y + 7), fill=colour)


def draw_book(draw: ImageDraw.ImageDraw, colour: str) -> None:
    draw.rectangle((20, 8, 78, 88), fill=colour)
    draw.rectangle((20, 8, 28, 88), fill="black")
    for y in (24, 34, 44):
        draw.line((36, y, 70, y), fill="white", width=3)


DRAWINGS: dict[str, Callable[[ImageDraw.ImageDraw, str], None]] = {
    "Bottle": draw_bottle,
    "Car": draw_car,
    "Food": draw_food,
    "Book": draw_book,
}


def entry(image_id: str, classes: list[str], caption: str) -> dict:
    """An entry as the published annotations have it, one per caption."""
    return {
        "image_id": image_id,
        "image_classes": classes,
        "image_width": 96,
        "image_height": 96,
        "image_name": image_id,
        "image_path": f"train/{image_id}.jpg",
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
        entry(f"{name}{i}", ["Poster", name], caption)
        for name, words in WORDS.items()
        for i, word in enumerate(words.split())
        for caption in (f"A picture that shows {word}.", f"White letters say '{word}'.")
    ]
    others = [entry(image_id, classes, "a caption") for image_id, classes in OTHER.items()]
    paths = [tmp_path / f"TextCaps_0.1_{part}.json" for part in ("train", "val")]
    for path, entries in zip(paths, (kept[::2] + others, kept[1::2]), strict=True):
        path.write_text(json.dumps({"dataset_name": "textcaps", "data": entries}))
    return paths


@pytest.fixture
def pictures(tmp_path) -> Path:
    """Drawings of their classes, at an angle, on light grounds."""
    folder, rng = tmp_path / "train_images", random.Random(0)
    folder.mkdir()
    for name in CLASSES:
        for i, colour in enumerate(COLOURS):
            ground = tuple(rng.randrange(180, 256) for _ in range(3))
            picture = Image.new("RGB", (96, 96), ground)
            DRAWINGS[name](ImageDraw.Draw(picture), colour)
            picture.rotate(rng.uniform(-10, 10), fillcolor=ground).save(folder / f"{name}{i}.jpg")
    return folder


def encode_images(files) -> np.ndarray:
    """Mean colour, its square and a one."""
    colours = np.stack([np.asarray(Image.open(file)).mean(axis=(0, 1)) / 255 for file in files])
    return np.concatenate([colours, colours**2, np.ones((len(files), 1))], axis=1)


def encode_texts(captions) -> np.ndarray:
    """Counts of each letter and number."""
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
        assert any(word in pair.caption for word in WORDS[CLASSES[pair.label]].split())


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


def test_a_picture_that_cannot_be_read_is_named(script, pictures):
    (pictures / "Car3.jpg").write_bytes(b"not a picture")
    with pytest.raises(DataError, match=r"Car3\.jpg' cannot be read .* Download it again"):
        script.open_picture(pictures / "Car3.jpg")


@pytest.mark.parametrize(
    ("encoder", "module", "wanted"),
    [
        ("resnet18", "torchvision.models", "torchvision transformers"),
        ("bert", "transformers", "torchvision transformers"),
        ("efficientnet", "efficientnet_lite_pytorch", EXTRA),
        ("wordllama", "wordllama", EXTRA),
    ],
)
def test_a_missing_package_names_the_command(script, encoder, module, wanted, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(DataError, match=re.escape(f"Run: pip install {wanted}")):
        getattr(script, encoder)()


@pytest.mark.slow
def test_a_picture_has_the_same_vector_alone_and_may_be_grey_and_tall(script, pictures):
    encode = script.efficientnet()
    files = sorted(pictures.iterdir())[:3]
    assert encode(files[1:2]) == pytest.approx(encode(files)[1:2], abs=1e-4)
    Image.open(files[0]).convert("L").resize((40, 70)).save(pictures / "grey.jpg")
    assert encode([pictures / "grey.jpg"]).shape == (1, 1280)


def test_a_caption_has_the_same_vector_alone_and_may_be_empty(script):
    encode = script.wordllama()
    found = encode(["A taxi.", "", "White letters say 'a taxi'."])
    assert encode(["A taxi."]) == pytest.approx(found[:1], abs=1e-6)
    assert (found[1] == 0).all()


@pytest.mark.slow
@pytest.mark.process
def test_drawings_and_captions_become_a_federation_that_learns(
    annotations, pictures, flic, tmp_path
):
    names = [path.name for path in annotations]
    said = run_offline(pictures.name, "textcaps", *names, cwd=tmp_path)
    assert said == "Wrote 80 pairs to textcaps\n"

    pairs = read_textcaps(tmp_path / "textcaps")
    assert [list(x.shape) for x in pairs.vectors.values()] == [[80, 1280], [80, 256]]
    for x in pairs.vectors.values():  # chance is 1/4
        model, unseen = LogisticRegression(), {"groups": twins(pairs), "cv": GroupKFold(5)}
        assert cross_val_score(model, x, pairs.y, **unseen).mean() > 0.5

    small = ["data.num_clients=4", "training.rounds=3", "training.participation=0.5"]
    changes = [part for setting in small for part in ("--set", setting)]
    experiment = ROOT / "experiments" / "modalities-textcaps.toml"
    done = flic("run", experiment, "--out", "run", *changes)
    assert done.code == 0, done.err
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["last_round"]["mean"] > 0.5  # three classes a client: chance is 1/3


def run_offline(*arguments: str, cwd: Path) -> str:
    """The script's output where no network can be reached and no cache is kept."""
    command = [sys.executable, str(ROOT / "scripts" / "embed_textcaps.py"), "--offline", *arguments]
    nowhere = dict.fromkeys(("http_proxy", "https_proxy", "all_proxy"), "http://127.0.0.1:9")
    environment = os.environ | nowhere | {"HOME": str(cwd / "home")}
    done = subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=300
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_the_script_explains_itself(script):
    with pytest.raises(SystemExit, match="PICTURES DEST ANNOTATIONS"):
        script.main([])
