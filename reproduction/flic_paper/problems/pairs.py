"""Objects described by the vector of an image and the vector of a text.

The rows of two modalities come from these pairs.
Paper: "TextCaps data set", and a public collection of fashion products that stands in for it.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet as parquet
import torch
from torch import Tensor

from flic.errors import DataError
from flic.files import read_json
from flic_paper.problems.store import load_arrays, locate

_RARE = 100
"""Least rows of a class of fashion products; `usage` has two classes of one and two rows."""


@dataclass(frozen=True, eq=False)
class Pairs:
    """Image vectors, text vectors and labels of the same objects, row by row."""

    vectors: dict[str, Tensor]  # "image" and "text", [n, d] each
    y: Tensor  # [n]
    num_classes: int


def read_fashion(label: str) -> Pairs:
    """Fashion products with their season or usage as the class.

    Products without that label and classes of fewer than 100 products are left out.
    """
    arrays = load_arrays("mm_fashion")
    names = _fashion_labels(arrays["id"], label)
    classes, counts = np.unique(names[names != ""], return_counts=True)
    classes = classes[counts >= _RARE]
    kept = np.isin(names, classes)
    y = torch.from_numpy(np.searchsorted(classes, names[kept]))
    vectors = {which: _scaled(arrays[which][kept]) for which in ("image", "text")}
    return Pairs(vectors, y, len(classes))


def _fashion_labels(ids: np.ndarray, label: str) -> np.ndarray:
    """Label of every product in the order of `ids`, empty where there is none."""
    path = locate("mm_fashion").with_name("fashion5000_meta.parquet")
    try:
        table = parquet.read_table(path, columns=["id", label]).to_pydict()
    except (OSError, pyarrow.ArrowInvalid, pyarrow.ArrowKeyError) as error:
        raise DataError(
            f"Fashion labels cannot be read from '{path}' ({error}); expected a Parquet table with "
            f"columns 'id' and '{label}'. Put it beside the vectors."
        ) from error
    of_product = dict(zip(table["id"], table[label], strict=True))
    return np.array([of_product.get(product) or "" for product in ids.tolist()])


def read_textcaps(folder: Path) -> Pairs:
    """Captioned pictures from a folder that scripts/embed_textcaps.py wrote.

    image.npy [n, d] and text.npy [n, d'] hold a row per pair; labels.json has the names under
    "classes" and per pair the number of its class under "labels".
    """
    try:
        rows = {
            which: np.load(folder / f"{which}.npy", allow_pickle=False)
            for which in ("image", "text")
        }
        content: Any = read_json(folder / "labels.json")
        classes, labels = list(content["classes"]), np.array(content["labels"])
    except (OSError, ValueError, KeyError, TypeError, EOFError) as error:
        raise DataError(
            f"TextCaps folder '{folder}' cannot be read ({error!r}); expected image.npy, text.npy "
            "and labels.json. Make it with scripts/embed_textcaps.py, or correct data.folder."
        ) from error
    _refuse_misfits(folder, rows, labels, len(classes))
    vectors = {which: _scaled(x) for which, x in rows.items()}
    return Pairs(vectors, torch.from_numpy(labels).long(), len(classes))


def _refuse_misfits(
    folder: Path, rows: dict[str, np.ndarray], labels: np.ndarray, num_classes: int
) -> None:
    """Refuse vectors and labels that do not belong together."""
    for which, x in rows.items():
        if x.ndim != 2 or x.dtype.kind != "f" or len(x) != len(labels):
            raise DataError(
                f"TextCaps file '{folder / which}.npy' has shape {list(x.shape)} and type "
                f"{x.dtype}; expected floats, a row for each of the {len(labels)} labels. "
                "Make the folder anew."
            )
    is_number = labels.ndim == 1 and labels.dtype.kind == "i"
    if not is_number or not len(labels) or labels.min() < 0 or labels.max() >= num_classes:
        raise DataError(
            f"TextCaps file '{folder / 'labels.json'}' has labels other than 0 to "
            f"{num_classes - 1}, or none; expected the number of one of its {num_classes} classes "
            "per row. Make the folder anew."
        )


def _scaled(x: np.ndarray) -> Tensor:
    """Vectors scaled to length √d, so that a coordinate is about 1 in size.

    Encoders differ in scale by a factor of twenty. Every row is scaled by itself: no statistics
    of other rows are needed, so a client can do it alone, and all of one modality agree.
    """
    rows = torch.from_numpy(x).float()
    return rows * (rows.shape[1] ** 0.5 / rows.norm(dim=1, keepdim=True).clamp_min(1e-12))


def twins(pairs: Pairs) -> Tensor:
    """Number of each row's group; rows that share an image or a text are in one group."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    keys = [torch.unique(x, dim=0, return_inverse=True)[1] for x in pairs.vectors.values()]
    image, text = keys[0].numpy(), keys[1].numpy()
    # a graph of images and texts, an edge per row: its components are the groups
    size = int(image.max()) + int(text.max()) + 2
    edges = (np.ones(len(image)), (image, image.max() + 1 + text))
    _, component = connected_components(coo_array(edges, shape=(size, size)), directed=False)
    return torch.from_numpy(component[image]).long()
