"""RunConfig: everything a run depends on, read from TOML, nothing assigned after parsing.

A preset fills the method's settings; the file overrides single keys of it; `--set` overrides both.
"""

import json
import tomllib
from collections.abc import Iterable, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import Field, ValidationError, field_validator

from flic.algorithms import METHODS, MethodSettings
from flic.algorithms.presets import PRESETS
from flic.algorithms.settings import Section
from flic.data.source import DataConfig
from flic.errors import ConfigError
from flic.personal import RULES


class EvaluationConfig(Section):
    """When and on what clients are measured."""

    every: int = Field(
        default=1, ge=0
    )  # rounds between evaluations of all clients; 0: at the end only
    validation_share: float = Field(
        default=0.2, ge=0, lt=1
    )  # of the training rows, for choosing a round


class EngineConfig(Section):
    """How the work is done; none of it changes a result beyond rounding."""

    dtype: Literal["float32", "float64"] = "float32"
    stack_width: int = Field(default=100, ge=1)

    @property
    def torch_dtype(self) -> torch.dtype:
        """The dtype as torch names it."""
        return getattr(torch, self.dtype)


class RunConfig(MethodSettings):
    """One run: data, method, settings, seed."""

    method: str = "flic-hl"
    preset: Literal["paper", "authors", "recommended"] = "paper"
    seed: int = Field(default=0, ge=0)
    data: DataConfig
    evaluation: EvaluationConfig = EvaluationConfig()
    engine: EngineConfig = EngineConfig()
    methods: dict[str, dict[str, Any]] = Field(default_factory=dict)  # settings of single methods

    @field_validator("method")
    @classmethod
    def _known_method(cls, method: str) -> str:
        if method not in METHODS:
            raise ValueError(f"expected one of {', '.join(METHODS)}")
        return method

    def for_method(self, method: str, *, seed: int) -> "RunConfig":
        """The same run with another method and seed; `methods.NAME` overrides apply."""
        raw = self.model_dump(mode="json")
        raw = merge(raw, raw["methods"].get(method, {}))
        return validate(raw | {"method": method, "seed": seed}, source=f"[methods.{method}]")


def merge(base: Mapping[str, Any], override: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with the keys of `override` on top, section by section."""
    merged = deepcopy(dict(base))
    for key, value in override.items():
        both = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = merge(merged[key], value) if both else deepcopy(value)
    return merged


def validate(raw: Mapping[str, Any], *, source: str) -> RunConfig:
    """The configuration, or one error that lists every bad key: what it got, what it may be."""
    try:
        config = RunConfig.model_validate(raw)
    except ValidationError as error:
        lines = [f"{source}:", *(_explain(problem, raw) for problem in error.errors())]
        raise ConfigError("\n  ".join(lines)) from None
    if config.training.personalisation not in RULES:
        raise ConfigError(
            f"{source}:\n  training.personalisation: got {config.training.personalisation!r}; "
            f"expected one of {', '.join(sorted(RULES))}"
        )
    for method in config.methods:
        if method not in METHODS:
            raise ConfigError(
                f"{source}:\n  methods: got {method!r}; expected names among {', '.join(METHODS)}"
            )
    return config


def resolve(raw: Mapping[str, Any], *, source: str = "configuration") -> RunConfig:
    """The configuration with its preset filled in."""
    preset = raw.get("preset", RunConfig.model_fields["preset"].default)
    filled = merge(PRESETS.get(preset, {}) if isinstance(preset, str) else {}, raw)
    config = validate(filled, source=source)
    for method in config.methods:
        config.for_method(method, seed=config.seed)  # refuses a bad key before work starts
    return config


def load_config(path: Path, assignments: Iterable[str] = ()) -> RunConfig:
    """Configuration from a TOML file, with `key=value` assignments on top."""
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file; expected a run's settings in TOML.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read as UTF-8 text ({error}).") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: not valid TOML: {error}.") from None
    for assignment in assignments:
        raw = merge(raw, parse_assignment(assignment))
    return resolve(raw, source=str(path))


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


def _explain(problem: Mapping[str, Any], raw: Mapping[str, Any]) -> str:
    """One sentence for one problem pydantic found."""
    location = [str(part) for part in problem["loc"] if part not in _TAGS]
    key = ".".join(location)
    if problem["type"] == "extra_forbidden":
        return f"{key}: unknown key; {_known_keys(location)}"
    if problem["type"] == "missing":
        return f"{key}: missing; this key is needed"
    message = problem["msg"].removeprefix("Value error, ")
    return (
        f"{key}: got {json.dumps(problem['input'], default=str)}; {message[0].lower()}{message[1:]}"
    )


# The discriminator of a union shows up in pydantic's locations; it is not a key of the file.
_TAGS = {"noisy-features", "linear-mapping", "digits"}


def _known_keys(location: list[str]) -> str:
    model: Any = RunConfig
    for part in location[:-1]:
        model = getattr(model.model_fields.get(part), "annotation", None)
        if not hasattr(model, "model_fields"):
            return "remove it or see the documentation of this section"
    return f"expected one of {', '.join(model.model_fields)}"
