"""Every method by name: FLIC, linked features, the baselines, and those of other packages.

A package adds one with an entry point of the group `flic.methods` that names its class.
"""

from collections.abc import Iterator, Mapping
from importlib import import_module
from importlib.metadata import entry_points
from typing import TYPE_CHECKING

from flic.errors import ConfigError

if TYPE_CHECKING:
    import torch

    from flic.method_settings import MethodSettings
    from flic.methods.protocol import Method, Population


class Methods(Mapping[str, "type[Method]"]):
    """Methods by name; the file of one is imported when it is asked for.

    Reading the names alone, as commands do, imports none of them.
    """

    def __init__(self, homes: Mapping[str, str]) -> None:
        self._homes = homes

    def __getitem__(self, name: str) -> "type[Method]":
        module, _, kind = self._homes[name].partition(":")
        try:
            return getattr(import_module(module), kind)
        except (ImportError, AttributeError) as error:
            if name in _OWN:
                raise
            raise ConfigError(
                f"method {name!r} comes from another package, as {self._homes[name]!r}, and cannot "
                f"be imported ({error}); expected module:Class. Repair or remove that package."
            ) from error

    def __contains__(self, name: object) -> bool:
        return name in self._homes

    def __iter__(self) -> Iterator[str]:
        return iter(self._homes)

    def __len__(self) -> int:
        return len(self._homes)


_OWN = {
    "local": "baselines.local:Local",
    "flic-class": "flic.algorithm:FlicClass",
    "flic-hl": "flic.algorithm:FlicHL",
    "permuted-anchors": "baselines.permuted_anchors:PermutedAnchors",
    "hetfedrep": "baselines.hetfedrep:HetFedRep",
    "fedhenn": "baselines.fedhenn:FedHeNN",
    "within-space": "baselines.within_space:WithinSpace",
    "fedavg": "baselines.fedavg:FedAvg",
    "linked": "linked.linked:Linked",
    "lda": "baselines.estimators:Lda",
    "logistic": "baselines.estimators:Logistic",
    "ridge": "baselines.estimators:Ridge",
    "boosting": "baselines.estimators:Boosting",
}
_ADDED = {entry.name: entry.value for entry in sorted(entry_points(group="flic.methods"))}

_HOMES = {name: f"{__name__}.{home}" for name, home in _OWN.items()}

METHODS = Methods({**_HOMES, **{n: home for n, home in _ADDED.items() if n not in _HOMES}})


def build_method(
    name: str,
    settings: "MethodSettings",
    population: "Population",
    *,
    seed: int,
    dtype: "torch.dtype | None" = None,
) -> "Method":
    """The method of that name, ready to run; in single precision by default."""
    import torch

    if name not in METHODS:
        raise ConfigError(f"method is {name!r}; expected one of {', '.join(METHODS)}.")
    task = population.task.name
    if task not in METHODS[name].tasks:
        able = [method for method in _OWN if task in METHODS[method].tasks]
        raise ConfigError(
            f"method is {name!r}, which does {' and '.join(METHODS[name].tasks)}; these data ask "
            f"for {task}. Choose one of {', '.join(able)}."
        )
    return METHODS[name](settings, population, seed=seed, dtype=dtype or torch.float32)
