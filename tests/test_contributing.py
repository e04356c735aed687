"""The examples of CONTRIBUTING.md: each is one file and at most one entry, and works."""

import json
import os
import re
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# Imports take longer than these commands, so that one process runs them all: a line with a
# command's words comes in, a line with its exit code and output goes out.
PROGRAM = """
import contextlib, io, json, sys
from flic.cli.main import main
answers = sys.stdout
for line in sys.stdin:
    sys.argv, code = ["flic", *json.loads(line)], 0
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main()
        except SystemExit as end:
            code = end.code
    print(json.dumps([code, out.getvalue(), err.getvalue()]), file=answers, flush=True)
"""

SMALL = [
    "method=flic-hl",
    "data.num_clients=4",
    "training.rounds=1",
    "training.local=1 epoch",
    "pretraining.epochs=1",
]

pytestmark = [pytest.mark.process, pytest.mark.slow]


def _blocks(language: str) -> list[tuple[str, str]]:
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    return re.findall(rf"```{language}\n# (\S+\.py)\n(.*?)```", page, flags=re.DOTALL)


def _add_lines(path: Path, lines: list[str]) -> None:
    """Put each line that begins with + below the line before it."""
    text = path.read_text(encoding="utf-8")
    for above, line in pairwise(lines):
        if line.startswith("+"):
            context = f"\n{above[1:]}\n"
            assert text.count(context) == 1
            text = text.replace(context, f"{context}{line[1:]}\n")
    path.write_text(text, encoding="utf-8")


@pytest.fixture(scope="module")
def tree(tmp_path_factory) -> Path:
    """The project's packages with the files and entries of the page."""
    tree = tmp_path_factory.mktemp("tree")
    for part in ("src/flic", "reproduction/flic_paper", "experiments"):
        shutil.copytree(ROOT / part, tree / part, ignore=shutil.ignore_patterns("__pycache__"))
    for path, code in _blocks("python"):
        assert not (tree / path).exists()
        (tree / path).write_text(code, encoding="utf-8")
    for path, lines in _blocks("diff"):
        _add_lines(tree / path, lines.splitlines())
    return tree


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """The folder in which commands run."""
    return tmp_path_factory.mktemp("used")


@pytest.fixture(scope="module")
def flic(tree, folder):
    """flic(*words): output of the command, with the examples."""
    paths = [tree / "src", tree / "reproduction"]
    own = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))}

    command = [sys.executable, "-c", PROGRAM]
    both = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, env=own, cwd=folder, text=True, **both) as process:

        def call(*words: str) -> str:
            print(json.dumps(words), file=process.stdin, flush=True)
            code, out, err = json.loads(process.stdout.readline())
            assert code == 0, err
            return out

        yield call


@pytest.fixture(scope="module")
def run(flic, tree, folder):
    """run("key=value"): bytes that clients send in a small run of the demo with flic-hl."""

    def call(setting: str) -> int:
        words = [word for own in (*SMALL, setting) for word in ("--set", own)]
        flic("run", str(tree / "experiments" / "demo.toml"), "--out", setting, *words)
        rounds = json.loads((folder / setting / "rounds.json").read_text())
        return sum(record.get("bytes_sent", 0) for record in rounds)

    return call


@pytest.fixture(scope="module")
def usual(run) -> int:
    """Bytes that clients send without the examples."""
    return run("seed=0")


def test_a_method_is_a_file_and_an_entry(run, usual):
    assert 0 < run("method=shared-model") != usual


def test_an_anchor_scheme_is_a_file_and_an_entry(run, usual):
    assert 0 < run("training.client_weight=rows") < usual  # some anchors stay at home


def test_a_sharing_rule_is_a_file(run, usual):
    assert 0 < run("training.personalisation=own-bias") < usual  # the bias stays at home


def test_a_table_format_is_a_file_and_an_entry(flic, folder):
    for name in ("north", "south"):
        rows = [{"age": 20 + i, "ill": i % 2} for i in range(20)]
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    flic("init", "wards", "north.jsonl", "south.jsonl", "--label", "ill")
    assert "shared by 2 of 2: age" in flic("check", "wards/federation.toml")


def test_a_study_is_a_file(flic, folder):
    assert "Demo: linked features against local" in flic("reproduce", "--list")
    assert "linked" in flic("reproduce", "demo", "--quick", "--out", "demo")
    assert (folder / "demo" / "demo.csv").exists()
