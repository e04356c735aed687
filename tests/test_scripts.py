"""The scripts as a user runs them, on a throw-away copy and without a real install."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[1]

# A Python that notes each `venv` and `pip` it is asked for and makes only what the scripts look
# at; every other question goes to the real one. PIP_SAYS is a line of shell to run as pip.
STAND_IN = f"""#!/bin/sh
note() {{ echo "$1" >> "$CALLS"; }}
case "$1 $2" in
  "-m venv")
    note venv; rm -rf "$4"; mkdir -p "$4/bin"; cp "$0" "$4/bin/python"
    echo "$4/bin/python" > "$4/bin/pip"
    for tool in flic ruff basedpyright lint-imports; do
      printf '#!/bin/sh\\necho "ran %s: $*"\\ntest "$FAILING" != %s\\n' $tool $tool > "$4/bin/$tool"
      chmod +x "$4/bin/$tool"
    done ;;
  "-m pip") note "pip $*"; eval "${{PIP_SAYS:-true}}" ;;
  "-m pytest") echo "MKL=$MKL_CBWR ATen=$ATEN_CPU_CAPABILITY ran $*" ;;
  *) exec "{sys.executable}" "$@" ;;
esac
"""


class Project:
    """A copy of what the scripts need, in a folder whose name has a space."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "a project"
        self.elsewhere = folder / "elsewhere"
        self.elsewhere.mkdir()
        for name in ("scripts", ".ci"):
            shutil.copytree(ROOT / name, self.root / name)
        for name in ("pyproject.toml", "constraints.txt", "README.md"):
            shutil.copy(ROOT / name, self.root)
        (self.root / "reproduction").mkdir()
        shutil.copy(ROOT / "reproduction" / "pyproject.toml", self.root / "reproduction")
        (self.root / "src" / "flic").mkdir(parents=True)
        (self.root / "src" / "flic" / "__init__.py").touch()
        self.calls_file = folder / "calls"
        self.stand_in = self.executable("stand-in", STAND_IN)

    def executable(self, name: str, text: str) -> Path:
        path = self.elsewhere / name
        path.write_text(text)
        path.chmod(0o755)
        return path

    @property
    def calls(self) -> list[str]:
        lines = self.calls_file.read_text().splitlines() if self.calls_file.exists() else []
        return [line.split()[0] for line in lines]

    def start(self, *command: str, **changes: str) -> subprocess.Popen[str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("FLIC", "PIP_", "PYTEST"))}
        kept |= {"PYTHON": str(self.stand_in), "CALLS": str(self.calls_file)} | changes
        return subprocess.Popen(
            [str(self.root / command[0]), *command[1:]],
            cwd=self.elsewhere,
            env=kept,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def run(self, *command: str, **changes: str) -> tuple[int, str]:
        process = self.start(*command, **changes)
        said, _ = process.communicate(timeout=60)
        return process.returncode, said


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def test_demo_runs_from_another_folder_and_passes_arguments_on(project: Project) -> None:
    code, said = project.run("scripts/demo", "--seed", "two words")
    assert code == 0
    assert "ran flic: compare experiments/demo.toml --methods local,fedavg,flic-hl,linked" in said
    assert "--out runs/demo-2" in said
    assert "--seed two words" in said
    assert "-c constraints.txt -e .[demo]" in project.calls_file.read_text()


def test_second_run_skips_the_install(project: Project) -> None:
    project.run("scripts/demo")
    code, said = project.run("scripts/demo")
    assert code == 0
    assert "Installing" not in said
    assert project.calls == ["venv", "pip"]


def test_demo_is_content_with_what_the_tests_installed(project: Project) -> None:
    project.run("scripts/check")
    project.run("scripts/demo")
    assert project.calls == ["venv", "pip"]


@pytest.mark.parametrize("name", ["pyproject.toml", "constraints.txt"])
def test_a_changed_requirement_installs_again(project: Project, name: str) -> None:
    project.run("scripts/demo")
    with (project.root / name).open("a") as file:
        file.write("# changed\n")
    project.run("scripts/demo")
    assert project.calls == ["venv", "pip", "pip"]


def test_test_runs_the_checks_once_set_up_and_then_pytest(project: Project) -> None:
    code, said = project.run("scripts/test", "-k", "bures")
    assert code == 0
    order = ["== ruff format", "== ruff lint", "== basedpyright", "== lint-imports", "== pytest"]
    assert [line for line in said.splitlines() if line.startswith("==")] == order
    assert said.rstrip().endswith("-k bures")
    assert project.calls == ["venv", "pip"]


def test_fast_tests_leave_out_what_takes_long(project: Project) -> None:
    code, said = project.run("scripts/test", "fast", "-k", "bures")
    assert code == 0
    ran = said.splitlines()[-1]
    assert "-m not slow and not process and not browser" in ran
    assert ran.endswith("-k bures")
    assert "== ruff" not in said


WRONG = [[], ["soon"], ["0"], ["0.0"], ["-1"], ["1e3"], ["5", "x"], ["5", "1", "2"]]


@pytest.mark.parametrize("name", ["fuzz", "soak"])
def test_minutes_that_are_none_are_refused_in_one_sentence(project: Project, name: str) -> None:
    project.run("scripts/check")
    for wrong in WRONG:
        code, said = project.run(f"scripts/{name}", *wrong)
        assert code == 1
        assert f"got '{' '.join(wrong)}'; expected MINUTES above 0, and maybe" in said
        assert len(said.splitlines()) == 1


def test_ci_walks_the_code_paths_of_other_processors(project: Project) -> None:
    code, said = project.run(".ci/run", MKL_CBWR="", ATEN_CPU_CAPABILITY="")
    assert code == 0
    headings = [line for line in said.splitlines() if line.startswith("==")]
    assert headings[-3:] == [
        "== pytest",
        "== MKL_CBWR=COMPATIBLE",
        "== ATEN_CPU_CAPABILITY=default",
    ]
    assert said.count("tests/contract") == 2
    assert "MKL=COMPATIBLE ATen= " in said
    assert "MKL= ATen=default " in said


def test_check_runs_every_tool_and_names_the_one_that_failed(project: Project) -> None:
    code, said = project.run("scripts/check", FAILING="basedpyright")
    assert code != 0
    assert "ran lint-imports" in said
    assert said.rstrip().endswith("failed: basedpyright")


def test_ci_fails_when_a_check_fails(project: Project) -> None:
    code, said = project.run(".ci/run", FAILING="lint-imports")
    assert code != 0
    assert "== ATEN_CPU_CAPABILITY=default" in said


@pytest.mark.parametrize("script", ["demo", "test", "check"])
def test_an_old_python_is_refused_in_one_sentence(project: Project, script: str) -> None:
    old = project.executable("old", "#!/bin/sh\necho 3.9.2\n")
    code, said = project.run(f"scripts/{script}", PYTHON=str(old))
    assert code != 0
    assert f"Python 3.9.2 ({old}) is too old: flic needs Python 3.11 or newer" in said
    assert f"PYTHON=python3.12 {project.root}/scripts/{script}" in said
    assert len(said.splitlines()) == 1


def test_a_newer_name_is_found_when_python3_is_old(project: Project) -> None:
    project.executable("python3", "#!/bin/sh\necho 3.9.2\n")
    project.executable("python3.13", "#!/bin/sh\nexit 127\n")
    project.executable("python3.12", STAND_IN)
    code, said = project.run("scripts/demo", PYTHON="", PATH=f"{project.elsewhere}:/usr/bin:/bin")
    assert (code, project.calls) == (0, ["venv", "pip"]), said


def test_a_missing_python_is_named(project: Project) -> None:
    code, said = project.run("scripts/demo", PYTHON="no-such-python")
    assert code != 0
    assert "no-such-python was not found or does not run: install Python 3.11 or newer" in said


def test_a_python_without_venv_is_told_apart(project: Project) -> None:
    bare = f'#!/bin/sh\ncase "$*" in *ensurepip*) exit 1;; esac\nexec "{sys.executable}" "$@"\n'
    code, said = project.run("scripts/demo", PYTHON=str(project.executable("bare", bare)))
    assert code != 0
    assert "has no venv module: install it" in said


@pytest.mark.parametrize("retries", ["0", "1"])
def test_an_index_out_of_reach_is_named(project: Project, retries: str) -> None:
    """The real pip says different things with and without retries, so it is asked."""
    pip = f'"{sys.executable}" "$@" --dry-run --target "$PWD/nowhere"'
    settings = {
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_FIND_LINKS": "",
        "PIP_INDEX_URL": "http://127.0.0.1:9/simple",
        "PIP_RETRIES": retries,
    }
    code, said = project.run("scripts/demo", PIP_SAYS=pip, no_proxy="127.0.0.1", **settings)
    assert code != 0
    assert "did not run successfully" in said
    last = said.splitlines()[-1]
    assert "pip could not reach a package index" in last
    assert str(project.root / ".venv" / "pip.log") in last


def test_another_failure_of_pip_is_not_blamed_on_the_network(project: Project) -> None:
    code, said = project.run("scripts/demo", PIP_SAYS="echo no space left; exit 1")
    assert code != 0
    assert "no space left" in said
    assert "pip could not install flic" in said.splitlines()[-1]
    assert project.run("scripts/demo")[0] == 0
    assert project.calls == ["venv", "pip", "pip"]


def test_two_runs_at_once_install_once(project: Project) -> None:
    runs = [project.start("scripts/demo", PIP_SAYS="sleep 1") for _ in range(2)]
    said = [run.communicate(timeout=60)[0] for run in runs]
    assert [run.returncode for run in runs] == [0, 0]
    assert all("ran flic" in text for text in said)
    assert project.calls == ["venv", "pip"]
    outs = {text.split("--out ")[1].split()[0] for text in said}
    assert len(outs) == 2


def test_an_interrupted_install_is_made_anew(project: Project) -> None:
    interrupted = project.start("scripts/demo", PIP_SAYS="sleep 30")
    deadline = time.monotonic() + 30
    while "pip" not in project.calls and time.monotonic() < deadline:
        time.sleep(0.05)
    os.killpg(interrupted.pid, signal.SIGKILL)
    interrupted.communicate()
    assert project.run("scripts/demo")[0] == 0
    assert project.calls == ["venv", "pip", "venv", "pip"]


@pytest.mark.parametrize("lost", ["python", "pip"])
def test_an_environment_that_lost_its_python_is_made_anew(project: Project, lost: str) -> None:
    project.run("scripts/demo")
    (project.root / ".venv" / "bin" / lost).unlink()
    (project.root / ".venv" / "bin" / lost).symlink_to("gone")
    assert project.run("scripts/demo")[0] == 0
    assert project.calls == ["venv", "pip", "venv", "pip"]


def test_a_moved_project_is_made_anew(project: Project) -> None:
    project.run("scripts/demo")
    project.root = project.root.rename(project.root.with_name("moved"))
    assert project.run("scripts/demo")[0] == 0
    assert project.calls == ["venv", "pip", "venv", "pip"]
