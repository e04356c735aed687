"""docs/federation-file.md names every key with its default, and its examples are sound."""

import re
import tomllib
from pathlib import Path

import pytest
from pydantic_core import PydanticUndefined

from flic.tables import Client, FederationFile
from flic.tables.declared import MISSING_MARKERS
from flic.tables.federation_file import describe

PAGE = (Path(__file__).parents[2] / "docs/federation-file.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| (`.+?) \| (.*?) \|", PAGE, flags=re.MULTILINE)
DOCUMENTED = {(key, default) for keys, default in ROWS for key in re.findall(r"`(\w+)`", keys)}


@pytest.mark.parametrize("model", [FederationFile, Client])
def test_every_key_is_documented(model):
    named = {key for key, _ in DOCUMENTED} | {"clients"}
    assert [key for key in model.model_fields if key not in named] == []


def test_defaults_are_as_documented():
    for key, field in FederationFile.model_fields.items():
        plain = isinstance(field.default, str | float)
        if plain and field.default is not PydanticUndefined:
            assert (key, f"`{field.default}`") in DOCUMENTED
    shown = dict(DOCUMENTED)["missing_markers"]
    assert ["", *re.findall(r"`(.+?)`", shown)] == [*MISSING_MARKERS]


def test_examples_are_sound():
    examples = re.findall(r"```toml\n(.*?)```", PAGE, flags=re.DOTALL)
    assert len(examples) == 2
    for example in examples:
        assert describe(tomllib.loads(example))[1] == []
