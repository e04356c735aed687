"""Other packages add methods, and commands that are missing say where they are to be had."""

import os
import subprocess
import sys
from importlib.metadata import EntryPoint, EntryPoints, distributions
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
    between_machines = True
"""


@pytest.mark.parametrize("home", ["no_such_module:Kind", "flic.methods.network:NoSuchClass", "os"])
def test_a_method_of_a_broken_package_is_named(home: str) -> None:
    with pytest.raises(ConfigError, match="method 'mine' comes from another package"):
        Methods([EntryPoint("mine", home, "flic.methods")])["mine"]


def package(folder: Path, name: str) -> EntryPoints:
    """Entry points of an installed package that adds the methods `local` and `mine`."""
    info = folder / f"{name}-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
    module = name.replace("-", "_")
    entries = f"[flic.methods]\nlocal = {module}:Local\nmine = {module}:Mine\n"
    (info / "entry_points.txt").write_text(entries)
    [found] = distributions(path=[str(folder)])
    return found.entry_points


def test_a_name_that_two_packages_give_is_refused(tmp_path: Path) -> None:
    own = EntryPoint("local", "flic.methods.baselines.local:Local", "flic.methods")
    one, two = (package(tmp_path / name, name) for name in ("one-pack", "two-pack"))
    methods = Methods([own, *one, *two])
    with pytest.raises(ConfigError, match=r"from flic itself and from package 'one-pack', as 'one"):
        methods["local"]
    with pytest.raises(ConfigError, match=r"'one-pack', .* and from package 'two-pack', as 'two_p"):
        methods["mine"]
    assert [*methods] == ["local", "mine"]


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

    def flic(*words: str | Path) -> None:
        done = subprocess.run(
            [Path(sys.executable).with_name("flic"), *words],
            env={**os.environ, "PYTHONPATH": path},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr

    settings = ["training.rounds=1", "pretraining.epochs=1", "data.num_clients=4", "method=tiny"]
    experiment = Path(__file__).parents[2] / "experiments" / "demo.toml"
    flic("run", experiment, "--out", "run", *(w for own in settings for w in ("--set", own)))
    assert (tmp_path / "run" / "summary.json").exists()
    flic("coordinator", "init", "federation", "--classes", "a,b", "--method", "tiny", "--insecure")
    assert '"tiny"' in (tmp_path / "federation" / "federation.json").read_text()


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
