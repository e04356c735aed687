#!/usr/bin/env python3
"""Vectors of TextCaps pictures and captions, in the folder that flic reads.

Usage: scripts/embed_textcaps.py PICTURES DEST ANNOTATIONS...

PICTURES is the folder of the pictures, ANNOTATIONS are TextCaps_0.1_train.json and
TextCaps_0.1_val.json, DEST is the folder to make. Needs: pip install torchvision transformers
"""

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from flic.errors import DataError, FlicError

CLASSES = ("Bottle", "Car", "Food", "Book")
"""Paper: "TextCaps data set"."""

BATCH = 64

ImageEncoder = Callable[[Sequence[Path]], np.ndarray]  # files → [n, 512]
TextEncoder = Callable[[Sequence[str]], np.ndarray]  # captions → [n, 768]


@dataclass(frozen=True)
class Pair:
    """A picture, one of its captions, and the number of its class."""

    image_id: str
    caption: str
    label: int


def read_annotations(paths: Iterable[Path]) -> list[Mapping[str, Any]]:
    """Entries of all files, one per caption."""
    entries: list[Mapping[str, Any]] = []
    for path in paths:
        try:
            entries += json.loads(path.read_text(encoding="utf-8"))["data"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(
                f"Annotations '{path}' cannot be read ({error!r}); expected TextCaps JSON with its "
                "entries under 'data'. Download it again."
            ) from error
    return entries


def select_pairs(entries: Iterable[Mapping[str, Any]]) -> list[Pair]:
    """A pair per caption, of the pictures that show exactly one of the four classes."""
    pairs = []
    for entry in entries:
        shown = [label for label, name in enumerate(CLASSES) if name in entry["image_classes"]]
        if len(shown) == 1:
            pairs.append(Pair(entry["image_id"], entry["caption_str"], shown[0]))
    return pairs


def embed_images(pairs: Sequence[Pair], pictures: Path, encode: ImageEncoder) -> np.ndarray:
    """Vector of each pair's picture; a picture of several captions is encoded once."""
    ids = sorted({pair.image_id for pair in pairs})
    files = [pictures / f"{image_id}.jpg" for image_id in ids]
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        raise DataError(
            f"Folder '{pictures}' lacks {len(missing)} of {len(files)} pictures, such as "
            f"{missing[0]}; expected all that the annotations name. Complete the download."
        )
    vectors = _in_batches(encode, files)
    position = {image_id: row for row, image_id in enumerate(ids)}
    return vectors[[position[pair.image_id] for pair in pairs]]


def embed_texts(pairs: Sequence[Pair], encode: TextEncoder) -> np.ndarray:
    """Vector of each pair's caption."""
    return _in_batches(encode, [pair.caption for pair in pairs])


def _in_batches(encode: Callable[[Sequence[Any]], np.ndarray], items: Sequence[Any]) -> np.ndarray:
    batches = [encode(items[start : start + BATCH]) for start in range(0, len(items), BATCH)]
    return np.concatenate(batches).astype(np.float32)


def write_folder(folder: Path, image: np.ndarray, text: np.ndarray, labels: Sequence[int]) -> None:
    """Write what `problem = "modalities"` reads; the labels come last and say that all is there."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "labels.json").unlink(missing_ok=True)
    np.save(folder / "image.npy", image, allow_pickle=False)
    np.save(folder / "text.npy", text, allow_pickle=False)
    content = {"classes": CLASSES, "labels": list(labels)}
    (folder / "labels.json").write_text(json.dumps(content), encoding="utf-8")


def make_folder(
    folder: Path,
    pictures: Path,
    annotations: Sequence[Path],
    *,
    encode_images: ImageEncoder,
    encode_texts: TextEncoder,
) -> int:
    """Number of pairs in the folder made."""
    pairs = select_pairs(read_annotations(annotations))
    if not pairs:
        raise DataError(
            f"Annotations name no picture of {', '.join(CLASSES)} alone; expected thousands. "
            "Give the files of TextCaps 0.1."
        )
    image = embed_images(pairs, pictures, encode_images)
    write_folder(folder, image, embed_texts(pairs, encode_texts), [pair.label for pair in pairs])
    return len(pairs)


def resnet18() -> ImageEncoder:
    """Pooled features of ResNet18, pre-trained on ImageNet."""
    try:
        from PIL import Image
        from torchvision.models import ResNet18_Weights, resnet18
    except ImportError as error:
        raise _not_installed("torchvision") from error
    weights = ResNet18_Weights.IMAGENET1K_V1
    network, prepare = resnet18(weights=weights).eval(), weights.transforms()
    network.fc = torch.nn.Identity()

    @torch.inference_mode()
    def encode(files: Sequence[Path]) -> np.ndarray:
        pictures = [prepare(Image.open(file).convert("RGB")) for file in files]
        return network(torch.stack(pictures)).numpy()

    return encode


def bert() -> TextEncoder:
    """Mean of BERT's last layer over the words of a caption."""
    try:
        from transformers import AutoModel, AutoTokenizer
    except ImportError as error:
        raise _not_installed("transformers") from error
    name = "bert-base-uncased"
    tokenise, network = AutoTokenizer.from_pretrained(name), AutoModel.from_pretrained(name).eval()

    @torch.inference_mode()
    def encode(captions: Sequence[str]) -> np.ndarray:
        words = tokenise(list(captions), padding=True, truncation=True, return_tensors="pt")
        is_word = words["attention_mask"][..., None]
        hidden = network(**words).last_hidden_state
        return ((hidden * is_word).sum(dim=1) / is_word.sum(dim=1)).numpy()

    return encode


def _not_installed(package: str) -> DataError:
    return DataError(
        f"Embedding TextCaps needs {package}, which is not installed. "
        "Run: pip install torchvision transformers"
    )


def main(arguments: Sequence[str]) -> None:
    """Make the folder that the command line asks for."""
    if len(arguments) < 3:
        sys.exit(__doc__)
    pictures, dest, *annotations = map(Path, arguments)
    try:
        encoders = {"encode_images": resnet18(), "encode_texts": bert()}
        number = make_folder(dest, pictures, annotations, **encoders)
    except FlicError as error:
        sys.exit(str(error))
    print(f"Wrote {number} pairs to {dest}")


if __name__ == "__main__":
    main(sys.argv[1:])
