"""Store of real data sets: a folder of the user, or a cache filled from OpenML.

Both places have the same files under the same names, and one reader. Nothing is ever unpickled,
and a cached file is read only if it matches its checksum.
"""

import io
import os
import zipfile
import zlib
from collections.abc import Callable, Mapping
from http.client import HTTPException
from pathlib import Path
from typing import Any

import numpy as np

from flic.digests import digest
from flic.errors import DataError
from flic.files import write_atomically

Arrays = dict[str, np.ndarray]

_MFEAT_VIEWS = {
    "fou": "fourier",
    "fac": "factors",
    "kar": "karhunen",
    "pix": "pixel",
    "zer": "zernike",
    "mor": "morphological",
}
"""Key of each view of the Multiple Features digits, and the end of its name at OpenML."""

_IMAGE_KEYS = ("x_train", "y_train", "x_test", "y_test")

_KEYS = {
    "mnist": _IMAGE_KEYS,
    "usps": (*_IMAGE_KEYS, "scale"),
    "mfeat": (*_MFEAT_VIEWS, "y"),
    "digits_optical_pen": ("x_optdigits", "y_optdigits", "x_penbased", "y_penbased"),
    "mm_fashion": ("image", "text", "id"),
    "eeg": ("x", "y", "user", "is_test", "collection"),
}
"""Arrays of every data set."""

_FILES = {name: f"{name}/{name}.npz" for name in _KEYS} | {
    "mm_fashion": "mm_fashion/fashion5000_image1280_text384.npz"
}
"""Place of every data set below the user's folder, and below the cache."""

USPS_SCALE = 2000  # USPS has about 2,000 grey levels; stored as whole numbers, x_train / scale


def load_arrays(name: str) -> Arrays:
    """Arrays of the data set `name`: from the user's folder, the cache, or else from OpenML.

    Raises:
        DataError: the set is in neither place and cannot be fetched, or its file is damaged.
    """
    return _read(locate(name), _KEYS[name])


def locate(name: str) -> Path:
    """File of the data set `name`, fetched into the cache if it is in neither place."""
    given = data_folder()
    if given is not None and (given / _FILES[name]).is_file():
        return given / _FILES[name]
    cached = cache_folder() / _FILES[name]
    if cached.is_file():
        _refuse_damaged(cached)
    else:
        _keep(name, _fetch(name))
    return cached


def _keep(name: str, arrays: Arrays) -> None:
    """Write fetched arrays into the cache."""
    try:
        save_arrays(name, arrays, cache_folder())
    except OSError as error:
        raise DataError(
            f"Data set '{name}' was fetched but cannot be kept in '{cache_folder()}' ({error}); "
            "expected a folder to write to. Free it, or set XDG_CACHE_HOME to another one."
        ) from error


def data_folder() -> Path | None:
    """Folder that FLIC_DATA names, if it is set."""
    named = os.environ.get("FLIC_DATA")
    if not named:
        return None
    if not Path(named).is_dir():
        raise DataError(
            f"FLIC_DATA is '{named}', which is no folder; expected one that holds data sets. "
            "Correct it, or unset it to use the cache."
        )
    return Path(named)


def cache_folder() -> Path:
    """Folder of the data sets that were fetched or converted."""
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "flic"


def save_arrays(name: str, arrays: Mapping[str, np.ndarray], folder: Path) -> Path:
    """Write the data set `name` below `folder`, completely or not at all.

    Its checksum is beside it and is written first: a file of that name is always complete, and an
    interrupted writer leaves at most a checksum without a file.
    """
    path = folder / _FILES[name]
    path.parent.mkdir(parents=True, exist_ok=True)
    content = io.BytesIO()
    np.savez_compressed(content, allow_pickle=False, **arrays)
    # Added to those of earlier versions: the old file stays valid until it is replaced.
    with _checksum_file(path).open("a", encoding="ascii") as checksums:
        checksums.write(digest(content.getvalue()) + "\n")
    write_atomically(path, content.getvalue())
    return path


def _checksum_file(path: Path) -> Path:
    return path.with_name(f"{path.name}.sha256")


def _refuse_damaged(path: Path) -> None:
    """Refuse a cached file that does not match its checksum."""
    beside = _checksum_file(path)
    sound = beside.read_text(errors="replace").split() if beside.is_file() else []
    if digest(path.read_bytes()) not in sound:
        raise DataError(
            f"Cached file '{path}' is damaged: it got changed, or the checksum in '{beside.name}' "
            "was lost; expected the file as it was written. Delete both, and the next run fetches "
            "it anew or says what to do."
        )


def _read(path: Path, keys: tuple[str, ...]) -> Arrays:
    """Arrays `keys` of an npz file."""
    try:
        with path.open("rb") as stream:
            file = np.load(stream, allow_pickle=False)
            if isinstance(file, np.ndarray):
                raise ValueError("it is a single array")
            arrays = {key: file[key] for key in file.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(
            f"File '{path}' cannot be read as plain numpy arrays ({error}); expected an npz file "
            "without objects. Replace it."
        ) from error
    missing = [key for key in keys if key not in arrays]
    if missing:
        raise DataError(
            f"File '{path}' lacks the arrays {', '.join(missing)}; expected {', '.join(keys)}. "
            "Replace it."
        )
    return arrays


def _fetch(name: str) -> Arrays:
    """Arrays of a data set that is neither in the user's folder nor in the cache."""
    if name not in _FETCHERS:
        raise DataError(f"Data set '{name}' is not here and cannot be fetched. {_REMEDIES[name]}")
    try:
        return _FETCHERS[name]()
    except (OSError, HTTPException, ValueError) as error:  # no network, or changed data
        raise DataError(
            f"Data set '{name}' is not here and could not be fetched from OpenML ({error}). "
            f"Connect to the network, or set FLIC_DATA to a folder that holds {_FILES[name]}."
        ) from error


_REMEDIES = {
    "mm_fashion": (
        f"Set FLIC_DATA to a folder that holds {_FILES['mm_fashion']} and "
        "fashion5000_meta.parquet beside it; docs/data.md says what is in them."
    ),
    "eeg": (
        "Download the authors' file of EEG features and run: scripts/convert_eeg.py FILE; "
        "docs/data.md says where it is."
    ),
}
"""Remedies for data sets that OpenML does not have."""


def _openml(
    *, rows: int, name: str | None = None, data_id: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Values and integer labels of a data set at OpenML, in its own order.

    Args:
        rows: number of its rows.
        name: of the data set, in its first version; or
        data_id: its number.
    """
    from sklearn.datasets import fetch_openml

    bunch: Any = fetch_openml(
        name=name,
        version="active" if name is None else 1,
        data_id=data_id,
        as_frame=False,
        parser="liac-arff",  # the other one needs pandas
        cache=False,  # this module keeps its own, smaller and with checksums
    )
    if len(bunch.data) != rows:
        raise ValueError(f"{name or data_id} has {len(bunch.data)} rows, expected {rows}")
    return _numbers(bunch), bunch.target.astype(np.int64)


def _numbers(bunch: Any) -> np.ndarray:
    """Values of a data set, also of columns whose numbers OpenML declares as names.

    Such columns, the whole of mfeat-pixel, come as positions in their list of names.
    """
    named = [column for column in bunch.feature_names if column in bunch.categories]
    if not named:
        return bunch.data
    x = bunch.data.copy()
    for column in named:
        at = bunch.feature_names.index(column)
        x[:, at] = np.array(bunch.categories[column], dtype=float)[x[:, at].astype(int)]
    return x


def _fetch_mnist() -> Arrays:
    """MNIST, in its official split."""
    x, y = _openml(rows=70_000, name="mnist_784")
    return _split(x.astype(np.uint8).reshape(-1, 28, 28), y, train_rows=60_000)


def _fetch_usps() -> Arrays:
    """USPS, in its official split."""
    x, y = _openml(rows=9_298, data_id=41082)  # values in [-1, 1], labels 1 to 10
    levels = np.rint((x + 1) / 2 * USPS_SCALE).astype(np.uint16)
    arrays = _split(levels.reshape(-1, 16, 16), y - 1, train_rows=7_291)
    return arrays | {"scale": np.array(float(USPS_SCALE))}


def _split(x: np.ndarray, y: np.ndarray, *, train_rows: int) -> Arrays:
    y = y.astype(np.uint8)
    halves = (x[:train_rows], y[:train_rows], x[train_rows:], y[train_rows:])
    return dict(zip(_IMAGE_KEYS, halves, strict=True))


def _fetch_mfeat() -> Arrays:
    """Six descriptions of the same 2,000 digits."""
    arrays: Arrays = {}
    for key, view in _MFEAT_VIEWS.items():
        x, y = _openml(rows=2_000, name=f"mfeat-{view}")
        labels = (y - 1).astype(np.uint8)  # 1 to 10 at OpenML
        if not np.array_equal(arrays.setdefault("y", labels), labels):
            raise ValueError(f"mfeat-{view} has its digits in another order than the other views")
        arrays[key] = x.astype(np.uint8 if key == "pix" else np.float32)
    return arrays


def _fetch_digits_optical_pen() -> Arrays:
    """Scanned digits, and digits written on a pen tablet."""
    x_optical, y_optical = _openml(rows=5_620, data_id=28)
    x_pen, y_pen = _openml(rows=10_992, data_id=32)
    arrays = (x_optical, y_optical, x_pen, y_pen)
    named = zip(_KEYS["digits_optical_pen"], arrays, strict=True)
    return {key: array.astype(np.uint8) for key, array in named}


_FETCHERS: dict[str, Callable[[], Arrays]] = {
    "mnist": _fetch_mnist,
    "usps": _fetch_usps,
    "mfeat": _fetch_mfeat,
    "digits_optical_pen": _fetch_digits_optical_pen,
}
