"""Other packages add methods, and commands that are missing say where they are to be had."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from flic.errors import ConfigError
from flic.methods import Methods

PYPROJECT = """
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"

[project]
name = "tiny-method"
version = "1"

[project.entry-points."flic.methods"]
tiny = "tiny:Tiny"

[tool.setuptools]
py-modules = ["tiny"]
"""

TINY = """
from flic.methods.network import NetworkMethod

class Tiny(NetworkMethod):
    name = "tiny"
    rule_name = "fedrep"
"""


@pytest.mark.parametrize("home", ["no_such_module:Kind", "flic.methods.network:NoSuchClass", "os"])
def test_a_method_of_a_broken_package_is_named(home: str) -> None:
    with pytest.raises(ConfigError, match="method 'mine' comes from another package"):
        Methods({"mine": home})["mine"]


@pytest.mark.process
@pytest.mark.slow
def test_a_package_adds_a_method(tmp_path: Path) -> None:
    source, installed = tmp_path / "source", tmp_path / "installed"
    source.mkdir()
    (source / "pyproject.toml").write_text(PYPROJECT)
    (source / "tiny.py").write_text(TINY)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--target", str(installed), str(source)], check=True)
    path = os.pathsep.join([str(installed), os.environ.get("PYTHONPATH", "")])
    settings = ["training.rounds=1", "pretraining.epochs=1", "data.num_clients=4", "method=tiny"]
    experiment = Path(__file__).parents[2] / "experiments" / "demo.toml"
    words = [word for setting in settings for word in ("--set", setting)]
    done = subprocess.run(
        [Path(sys.executable).with_name("flic"), "run", experiment, "--out", "run", *words],
        env={**os.environ, "PYTHONPATH": path},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "summary.json").exists()


@pytest.mark.process
@pytest.mark.parametrize("command", ["reproduce", "bench"])
def test_a_command_of_the_paper_says_where_it_is_to_be_had(command: str) -> None:
    code = (
        "import importlib.metadata as m; m.entry_points = lambda **named: (); "
        "import sys; sys.argv = ['flic', *sys.argv[1:]]; "
        "from flic.cli.main import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, command, "--quick", "toy"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "pip install ./reproduction" in " ".join(done.stderr.split())
