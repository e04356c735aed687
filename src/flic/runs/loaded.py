"""A run about to start or to go on: its configuration, its data, and its engine."""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from flic.config import RunConfig, validate
from flic.data.client_data import FederatedData
from flic.data.inspect import refuse_unusable
from flic.engine.cluster_jobs import Recipe
from flic.engine.engine import Engine
from flic.engine.rounds import num_active
from flic.engine.runners import one_thread
from flic.errors import DataError


@dataclass(frozen=True, eq=False)
class Loaded:
    """A run with its data, looked at, and its engine, made once."""

    config: RunConfig
    data: FederatedData
    notices: Sequence[str]

    @classmethod
    def of(cls, config: RunConfig, data: FederatedData | None = None) -> "Loaded":
        """A run on the configuration's data, or on other data; unusable ones are refused."""
        data = data or data_of(config)
        return cls(config, data, [finding.message for finding in refuse_unusable(data)])

    @cached_property
    def engine(self) -> Engine:
        """Engine of the run."""
        return engine_of(self.config, self.data)

    @property
    def text(self) -> str:
        """Text from which another machine, which has the same data, can load the run."""
        config = self.config.model_dump(mode="json")
        return json.dumps({"config": config, "data": self.data.digest})

    @property
    def recipe(self) -> Recipe:
        """The making of the engine on a worker of a cluster."""
        return Recipe(engine_from, self.text)


def load_each(configs: Iterable[RunConfig], last: Loaded) -> Iterator[Loaded]:
    """Runs one after another; each shares the data of the last one with its problem and seed."""
    for config in configs:
        if (config.data, config.seed) == (last.config.data, last.config.seed):
            last = replace(last, config=config)
        else:
            last = Loaded.of(config)
        yield last


def loaded_from(text: str) -> Loaded:
    """The run of `Loaded.text`.

    Raises:
        DataError: the data are missing on this machine, or differ.
    """
    told = json.loads(text)
    loaded = Loaded.of(validate(told["config"], source="the command's settings"))
    if loaded.data.digest != told["data"]:
        raise DataError(
            f"its data of problem {loaded.config.data.problem!r} are not the command's; expected "
            "the same on all machines, which have the same kind of processor. Copy the data there."
        )
    return loaded


def engine_from(text: str) -> Engine:
    """Engine of the run of `Loaded.text`."""
    return loaded_from(text).engine


def refuse_impossible(runs: Iterable[Loaded]) -> None:
    """Refuse runs that cannot start, before any of them starts."""
    for run in runs:
        run.engine.method.init_server()
        num_active(len(run.data.clients), run.config.training.participation)


@one_thread()
def data_of(config: RunConfig) -> FederatedData:
    """Clients of a run; their bits do not depend on the number of threads."""
    return config.data.make(seed=config.seed)


def engine_of(config: RunConfig, data: FederatedData) -> Engine:
    """Engine of a run."""
    data = data.with_validation(config.evaluation.validation_share, seed=config.seed)
    dtype = config.engine.torch_dtype
    return Engine.of(config.method, config, data, seed=config.seed, dtype=dtype)
