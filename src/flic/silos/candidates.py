"""What a client could do: stay alone, join flic, or one of the classical ways to share.

Every candidate learns from the same encoded rows and gives each client a model of its own.
A further way of sharing is a further entry of `CANDIDATES`; the verdict asks for no more.
"""

from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch

from flic.data.client_data import FederatedData
from flic.data.schema import FeatureSchema
from flic.data.task import Classification
from flic.engine.engine import Engine
from flic.engine.journal import MemoryJournal, Record
from flic.engine.runners import local_rounds
from flic.engine.sampling import num_active
from flic.engine.traffic import TrafficCounter
from flic.method_settings import MethodSettings
from flic.methods.baselines.estimators import PooledLda
from flic.silos.candidate import STACK_WIDTH, Candidate, Learned, schedule
from flic.silos.encoding import (
    EncodedFederation,
    EncodedSilo,
    features_from,
    groups_of_one_space,
    in_space,
    linked_features,
    linked_spaces,
    shared_columns,
)
from flic.silos.linked_columns import LinkedColumns
from flic.silos.mixing import Mix
from flic.silos.model import Model
from flic.silos.models import BoostedModel, LinearModel, NetworkModel
from flic.silos.settings import FitSettings

#: FedAvg lives by averaging often, and has no use for the shared hidden layer of FLIC-HL.
AVERAGED: Mapping[str, Any] = {
    "training": {"rounds": 40, "local": "10 steps"},
    "model": {"hidden_layer": False, "predict_by": "head"},
}


class Alone(Candidate):
    """A model that each client fits by itself."""

    federated = False

    def learn(self, encoded: EncodedFederation, settings: FitSettings, *, seed: int) -> Learned:
        return Learned({s.name: self.fit(s, encoded, settings, seed) for s in encoded.silos})

    @abstractmethod
    def fit(
        self, silo: EncodedSilo, encoded: EncodedFederation, settings: FitSettings, seed: int
    ) -> Model:
        """The model of one client."""


class Lda(Alone):
    """Linear discriminant analysis with Ledoit-Wolf shrinkage."""

    name = "lda"
    title = "discriminant analysis alone"
    tasks = ("classification",)

    def fit(
        self, silo: EncodedSilo, encoded: EncodedFederation, settings: FitSettings, seed: int
    ) -> Model:
        del settings, seed
        fitted = PooledLda().fit(silo.data.train.x.numpy(), silo.data.train.y.numpy())
        weights = np.zeros((len(fitted.weights_), encoded.task.num_outputs))
        bias = np.full(encoded.task.num_outputs, -np.inf)
        weights[:, fitted.classes_], bias[fitted.classes_] = fitted.weights_, fitted.bias_
        return LinearModel(weights, bias, is_regression=False)


class Ridge(Alone):
    """Ridge regression; leave-one-out chooses the penalty."""

    name = "ridge"
    title = "ridge regression alone"
    tasks = ("regression",)

    def fit(
        self, silo: EncodedSilo, encoded: EncodedFederation, settings: FitSettings, seed: int
    ) -> Model:
        from sklearn.linear_model import RidgeCV

        del encoded, settings, seed
        x, y = silo.data.train.x.double().numpy(), silo.data.train.y.double().numpy()
        fitted = RidgeCV(alphas=np.logspace(-2, 4, 25)).fit(x, y)
        weights, bias = np.asarray(fitted.coef_), np.asarray(fitted.intercept_)
        return LinearModel(weights[:, None], bias[None], is_regression=True)


class Boosting(Alone):
    """Gradient boosted trees."""

    name = "boosting"
    title = "gradient boosting alone"

    def fit(
        self, silo: EncodedSilo, encoded: EncodedFederation, settings: FitSettings, seed: int
    ) -> Model:
        from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

        classes = isinstance(encoded.task, Classification)
        if classes and len(silo.data.classes) == 1:
            return _always(silo.data.classes[0], silo.data.schema.dim, encoded.task.num_outputs)
        kind = HistGradientBoostingClassifier if classes else HistGradientBoostingRegressor
        rate = settings.method.estimators.boosting_rate
        estimator = kind(learning_rate=rate, random_state=seed % 2**32, min_samples_leaf=5)
        estimator.fit(silo.data.train.x.numpy(), silo.data.train.y.numpy())
        return BoostedModel(estimator, encoded.task.num_outputs, is_regression=not classes)


def _always(label: int, dim: int, outputs: int) -> LinearModel:
    """The class that is the only one of some training rows, which trees cannot be grown for."""
    bias = np.full(outputs, -np.inf)
    bias[label] = 0.0
    return LinearModel(np.zeros((dim, outputs)), bias, is_regression=False)


class Network(Candidate):
    """A method of the engine, in a whole run of its own."""

    method: ClassVar[str]
    changes: ClassVar[Mapping[str, Any]] = {}

    def views(self, encoded: EncodedFederation) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Space and positions of the features that the method sees, of each served client."""
        silos = encoded.silos
        return {s.name: (s.name, tuple(range(len(s.encoder.features)))) for s in silos}

    def served(self, encoded: EncodedFederation) -> list[str]:
        return list(self.views(encoded))

    def simulate(
        self,
        encoded: EncodedFederation,
        settings: FitSettings,
        *,
        seed: int,
        on_step: "OnStep" = lambda record, run: None,
    ) -> "Run":
        """The whole run; `on_step` may look at it after every step."""
        own = settings.method_with(self.changes)
        engine = self._engine(encoded, own, seed)
        run = Run(engine, MemoryJournal(), own, TrafficCounter(engine))
        rounds = local_rounds(run.jobs, schedule(own), run.journal, stack_width=STACK_WIDTH)
        for record in rounds.steps():
            on_step(record, run)
        return run

    def _engine(self, encoded: EncodedFederation, own: MethodSettings, seed: int) -> Engine:
        views = self.views(encoded)
        silos = [silo for silo in encoded.silos if silo.name in views]
        clients = tuple(in_space(s, views[s.name][1], views[s.name][0]) for s in silos)
        data = FederatedData("tables", encoded.task, clients)
        return Engine.of(self.method, own, data, seed=seed)

    def refuse(self, encoded: EncodedFederation, settings: FitSettings) -> None:
        """Refuse settings that the method cannot run with on these clients."""
        own = settings.method_with(self.changes)
        engine = self._engine(encoded, own, settings.seed)
        engine.method.init_server()
        num_active(len(engine.clients.names), own.training.participation)

    def learn(self, encoded: EncodedFederation, settings: FitSettings, *, seed: int) -> Learned:
        run, views = self.simulate(encoded, settings, seed=seed), self.views(encoded)
        assert run.journal.server is not None
        shared, names = run.journal.server.shared, run.engine.clients.names
        models = {
            name: NetworkModel(
                method=self.method,
                settings=run.settings,
                task=encoded.task,
                schema=run.engine.clients[name].schema,
                classes=run.engine.clients[name].classes,
                inputs=views[name][1],
                private=state or {},
                shared=_needed(shared, run.engine.clients[name].schema),
            )
            for name, state in zip(names, run.journal.states(names), strict=True)
        }
        return Learned(models, run.journal.records, shared, sent=run.jobs.sent())


@dataclass(frozen=True)
class Run:
    """A run in memory, as far as it has come."""

    engine: Engine
    journal: MemoryJournal
    settings: MethodSettings
    jobs: TrafficCounter


OnStep = Callable[[Record, Run], None]
"""Told after every step: its record, and the run so far."""


def _needed(shared: Mapping[str, torch.Tensor], schema: FeatureSchema) -> dict[str, torch.Tensor]:
    """The shared tensors that one client uses: of its own space and features, where they differ."""
    own = f"space.{schema.space}."
    rows = {f"{own}feature.{name}" for name in schema.features}
    return {
        name: value
        for name, value in shared.items()
        if not name.startswith("space.")
        or name in rows
        or (name.startswith(own) and not name.startswith(f"{own}feature."))
    }


class Local(Network):
    """The same network with the same budget, alone."""

    name = "network"
    title = "the same network alone"
    federated = False
    method = "local"


class FlicNetwork(Network):
    """FLIC: private embeddings aligned with shared anchors."""

    name = "flic"
    title = "flic: shared anchors, private embeddings"
    federated = True
    method = "flic-class"


class SharedColumns(Network):
    """FedAvg on the columns that every client has, which is all that it can use."""

    name = "shared-columns"
    title = "one network on the shared columns"
    federated = True
    method = "fedavg"
    changes = AVERAGED

    def views(self, encoded: EncodedFederation) -> dict[str, tuple[str, tuple[int, ...]]]:
        common = shared_columns([silo.shared for silo in encoded.silos])
        found = {s.name: ("shared", features_from(s, common)) for s in encoded.silos}
        return found if all(inputs for _, inputs in found.values()) else {}


class SameSpace(Network):
    """FedAvg among clients with exactly the same columns."""

    name = "same-space"
    title = "one network per group of equal columns"
    federated = True
    method = "fedavg"
    changes = AVERAGED

    def views(self, encoded: EncodedFederation) -> dict[str, tuple[str, tuple[int, ...]]]:
        by_name = {silo.name: silo for silo in encoded.silos}
        groups = groups_of_one_space({name: silo.shared for name, silo in by_name.items()})
        return {
            name: (f"group {number}", tuple(range(len(by_name[name].encoder.features))))
            for number, names in enumerate(groups)
            for name in names
        }


class Keyed(Network):
    """FedAvg on all columns that several clients have, each input averaged over its holders."""

    name = "keyed"
    title = "one network on all linked columns"
    federated = True
    method = "fedavg"
    changes = AVERAGED

    def views(self, encoded: EncodedFederation) -> dict[str, tuple[str, tuple[int, ...]]]:
        names = {silo.name: linked_features(silo)[0] for silo in encoded.silos}
        holders = Counter(name for own in names.values() for name in own)
        found = {
            client: (space, tuple(i for i, name in enumerate(names[client]) if holders[name] > 1))
            for client, space in linked_spaces(names).items()
        }
        inputs = {client: own for client, (_, own) in found.items()}
        # Where it would be one of the simpler networks again, that one is enough.
        simpler = [SharedColumns().views(encoded), SameSpace().views(encoded)]
        known = [{client: own for client, (_, own) in views.items()} for views in simpler]
        return {} if inputs in known else found


_KINDS = (
    *(Local, Lda, Ridge, Boosting),
    *(FlicNetwork, SharedColumns, SameSpace, Keyed, LinkedColumns, Mix),
)
CANDIDATES: dict[str, Candidate] = {kind.name: kind() for kind in _KINDS}
