"""A short run of every target that `scripts/fuzz` runs for long, and the program itself."""

import os
import signal
import sys
import time
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import long_run
import pytest
import targets
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mutations import ODD, Case, toml_file, varied
from targets import MAKERS, FuzzTarget, Trouble, attempt

from flic.errors import ConfigError
from flic.flower.silo_file import SiloFile
from flic.tables.federation_file import FederationFile

pytestmark = pytest.mark.slow

EXAMPLES = 12


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    """made(name): a target and a place to try it."""

    @cache
    def make(name: str) -> tuple[FuzzTarget, Path]:
        root = tmp_path_factory.mktemp("target")
        return MAKERS[name](root), root / "now"

    return make


def holds(strategy: st.SearchStrategy[Any], examples: int = EXAMPLES):
    """Decorator: try the function with so many values, the same ones every time."""
    how = settings(
        max_examples=examples,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=[*HealthCheck],
    )
    return lambda function: how(given(strategy)(function))()


def sound(target: FuzzTarget, case: Case, folder: Path) -> None:
    found = attempt(target, case, folder)
    assert not isinstance(found, Trouble), found.traceback


@pytest.mark.parametrize("name", MAKERS)
def test_what_flic_wrote_is_read(made, name):
    target, folder = made(name)
    for case in target.seeds:
        found = attempt(target, case, folder)
        assert found is None, found


@pytest.mark.parametrize("name", MAKERS)
def test_whatever_is_changed_in_a_file_ends_in_a_result_or_a_sentence(made, name):
    target, folder = made(name)

    @holds(st.tuples(st.sampled_from(target.seeds), st.randoms(use_true_random=False)))
    def _(given):
        seed, random = given
        sound(target, varied(seed, random), folder)


@pytest.mark.parametrize("name", MAKERS)
def test_whatever_bytes_a_file_has_end_in_a_result_or_a_sentence(made, name):
    target, folder = made(name)
    places = [(seed, file) for seed in target.seeds for file in seed]

    @holds(st.tuples(st.sampled_from(places), st.binary(max_size=200)), EXAMPLES // 2)
    def _(given):
        (seed, file), content = given
        sound(target, {**seed, file: content}, folder)


VALUES = st.recursive(
    st.sampled_from([odd for odd in ODD if not isinstance(odd, list | dict)])
    | st.integers()
    | st.floats()
    | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=6,
)


KEYS = {"federation.toml": {*FederationFile.model_fields}, "silo.toml": {*SiloFile.model_fields}}


@pytest.mark.parametrize("name", KEYS)
def test_whatever_a_setting_is_ends_in_a_result_or_a_sentence(made, name):
    target, folder = made(name)
    keys = st.sampled_from(sorted(KEYS[name])) | st.text(max_size=8)

    @holds(st.tuples(st.sampled_from(target.seeds), keys, VALUES, st.booleans()))
    def _(given):
        seed, key, value, inside = given
        [(file, content)] = seed.items()
        tree = tomllib.loads(content.decode())
        (tree["clients"][0] if inside and "clients" in tree else tree)[key] = value
        sound(target, {file: toml_file(tree).encode("utf-8", "surrogatepass")}, folder)


# ---- the program ---------------------------------------------------------------------------


SOON = 5  # a seed by which every digit comes among the first cases


def stumbles(folder):
    """Reads a text that begins with a digit; what else it does depends on that digit."""
    content = (folder / "text").read_bytes()
    if content[:1] == b"2":
        raise KeyError(content)
    if content[:1] == b"4":
        os.kill(os.getpid(), signal.SIGKILL)
    if content[:1] == b"5":
        bytearray(2 * targets.MEMORY)
    while content[:1] == b"6":
        time.sleep(0.1)
    if content[:1] != b"0":
        raise ConfigError("no text")


@pytest.mark.process
@pytest.mark.skipif(sys.platform != "linux", reason="memory is bounded on Linux alone")
def test_the_program_finds_every_kind_of_failure_and_keeps_it(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(targets, "WALL_SECONDS", 0.3)
    seeds = [{"text": f"{digit} and many words".encode()} for digit in (0, 2, 4, 5, 6)]
    makers = {"stumbles": lambda root: FuzzTarget(seeds, stumbles, {})}
    kinds = long_run.fuzz(makers, 0.04, SOON, tmp_path)
    said = capfd.readouterr().out
    found = {path.parent.name: path for path in tmp_path.rglob("trouble.txt")}
    assert kinds == len(found) == 4
    assert {"KeyError", "MemoryError", "-TooLong", "ends-the-process-with-exit-code--9"} == {*found}
    assert (found["KeyError"].parent / "input" / "text").read_bytes() == b"2"
    assert (
        f"KeyError, {len((found['KeyError'].parent / 'count.txt').read_text().split())} times"
        in said
    )


def test_a_seed_makes_the_same_cases_again(made):
    target, _ = made("csv")
    one, two, other = (
        [long_run.case_of(target, "csv", s, n) for n in range(20)] for s in (1, 1, 2)
    )
    assert one == two != other
