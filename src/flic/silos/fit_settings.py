"""Settings of a fit on tables: splits of rows, candidates, training of networks.

The `[fit]` table of a federation.toml, or the keyword arguments of `Federation.fit`.
"""

from collections.abc import Mapping
from functools import cached_property
from typing import Any, Literal, get_args

from pydantic import Field, field_validator

from flic.data.task import Task, TaskName
from flic.errors import ConfigError
from flic.method_settings import MIN_ROWS, MetaClasses, MethodSettings, refuse_endless
from flic.presets import PRESETS
from flic.settings import Section, merge, strictly, validated

ClassMetric = Literal["accuracy", "balanced_accuracy", "auroc", "log_loss", "calibration_error"]
ResponseMetric = Literal["r2", "rmse", "mae"]
Metric = Literal[ClassMetric, ResponseMetric]
FlicMethod = Literal["flic-class", "flic-hl"]

#: Networks for tables: few silos, all of them active, few rows and uneven classes each. The head
#: predicts, since the nearest anchor ignores how frequent a class is.
NETWORK: dict[str, Any] = merge(
    PRESETS["recommended"],
    {
        "training": {
            "rounds": 12,
            "participation": 1.0,
            "local": "20 steps",  # not epochs: a silo of 30 rows would hardly move
            "shared": "5 steps",
            "batch_size": 32,
        },
        "embedding": {"hidden": [64], "latent_dim": 16},
        "pretraining": {"epochs": 20, "batch_size": 32},
        "model": {"predict_by": "head"},
        # As in a real federation, so that the verdict applies to one.
        "linked": {
            "scatter": "directions",
            "max_numbers_per_value": 0.5,
            "min_rows": MIN_ROWS,
        },
    },
)


class FitSettings(Section):
    """All settings of a fit."""

    seed: int = Field(default=0, ge=0)
    repeats: int = Field(default=5, ge=2, le=1000)  # splits, or passes of cross-validation
    scheme: Literal["auto", "splits", "cross-validation"] = "auto"
    test_share: float = Field(default=0.25, gt=0, le=0.5)
    folds: int = Field(default=3, ge=2)  # within the training rows, to choose a model
    metric: Metric | None = None  # None: accuracy, or R²
    candidates: tuple[str, ...] = ()  # names of the models to compare; empty: all
    meta_classes: MetaClasses = None  # anchors, or the anchor of each class
    flic_method: FlicMethod = "flic-class"  # the method of the candidate "flic"
    network: dict[str, Any] = Field(default_factory=dict)  # on top of NETWORK, section by section

    @field_validator("network")
    @classmethod
    def _known_settings(cls, network: dict[str, Any]) -> dict[str, Any]:
        strictly(MethodSettings, merge(NETWORK, network))
        return network

    @property
    def has_usual_candidates(self) -> bool:
        """True if all candidates are compared as they are, which any tables allow."""
        return not (self.candidates or self.network or self.meta_classes)

    @property
    def method(self) -> MethodSettings:
        """Settings of the networks."""
        return self.method_with({})

    def method_with(self, changes: Mapping[str, Any]) -> MethodSettings:
        """Settings of the networks with some changes; the user's own take precedence."""
        key = repr((self.meta_classes, changes, self.network))  # a copy may have others
        if key not in self._known_methods:
            usual = merge(NETWORK, {"anchors": {"meta_classes": self.meta_classes}})
            found = MethodSettings.model_validate(merge(merge(usual, changes), self.network))
            self._known_methods[key] = found
        return self._known_methods[key]

    @cached_property
    def _known_methods(self) -> dict[str, MethodSettings]:
        """Settings by their changes: each is asked for on every split."""
        return {}

    def variant(self, method: str) -> str:
        """The method that stands for another in this fit: flic has two variants."""
        return self.flic_method if method in get_args(FlicMethod) else method

    def metric_for(self, task: Task) -> str:
        """The metric of the verdict."""
        return self.metric or ("accuracy" if task.name == "classification" else "r2")


def fit_settings(raw: Mapping[str, Any], *, task: TaskName, source: str) -> FitSettings:
    """The settings, or one error that lists every bad key."""
    within = {"network": MethodSettings}
    settings = validated(FitSettings, raw, source=source, within=within)
    refuse_endless(settings.method, source=f"{source}, network")
    kind = ClassMetric if task == "classification" else ResponseMetric
    if settings.metric is not None and settings.metric not in get_args(kind):
        raise ConfigError(
            f"{source}: metric is {settings.metric!r}, and the task is {task}; expected one "
            f"of {', '.join(get_args(kind))}."
        )
    return settings
