"""Data sets are found or fetched, and damaged files are refused."""

import os
from http.client import IncompleteRead
from pathlib import Path
from types import SimpleNamespace
from urllib.error import URLError

import numpy as np
import pytest

from flic.errors import DataError
from flic_paper.problems.store import load_arrays, save_arrays

# Rows and columns of the sets at OpenML, by the name or number they are asked for.
AT_OPENML = {
    "mnist_784": (70_000, 784),
    41082: (9_298, 256),
    28: (5_620, 64),
    32: (10_992, 16),
    "mfeat-fourier": (2000, 76),
    "mfeat-factors": (2000, 216),
    "mfeat-karhunen": (2000, 64),
    "mfeat-pixel": (2000, 240),
    "mfeat-zernike": (2000, 47),
    "mfeat-morphological": (2000, 6),
}
COUNTS_FROM_ONE = {41082, *(name for name in AT_OPENML if str(name).startswith("mfeat"))}


class OpenML:
    """Stand-in for scikit-learn's `fetch_openml`: sets of the right shape, a row's label in x."""

    def __init__(self) -> None:
        self.asked: list[str | int] = []
        self.changes: dict[str | int, dict] = {}

    def __call__(self, *, name, version, data_id, as_frame, parser, cache):
        assert (as_frame, parser, cache) == (False, "liac-arff", False)
        assert version == ("active" if name is None else 1)
        which = name or data_id
        self.asked.append(which)
        rows, columns = AT_OPENML[which]
        labels = np.arange(rows) % 10
        x = labels / 4.5 - 1 if which == 41082 else labels.astype(float)
        first = 1 if which in COUNTS_FROM_ONE else 0
        bunch = {
            "data": np.broadcast_to(x[:, None], (rows, columns)),  # no memory for 55 M values
            "feature_names": [f"att{j}" for j in range(columns)],
            "categories": {"class": [str(first + j) for j in range(10)]},
            "target": (labels + first).astype(str).astype(object),
        }
        return SimpleNamespace(**(bunch | self.changes.get(which, {})))


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    """Empty cache, and no folder of the user's."""
    monkeypatch.delenv("FLIC_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "flic"


@pytest.fixture
def openml(monkeypatch) -> OpenML:
    stand_in = OpenML()
    monkeypatch.setattr("sklearn.datasets.fetch_openml", stand_in)
    return stand_in


@pytest.fixture
def no_network(monkeypatch) -> None:
    def fail(**_: object) -> None:
        raise URLError("no route to host")

    monkeypatch.setattr("sklearn.datasets.fetch_openml", fail)


def small_mfeat(value: int = 0) -> dict[str, np.ndarray]:
    return {key: np.full((2, 3), value) for key in ("fou", "fac", "kar", "pix", "zer", "mor", "y")}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mnist", "usps", "mfeat", "digits_optical_pen"])
def test_a_fetched_set_has_the_keys_types_and_shapes_of_the_real_one(
    name, need_data, cache, openml
):
    with np.load(need_data(f"{name}/{name}.npz")) as real:
        described = {key: (real[key].shape, real[key].dtype) for key in real.files}
    fetched = load_arrays(name)
    assert {key: (value.shape, value.dtype) for key, value in fetched.items()} == described


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mnist", "usps"])
def test_images_keep_the_order_of_openml_and_their_labels(name, cache, openml):
    arrays = load_arrays(name)
    train_rows = {"mnist": 60_000, "usps": 7_291}[name]
    labels = np.arange({"mnist": 70_000, "usps": 9_298}[name]) % 10
    assert np.array_equal(arrays["y_train"], labels[:train_rows])
    assert np.array_equal(arrays["y_test"], labels[train_rows:])
    if name == "usps":
        assert arrays["scale"] == 2000
        values = arrays["x_test"][:, 3, 4] / arrays["scale"]
        assert values == pytest.approx(labels[train_rows:] / 9, abs=1e-3)
    else:
        assert np.array_equal(arrays["x_test"][:, 3, 4], labels[train_rows:])


@pytest.mark.parametrize(
    ("name", "pairs"),
    [
        ("mfeat", [("pix", "y"), ("mor", "y")]),
        ("digits_optical_pen", [("x_optdigits", "y_optdigits"), ("x_penbased", "y_penbased")]),
    ],
)
def test_digits_are_labelled_from_zero(name, pairs, cache, openml):
    arrays = load_arrays(name)
    for x, y in pairs:
        assert np.array_equal(arrays[x][:, 0], arrays[y])
        assert set(arrays[y]) == set(range(10))


def test_numbers_that_openml_declares_as_names_are_read_as_numbers(cache, openml):
    names = ["6", "0", "5", "1", "4", "2", "3"]
    positions = np.arange(2000)[:, None] % 7 * np.ones((1, 240))
    openml.changes["mfeat-pixel"] = {
        "data": positions,
        "categories": {f"att{j}": names for j in range(239)} | {"class": ["1"]},
    }
    pixels = load_arrays("mfeat")["pix"]
    assert pixels[:7, 0].tolist() == pixels[:7, 238].tolist() == [6, 0, 5, 1, 4, 2, 3]
    assert pixels[:7, 239].tolist() == [0, 1, 2, 3, 4, 5, 6]  # declared as a number


def test_views_whose_digits_do_not_match_are_refused(cache, openml):
    openml.changes["mfeat-zernike"] = {"target": np.full(2000, "3", dtype=object)}
    with pytest.raises(DataError, match="mfeat-zernike has its digits in another order"):
        load_arrays("mfeat")


def test_an_incomplete_answer_is_refused_and_not_kept(cache, openml):
    openml.changes[32] = {"data": np.zeros((7, 16))}
    with pytest.raises(DataError, match="32 has 7 rows, expected 10992"):
        load_arrays("digits_optical_pen")
    assert not list(cache.rglob("*.npz"))


def test_what_was_fetched_is_fetched_once(cache, openml):
    first = load_arrays("digits_optical_pen")
    again = load_arrays("digits_optical_pen")
    assert openml.asked == [28, 32]
    assert all(np.array_equal(first[key], again[key]) for key in first)
    names = sorted(path.name for path in cache.rglob("*") if path.is_file())
    assert names == ["digits_optical_pen.npz", "digits_optical_pen.npz.sha256"]


def test_the_users_folder_comes_before_the_cache(cache, tmp_path, monkeypatch, no_network):
    save_arrays("mfeat", small_mfeat(1), cache)
    assert load_arrays("mfeat")["y"][0, 0] == 1
    monkeypatch.setenv("FLIC_DATA", str(tmp_path))
    assert load_arrays("mfeat")["y"][0, 0] == 1  # it holds no such file
    save_arrays("mfeat", small_mfeat(2), tmp_path)
    assert load_arrays("mfeat")["y"][0, 0] == 2


def test_a_broken_connection_is_said(cache, monkeypatch):
    def fail(**_: object) -> None:
        raise IncompleteRead(b"half")

    monkeypatch.setattr("sklearn.datasets.fetch_openml", fail)
    with pytest.raises(DataError, match="could not be fetched from OpenML"):
        load_arrays("usps")


def test_without_data_and_network_the_sentence_says_what_to_set(cache, no_network):
    with pytest.raises(DataError, match=r"no route to host.*set FLIC_DATA .*mnist/mnist\.npz"):
        load_arrays("mnist")


def test_a_cache_that_cannot_be_written_is_said(cache, openml):
    cache.write_text("a file where the folder would be")
    with pytest.raises(DataError, match=r"cannot be kept in .*set XDG_CACHE_HOME"):
        load_arrays("digits_optical_pen")


@pytest.mark.parametrize(
    ("name", "remedy"), [("mm_fashion", "fashion5000_meta.parquet"), ("eeg", "convert_eeg.py FILE")]
)
def test_sets_that_cannot_be_fetched_say_how_to_get_them(name, remedy, cache, no_network):
    with pytest.raises(DataError, match=f"'{name}' is not here and cannot be fetched.*{remedy}"):
        load_arrays(name)


def test_a_folder_that_is_none_is_refused(cache, monkeypatch, tmp_path):
    monkeypatch.setenv("FLIC_DATA", str(tmp_path / "mistyped"))
    with pytest.raises(DataError, match="mistyped', which is no folder"):
        load_arrays("mnist")


def test_a_changed_byte_in_the_cache_is_noticed(cache, no_network):
    path = save_arrays("mfeat", small_mfeat(), cache)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"mfeat\.npz' is damaged.*Delete both"):
        load_arrays("mfeat")


def test_a_cached_file_without_checksum_is_refused(cache, no_network):
    path = save_arrays("mfeat", small_mfeat(), cache)
    path.with_name("mfeat.npz.sha256").unlink()
    with pytest.raises(DataError, match=r"checksum .* was lost"):
        load_arrays("mfeat")


def test_an_interrupted_write_leaves_the_old_file_and_no_rest(cache, monkeypatch):
    path = save_arrays("mfeat", small_mfeat(1), cache)

    def fail(handle: int) -> None:
        del handle
        raise OSError("No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space left"):
        save_arrays("mfeat", small_mfeat(2), cache)
    assert load_arrays("mfeat")["y"][0, 0] == 1
    assert len(list(path.parent.iterdir())) == 2


NPY = b"\x93NUMPY\x01\x00v\x00" + b"{'descr': '|u1', 'fortran_order': False, 'shape': (), }".ljust(
    118
)


@pytest.mark.parametrize("content", [b"", b"no archive", b"PK\x03\x04 cut off", NPY + b"\x07"])
def test_a_file_that_is_no_npz_is_refused(content, tmp_path, monkeypatch):
    path = tmp_path / "mnist" / "mnist.npz"
    path.parent.mkdir()
    path.write_bytes(content)
    monkeypatch.setenv("FLIC_DATA", str(tmp_path))
    with pytest.raises(DataError, match="cannot be read as plain numpy arrays"):
        load_arrays("mnist")


def test_pickled_objects_are_refused(tmp_path, monkeypatch):
    (tmp_path / "mnist").mkdir()
    np.savez(tmp_path / "mnist" / "mnist.npz", x_train=np.array([{"a": 1}], dtype=object))
    monkeypatch.setenv("FLIC_DATA", str(tmp_path))
    with pytest.raises(DataError, match="allow_pickle=False"):
        load_arrays("mnist")
    with pytest.raises(ValueError, match="allow_pickle"):
        save_arrays("mfeat", {"y": np.array([{}], dtype=object)}, tmp_path)


def test_a_file_of_other_arrays_is_refused(tmp_path, monkeypatch):
    save_arrays("mnist", {"x_train": np.zeros(3)}, tmp_path)
    monkeypatch.setenv("FLIC_DATA", str(tmp_path))
    with pytest.raises(DataError, match="lacks the arrays y_train, x_test, y_test; expected"):
        load_arrays("mnist")
