"""Every method by name: FLIC, linked features, the baselines, and those of other packages.

A package adds one with an entry point of the group `flic.methods` that names its class,
under a name that no other method has.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING

from flic.errors import ConfigError

if TYPE_CHECKING:
    import torch

    from flic.method_settings import MethodSettings
    from flic.methods.protocol import Method, Population

GROUP = "flic.methods"


class Methods(Mapping[str, "type[Method]"]):
    """Methods by name; the file of one is imported when it is asked for.

    Reading the names alone, as commands do, imports none of them. A name that two packages give
    is refused, since nobody could tell which method is meant.
    """

    def __init__(self, entries: Iterable[EntryPoint]) -> None:
        self._homes: dict[str, dict[str, EntryPoint]] = {}  # name → home → its entry point
        for entry in entries:
            self._homes.setdefault(entry.name, {})[entry.value] = entry

    def __getitem__(self, name: str) -> "type[Method]":
        home, *others = self._homes[name]
        if others:
            raise ConfigError(
                f"method {name!r} comes from {' and from '.join(self._origins(name))}; expected "
                "one of that name. Rename the entry point, or remove the package that you do not "
                "want."
            )
        module, _, kind = home.partition(":")
        try:
            return getattr(import_module(module), kind)
        except (ImportError, AttributeError) as error:
            if name in _OWN:
                raise
            raise ConfigError(
                f"method {name!r} comes from another package, as {home!r}, and cannot "
                f"be imported ({error}); expected module:Class. Repair or remove that package."
            ) from error

    def _origins(self, name: str) -> Iterator[str]:
        for home, entry in self._homes[name].items():
            yield f"package {entry.dist.name!r}, as {home!r}," if entry.dist else "flic itself"

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
_HOMES = [EntryPoint(name, f"{__name__}.{home}", GROUP) for name, home in _OWN.items()]

METHODS = Methods([*_HOMES, *sorted(entry_points(group=GROUP))])


def own_methods(fits: "Callable[[type[Method]], bool]") -> list[str]:
    """Names of flic's own methods that fit, for errors: another package's may be broken."""
    return [name for name in _OWN if fits(METHODS[name])]


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
        able = own_methods(lambda method: task in method.tasks)
        raise ConfigError(
            f"method is {name!r}, which does {' and '.join(METHODS[name].tasks)}; these data ask "
            f"for {task}. Choose one of {', '.join(able)}."
        )
    return METHODS[name](settings, population, seed=seed, dtype=dtype or torch.float32)
