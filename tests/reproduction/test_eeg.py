"""The EEG problem: converted once, read as plain arrays, one client per person."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from flic.data.inspect import refuse_unusable
from flic.errors import DataError
from flic_paper.problems.eeg import EegConfig, make_eeg
from flic_paper.problems.store import load_arrays

SCRIPT = Path(__file__).parents[2] / "scripts" / "convert_eeg.py"


@pytest.fixture
def empty_cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.delenv("FLIC_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "flic"


def write_authors_file(path: Path) -> dict[int, list[np.ndarray]]:
    """Two made users in the authors' format, objects and all."""
    rng = np.random.default_rng(0)
    users = {
        user: [
            rng.normal(size=(6, 6)),
            np.array([0.0, 1.0] * 3) + user,
            rng.normal(size=(2, 6)),
            np.array([0.0, 1.0]) + user,
        ]
        for user in range(2)
    }
    meta = {0: {"code": "first", "subject": 1}, 1: {"code": "second", "subject": 9}}
    np.savez(path, user=np.array(users, dtype=object), meta_info=np.array(meta, dtype=object))
    return users


@pytest.fixture
def script(load_script):
    return load_script("convert_eeg")


@pytest.mark.process
def test_a_converted_file_becomes_one_client_per_user(tmp_path, empty_cache):
    users = write_authors_file(tmp_path / "theirs.npz")
    command = [sys.executable, str(SCRIPT), str(tmp_path / "theirs.npz")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=os.environ)
    assert done.returncode == 0, done.stderr
    assert str(empty_cache / "eeg" / "eeg.npz") in done.stdout
    data = make_eeg(EegConfig(), seed=0)
    refuse_unusable(data)
    assert [client.name for client in data.clients] == ["user-00", "user-01"]
    for client, (x_train, y_train, x_test, y_test) in zip(
        data.clients, users.values(), strict=True
    ):
        assert torch.equal(client.train.x, torch.from_numpy(x_train).float())
        assert client.train.y.tolist() == y_train.tolist()
        assert torch.equal(client.test.x, torch.from_numpy(x_test).float())
        assert client.test.y.tolist() == y_test.tolist()
    assert load_arrays("eeg")["collection"].tolist() == ["first", "second"]


def test_a_folder_can_be_named(tmp_path, empty_cache, monkeypatch, script):
    write_authors_file(tmp_path / "theirs.npz")
    script.main([str(tmp_path / "theirs.npz"), str(tmp_path / "data")])
    with pytest.raises(DataError, match=r"scripts/convert_eeg\.py FILE"):
        make_eeg(EegConfig(), seed=0)
    monkeypatch.setenv("FLIC_DATA", str(tmp_path / "data"))
    first, other = (make_eeg(EegConfig(), seed=seed) for seed in (0, 1))
    for a, b in zip(first.clients, other.clients, strict=True):  # nothing is drawn
        assert torch.equal(a.train.x, b.train.x)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [([], r"Usage: scripts/convert_eeg\.py SOURCE"), (["absent.npz"], "no such file; expected")],
)
def test_the_script_explains_itself(arguments, sentence, script):
    with pytest.raises(SystemExit, match=sentence):
        script.main(arguments)


def test_forty_people_have_two_classes_each_and_share_one_space(need_data, empty_cache, script):
    script.convert(need_data("bci/bci_users40_5c_common.npz"), empty_cache)
    data = make_eeg(EegConfig(), seed=0)
    refuse_unusable(data)
    assert (len(data.clients), data.task.num_classes) == (40, 3)
    assert {client.schema.space for client in data.clients} == {"eeg"}
    assert {client.schema.dim for client in data.clients} == {6}
    assert {client.classes for client in data.clients} == {(0, 1), (1, 2)}
    assert sum(len(client.train) for client in data.clients) == 8600
    assert len(set(load_arrays("eeg")["collection"])) == 5
