"""silo.toml: the settings of a silo that are its own, and how they are written."""

import json
from collections.abc import Mapping
from typing import Any

from pydantic import Field

from flic.method_settings import MAX_NUMBERS_PER_VALUE, MIN_ROWS, Scatter
from flic.notation import toml_key, toml_text
from flic.settings import validated
from flic.tables import Client

FILE = "silo.toml"


class SiloFile(Client):
    """silo.toml: where a silo's rows lie, how many are held out, what it does not tell."""

    test_share: float = Field(default=0.25, gt=0, le=0.5)
    # The federation's own count where they tell less.
    min_rows: int = Field(default=MIN_ROWS, ge=1)
    scatter: Scatter = "full"
    max_numbers_per_value: float = Field(default=0.5, gt=0, validation_alias=MAX_NUMBERS_PER_VALUE)
    max_runs: int = Field(default=10, ge=1)  # of linked columns, those begun anew counted again
    min_holders: int = Field(default=3, ge=2)  # silos behind every sum that it adds to


def silo_file(client: Client, own: Mapping[str, Any]) -> tuple[SiloFile, str]:
    """The file of a client with settings of its own, and its text."""
    said = {**stated(client), **own}
    file = validated(SiloFile, said, source=FILE)
    return file, "".join(f"{key} = {_toml(value)}\n" for key, value in said.items())


def stated(client: Client) -> dict[str, Any]:
    """The settings of a client that were given, without those left at their defaults."""
    said = [key for key in Client.model_fields if key in client.model_fields_set]
    return {key: value for key in said if (value := getattr(client, key)) is not None}


def _toml(value: Any) -> str:
    """A value as TOML, whose numbers are those of JSON."""
    if isinstance(value, Mapping):
        return f"{{ {', '.join(f'{toml_key(k)} = {_toml(v)}' for k, v in value.items())} }}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    return toml_text(value) if isinstance(value, str) else json.dumps(value)
