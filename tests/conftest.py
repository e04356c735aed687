"""What every test shares."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

# The tests are small and run side by side; more threads only make them wait for each other.
torch.set_num_threads(1)

# Where real data sets may lie beside a checkout. Set for the whole session, so that commands
# started by a test see it too; whoever names another folder is obeyed.
BESIDE = Path(__file__).parents[2] / "shared" / "data"

if not os.environ.get("FLIC_DATA") and BESIDE.is_dir():
    os.environ["FLIC_DATA"] = str(BESIDE)


@pytest.fixture(scope="session")
def need_data() -> Callable[[str], Path]:
    """Function that gives a file of the real data sets, or skips the test that asks for it."""

    folder = os.environ.get("FLIC_DATA")  # read once: tests unset it

    def need(relative: str) -> Path:
        if not folder or not (Path(folder) / relative).exists():
            pytest.skip(f"needs the real data set {relative}: set FLIC_DATA to its folder")
        return Path(folder) / relative

    return need


@pytest.fixture
def full_disk(monkeypatch):
    """full_disk(count): the disk is full after so many files."""
    real = os.fsync

    def fill(count):
        left = [count * 2]  # a file and its folder each

        def fsync(handle):
            left[0] -= 1
            if left[0] < 0:
                raise OSError(errno.ENOSPC, "No space left on device")
            real(handle)

        monkeypatch.setattr(os, "fsync", fsync)

    return fill


@pytest.fixture
def nearly() -> Callable[[Any], Any]:
    """nearly(values): equal to them but for roundings in double precision, however nested."""

    def near(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: near(own) for name, own in value.items()}
        if isinstance(value, list):
            return [near(own) for own in value]
        return pytest.approx(value, rel=1e-9) if isinstance(value, float) else value

    return near
