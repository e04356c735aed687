"""Commands and code in the documents work as printed."""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import BaseModel

import dask_cluster
from flic.config import RunConfig
from flic.silos.fit_settings import NETWORK
from flic_paper.benchmark import speed as benchmark
from flic_paper.studies import STUDIES
from flic_paper.study import Scope

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]

# What a document shows at full size runs here in small: the command is the printed one, and
# these settings come last.
SMALL = [
    "training.rounds=1",
    "training.local=1 epoch",
    "pretraining.epochs=1",
    "data.num_clients=4",
    "training.participation=0.5",
]


def _blocks(page: Path, language: str) -> list[str]:
    text = page.read_text(encoding="utf-8")
    return re.findall(rf"```{language}\n(.*?)```", text, flags=re.DOTALL)


def _commands() -> list[tuple[str, str]]:
    lines = [
        (page.name, line.split("#")[0].strip())
        for page in PAGES
        for block in _blocks(page, "sh")
        for line in block.splitlines()
    ]
    return [(page, line) for page, line in lines if line]


# Commands on tables build on each other: those of a page run in order, in one folder.
ON_TABLES = ("init", "check", "fit", "predict", "evaluate", "join", "report")
SMALL_FIT = [
    "repeats=2",
    "folds=2",
    "network.training.rounds=1",
    "network.training.local=1 steps",
    "network.pretraining.epochs=1",
    'candidates=["lda", "flic"]',
]


def _is_on_tables(command: str) -> bool:
    words = command.split()
    return words[0] == "scripts/heart_disease.py" or (
        words[:1] == ["flic"] and words[1] in ON_TABLES
    )


FLIC_COMMANDS = [(p, c) for p, c in _commands() if c.startswith("flic ") and not _is_on_tables(c)]
PAGES_ON_TABLES = [
    page for page in PAGES if any(p == page.name and _is_on_tables(c) for p, c in _commands())
]


def test_every_command_is_a_script_or_flic() -> None:
    others = [c for _, c in _commands() if not c.startswith(("flic ", "dask "))]
    assert len(FLIC_COMMANDS) > 3
    assert all((ROOT / command.split()[0]).is_file() for command in others)


def test_a_cluster_is_started_as_the_tests_do() -> None:
    commands = [shlex.split(c)[1:] for _, c in _commands() if c.startswith("dask ")]
    scheduler, [word, _, *options] = commands
    assert scheduler[:-1] == dask_cluster.SCHEDULER[:-1]  # the address is another
    assert (word, options[::2]) == ("worker", dask_cluster.WORKER[::2])


def _marked(page: str, command: str) -> object:
    is_long = any(f"flic {word}" in command for word in ("compare", "reproduce", "bench"))
    marks = [*[pytest.mark.slow] * is_long, *[pytest.mark.process] * ("--cluster" in command)]
    return pytest.param(page, command, marks=marks)


def _first_cell(words: list[str]) -> list[str]:
    """Options that make a reproduction small; test_reproduce.py runs every study, quick."""
    quick = [] if "--quick" in words else ["--quick"]
    if "--only" in words:
        return quick
    return [*quick, "--only", STUDIES[words[1]].cells(Scope(quick=True))[0].key]


#: `flic bench` in small: what it prints is looked at, not its figures.
SMALL_BENCH = {"CLIENTS": 4, "CLASSES": 4, "ROWS": 100, "ACTIVE": 2, "REPETITIONS": 1}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("page", "command"), [_marked(*own) for own in FLIC_COMMANDS], ids=lambda value: value
)
def test_flic_command_works(
    page, command, flic_here, tmp_path, monkeypatch, need_data_of, request
) -> None:
    del page
    for folder in ("experiments", "docs"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    for name, value in SMALL_BENCH.items():
        monkeypatch.setattr(benchmark, name, value)
    words = shlex.split(command)[1:]
    small = [part for setting in SMALL for part in ("--set", setting)]
    if words[0] in ("run", "compare") and "--resume" not in words:
        words += small
    if "--cluster" in words:
        words[words.index("--cluster") + 1] = request.getfixturevalue("cluster").address
    if "--workers" in words:  # processes take longer to start than these runs last
        words[words.index("--workers") + 1] = "1"
    if words[0] == "reproduce" and not {"--list", "--page"} & set(words):
        need_data_of(words[1])
        words += _first_cell(words)
    if "--seeds" in words:
        words[words.index("--seeds") + 1] = "1"
    if "--resume" in words:
        folder = words[words.index("--resume") + 1]
        assert flic_here("run", "experiments/demo.toml", "--out", folder, *small).code == 0
    if "--page" in words:
        results = Path("reproduction") / "results"
        shutil.copytree(ROOT / results, tmp_path / results)
    done = flic_here(*words)
    assert done.code == 0, done.err
    assert done.out
    if "--page" in words:  # the page is what the kept cells say
        page = tmp_path / words[words.index("--page") + 1]
        assert page.read_text() == (ROOT / "docs" / page.name).read_text()


@pytest.mark.process
@pytest.mark.parametrize("page", PAGES_ON_TABLES, ids=lambda page: page.name)
def test_commands_on_tables_work_in_order(page: Path, flic_here, tmp_path: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for language, block in re.findall(r"```(sh|toml)\n(.*?)```", text, flags=re.DOTALL):
        first, _, rest = block.partition("\n")
        if language == "toml" and first.startswith("# ") and first.endswith(".toml"):
            (tmp_path / first.removeprefix("# ")).write_text(rest, encoding="utf-8")
        if language == "sh":
            for line in filter(None, (line.split("#")[0].strip() for line in block.splitlines())):
                if _is_on_tables(line):
                    _follow(shlex.split(line), flic_here, tmp_path)


def _follow(words: list[str], flic_here, folder: Path) -> None:
    if words[0].startswith("scripts/"):
        script = [sys.executable, str(ROOT / words[0]), *words[1:]]
        subprocess.run(script, cwd=folder, check=True, capture_output=True, timeout=300)
        return
    if words[1] == "fit":
        words += [part for setting in SMALL_FIT for part in ("--set", setting)]
    done = flic_here(*words[1:])
    assert done.code == 0, done.err
    assert done.out


@pytest.mark.slow
@pytest.mark.parametrize(
    "page", [page for page in PAGES if _blocks(page, "python")], ids=lambda page: page.name
)
def test_python_code_runs(page: Path, tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(NETWORK["training"], "rounds", 1)  # of a fit; it trains dozens of networks
    monkeypatch.setitem(NETWORK["training"], "local", "1 steps")
    monkeypatch.setitem(NETWORK["pretraining"], "epochs", 1)
    for code in _blocks(page, "python"):
        if code.startswith("# "):  # a file with that name, which test_contributing.py adds
            continue
        exec(compile(code, page.name, "exec"), {"__name__": "__main__"})
        assert capsys.readouterr().out


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_to_files_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\((?!http)([^)#]+)\)", page.read_text(encoding="utf-8"))
    assert [t for t in targets if not (page.parent / t).exists()] == []


def _keys(model: type[BaseModel], prefix: str = "") -> list[str]:
    found: list[str] = []
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            found += _keys(field.annotation, f"{prefix}{name}.")
        else:
            found.append(f"{prefix}{name}")
    return found


def test_every_setting_and_its_default_is_documented() -> None:
    page = (ROOT / "docs/configuration.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`.+?`) \| (.*?) \|", page, flags=re.MULTILINE)
    documented = {key: default for keys, default in rows for key in re.findall(r"`(.+?)`", keys)}
    resolved = RunConfig.model_validate({"data": {"problem": "digits"}}).model_dump(mode="json")
    for key in _keys(RunConfig):
        if key in ("data", "methods"):
            continue
        short = key.removeprefix("training.")
        assert short in documented or key in documented, key
        value = resolved
        for part in key.split("."):
            value = value[part]
        shown = documented.get(key, documented.get(short, ""))
        assert shown.strip('`"') == (
            str(value) if value not in (True, False) else str(value).lower()
        ), key
