"""`flic` as a user types it, on a configuration that takes a moment."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

FLIC = Path(sys.executable).with_name("flic")

CONFIG = """
method = "flic-hl"

[data]
problem = "noisy-features"
num_clients = 6
num_classes = 8
classes_per_client = 2
train_rows_per_class = 40
test_rows_per_class = 10

[training]
rounds = 3
participation = 0.5
local = "2 epochs"
batch_size = 8

[embedding]
latent_dim = 8
hidden = [8]

[model]
hidden_dim = 8

[alignment]
anchor_samples = 5

[pretraining]
epochs = 1
"""


@dataclass(frozen=True)
class Said:
    """What a command printed, and its exit code."""

    code: int
    out: str
    err: str


@pytest.fixture
def config(tmp_path) -> Path:
    """The tiny configuration as a file."""
    path = tmp_path / "tiny.toml"
    path.write_text(CONFIG)
    return path


@pytest.fixture
def flic(tmp_path) -> Callable[..., Said]:
    """flic(*arguments): the command in a process of its own; never a traceback."""

    def run(*arguments: object) -> Said:
        command = [FLIC, *map(str, arguments)]
        done = subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
        )
        assert "Traceback" not in done.stderr, done.stderr
        return Said(done.returncode, done.stdout, done.stderr)

    return run


@pytest.fixture
def flic_here(tmp_path, monkeypatch, capsys) -> Callable[..., Said]:
    """The same command inside this process, which saves seconds of imports.

    Only what `main` itself turns into an exit gets past it: a traceback fails the test.
    """
    from flic.cli.main import main

    def run(*arguments: object) -> Said:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["flic", *map(str, arguments)])
        code = 0
        try:
            main()
        except SystemExit as end:
            code = end.code
        said = capsys.readouterr()
        return Said(code, said.out, said.err)

    return run
