"""Part 5 of the flow: every method as a client half and a server half, chosen by name."""

import torch

from flic.algorithms.estimators import Boosting, Lda, Logistic, Ridge
from flic.algorithms.fedavg import FedAvg
from flic.algorithms.fedhenn import FedHeNN
from flic.algorithms.flic import FlicClass, FlicHL
from flic.algorithms.hetfedrep import HetFedRep
from flic.algorithms.linked import Linked
from flic.algorithms.local import Local
from flic.algorithms.permuted_anchors import PermutedAnchors
from flic.algorithms.protocol import Algorithm as Algorithm
from flic.algorithms.protocol import Entry as Entry
from flic.algorithms.protocol import Population as Population
from flic.algorithms.protocol import ServerState as ServerState
from flic.algorithms.protocol import Stack as Stack
from flic.algorithms.protocol import Update as Update
from flic.algorithms.settings import MethodSettings as MethodSettings
from flic.algorithms.within_space import WithinSpace
from flic.errors import ConfigError

METHODS = {
    kind.name: kind
    for kind in (
        Local,
        FlicClass,
        FlicHL,
        PermutedAnchors,
        HetFedRep,
        FedHeNN,
        WithinSpace,
        FedAvg,
        Linked,
        Lda,
        Logistic,
        Ridge,
        Boosting,
    )
}


def build_algorithm(
    name: str,
    settings: MethodSettings,
    population: Population,
    *,
    seed: int,
    dtype: torch.dtype = torch.float32,
) -> Algorithm:
    """The method of that name, ready to run."""
    if name not in METHODS:
        raise ConfigError(f"method is {name!r}; expected one of {', '.join(METHODS)}.")
    task = population.task.name
    if task not in METHODS[name].tasks:
        able = [method for method, kind in METHODS.items() if task in kind.tasks]
        raise ConfigError(
            f"method is {name!r}, which does {' and '.join(METHODS[name].tasks)}; these data ask "
            f"for {task}. Choose one of {', '.join(able)}."
        )
    return METHODS[name](settings, population, seed=seed, dtype=dtype)


__all__ = [
    "METHODS",
    "Algorithm",
    "Entry",
    "MethodSettings",
    "Population",
    "ServerState",
    "Stack",
    "Update",
    "build_algorithm",
]
