"""RunConfig: everything a run depends on, read from TOML and never changed afterwards.

A preset fills the method's settings; the file overrides single keys of it; `--set` overrides both.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import Field, field_validator

from flic.data.source import PROBLEMS, DataConfig
from flic.errors import ConfigError
from flic.method_settings import MethodSettings, refuse_endless
from flic.methods import METHODS
from flic.networks.sharing import RULES
from flic.presets import PRESETS
from flic.settings import Section, assigned, merge, read_toml, source_of, validated


class EvaluationConfig(Section):
    """Settings of evaluation: the rounds, and the validation rows."""

    every: int = Field(
        default=1, ge=0
    )  # rounds between evaluations of all clients; 0: at the end only
    validation_share: float = Field(
        default=0.2, ge=0, lt=1
    )  # of the training rows, for choosing a round


class EngineConfig(Section):
    """Settings of the engine; they change results only by rounding."""

    dtype: Literal["float32", "float64"] = "float32"
    stack_width: int = Field(default=100, ge=1)

    @property
    def torch_dtype(self) -> torch.dtype:
        """The dtype of torch."""
        return getattr(torch, self.dtype)


# Keys that all methods of a comparison share, or that define a method.
COMMON = ("data", "evaluation", "method", "methods", "preset", "seed")


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
        if method in METHODS and method not in self.methods:
            return self.model_copy(update={"method": method, "seed": seed})
        key = repr((method, self))  # a copy may have other settings
        if key not in self._known_methods:
            self._known_methods[key] = self._with_own_settings(method)
        return self._known_methods[key].model_copy(update={"seed": seed})

    @cached_property
    def _known_methods(self) -> "dict[str, RunConfig]":
        """Runs of methods with settings of their own: each is asked for with every seed."""
        return {}

    def _with_own_settings(self, method: str) -> "RunConfig":
        """The same run with another method and the settings in `methods.NAME`."""
        raw = self.model_dump(mode="json")
        own = raw["methods"].get(method, {})
        common = [key for key in COMMON if key in own]
        if common:
            raise ConfigError(
                f"[methods.{method}]: got {', '.join(common)}; all methods of a comparison have "
                "the same. Set it for all, or compare in two runs."
            )
        raw = merge(raw, own)
        return validate(raw | {"method": method}, source=f"[methods.{method}]")


def validate(raw: Mapping[str, Any], *, source: str) -> RunConfig:
    """Validate a configuration; one error lists every bad key, with what is expected."""
    config = validated(RunConfig, raw, source=source, variants=PROBLEMS)
    if config.training.personalisation not in RULES:
        raise ConfigError(
            f"{source}:\n  training.personalisation: got {config.training.personalisation!r}; "
            f"expected one of {', '.join(sorted(RULES))}"
        )
    refuse_endless(config, source=source, data=_least_bytes(config.data))
    for method in config.methods:
        if method not in METHODS:
            raise ConfigError(
                f"{source}:\n  methods: got {method!r}; expected names among {', '.join(METHODS)}"
            )
    return config


CLIENT_BYTES = 5000
"""Memory that a client with few rows takes."""


def _least_bytes(data: DataConfig) -> dict[str, int]:
    """Least memory of synthetic data, by setting; real data have a fixed size."""
    said = data.model_dump()
    rows = sum(said.get(f"{part}_rows_per_class") or 0 for part in ("train", "test"))
    return {
        "data.num_clients": CLIENT_BYTES * said.get("num_clients", 1),
        "classes and rows of data": 8 * said.get("num_classes", 1) * max(rows, 1),
    }


def resolve(raw: Mapping[str, Any], *, source: str = "configuration") -> RunConfig:
    """Configuration with its preset filled in."""
    preset = raw.get("preset", RunConfig.model_fields["preset"].default)
    filled = merge(PRESETS.get(preset, {}) if isinstance(preset, str) else {}, raw)
    config = validate(filled, source=source)
    for method in config.methods:
        config.for_method(method, seed=config.seed)  # fails on a bad key before work starts
    return config


def load_config(path: Path, assignments: Sequence[str] = ()) -> RunConfig:
    """Configuration from a TOML file, with `key=value` assignments on top."""
    source = source_of(path, assignments)
    return resolve(assigned(read_toml(path), assignments), source=source)
