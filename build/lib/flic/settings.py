"""What every file of settings stands on: sections that refuse unknown keys, TOML, plain errors."""

import json
import tomllib
from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from flic.errors import ConfigError


class Section(BaseModel):
    """A frozen part of the configuration that refuses unknown keys."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, arbitrary_types_allowed=True
    )


def merge(base: Mapping[str, Any], override: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with the keys of `override` on top, section by section."""
    merged = deepcopy(dict(base))
    for key, value in override.items():
        both = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = merge(merged[key], value) if both else deepcopy(value)
    return merged


def read_toml(path: Path) -> dict[str, Any]:
    """Settings of a TOML file, not yet resolved."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file; expected settings in TOML.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read as UTF-8 text ({error}).") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: not valid TOML: {error}.") from None


def parse_assignment(text: str) -> dict[str, Any]:
    """Nested settings from a dotted `key=value`; the value is read as TOML, else as text."""
    key, separator, value = text.partition("=")
    parts = key.strip().split(".")
    if not separator or not all(parts):
        raise ConfigError(
            f"--set {text!r}: expected key=value with a dotted key, such as training.rounds=10."
        )
    try:
        parsed: Any = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        parsed = value.strip()
    for part in reversed(parts):
        parsed = {part: parsed}
    return parsed


def explain(
    problem: Mapping[str, Any],
    model: type[BaseModel],
    variants: Mapping[str, type[BaseModel]] | None = None,
) -> str:
    """One sentence for one problem pydantic found in a `model`.

    `variants` are the models of a tagged union by tag, which pydantic puts into its locations.
    """
    variants = variants or {}
    location = [str(part) for part in problem["loc"]]
    key = ".".join(part for part in location if part not in variants) or "the whole"
    if problem["type"] == "extra_forbidden":
        known = _known_keys(location[:-1], model, variants)
        return f"{key}: unknown key; expected one of {', '.join(known)}"
    if problem["type"] == "missing":
        return f"{key}: missing; this key is needed"
    if problem["type"].startswith("union_tag"):
        got = json.dumps(problem["ctx"].get("tag", "nothing"))
        return f"{key}.problem: got {got}; expected one of {', '.join(variants)}"
    message = problem["msg"].removeprefix("Value error, ")
    message = message.replace("an object", "a table of settings")
    if problem["type"] == "value_error" and isinstance(problem["input"], dict):
        return f"{key}: {message}"  # it concerns several keys, and names them
    return f"{key}: got {json.dumps(problem['input'])}; {message[0].lower()}{message[1:]}"


def _known_keys(
    location: Sequence[str], model: Any, variants: Mapping[str, type[BaseModel]]
) -> list[str]:
    """Keys of the section at `location`."""
    for part in location:
        model = variants.get(part) or model.model_fields[part].annotation
    return list(model.model_fields)
