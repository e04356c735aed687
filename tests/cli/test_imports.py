"""A command imports what it needs when it runs: asking for help costs no torch."""

import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

pytestmark = pytest.mark.process

HEAVY = {"torch", "sklearn", "scipy", "pandas", "pyarrow", "flwr", "dask", "distributed"}
HEAVY |= {"jinja2", "plotly", "matplotlib"}

WATCHED = """
import sys
from flic.cli.main import main
for words in {commands}:
    sys.argv = ["flic", *words]
    try:
        main()
    except SystemExit as end:
        print(words, "ended with", end.code, file=sys.stderr)
print(*sorted({heavy} & set(sys.modules)))
"""

ASKED = [
    ["--help"],
    ["--version"],
    *([command, "--help"] for command in ("init", "check", "link", "fit", "predict", "evaluate")),
    *([command, "--help"] for command in ("join", "run", "compare", "report", "reproduce")),
    *([command, "--help"] for command in ("bench", "coordinator", "silo")),
    ["coordinator", "init", "--help"],
    ["silo", "init", "--help"],
    ["nonsense"],
    ["fit", "--nonsense"],
    ["run", "--seed", "x"],
    ["run", "--resume", "folder", "--seed", "1"],
    ["run", "demo.toml", "--workers", "2", "--cluster", "tcp://host:8786"],
    ["compare", "demo.toml", "--methods", "nonsense"],
]


def loaded_by(commands: list[list[str]], cwd=None) -> list[str]:
    """Heavy packages that a process has loaded after some commands."""
    code = WATCHED.format(commands=commands, heavy=HEAVY)
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=cwd, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("ended with") == len(commands), done.stderr
    return done.stdout.splitlines()[-1].split()


def test_help_and_mistakes_load_nothing_heavy():
    assert loaded_by(ASKED) == []


def test_a_check_of_tables_loads_no_method(tmp_path):
    rng = np.random.default_rng(0)
    for name in "abc":
        frame = pd.DataFrame({"dose": rng.normal(size=40), "ill": rng.integers(0, 2, 40)})
        frame.to_csv(tmp_path / f"{name}.csv", index=False)
    files = [f"{name}.csv" for name in "abc"]
    commands = [["init", ".", *files, "--label", "ill"], ["check", "federation.toml"]]
    assert loaded_by(commands, tmp_path) == ["pandas", "pyarrow"]


@pytest.mark.parametrize(
    ("code", "loaded"), [("", False), ("flic.Gaussian", True), ("flic.FlicError", False)]
)
def test_a_public_name_is_imported_when_it_is_asked_for(code, loaded):
    script = f"import sys, flic\n{code}\nprint('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.strip() == str(loaded), done.stderr
