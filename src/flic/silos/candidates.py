"""The candidates of a fit: stay alone, join flic, or one of the classical ways to share.

A candidate is a view of the clients' columns, a method and changes of its settings. Each learns
from the same encoded rows and gives every client a model of its own. To add one, add an entry to
`CANDIDATES`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from flic.data.client_data import ClientData, FederatedData
from flic.data.schema import FeatureSchema
from flic.data.task import Task, TaskName
from flic.engine.engine import Engine
from flic.engine.rounds import num_active
from flic.methods import METHODS, build_method
from flic.methods.baselines.estimators import PerClientEstimator
from flic.methods.protocol import Population
from flic.silos.candidate import Candidate, Learned, OnRunStep, Run, run_in_memory
from flic.silos.column_views import View, linked_columns, own_columns, same_columns, shared_columns
from flic.silos.encoding import EncodedFederation, in_space
from flic.silos.estimator_models import BoostedModel, LinearModel
from flic.silos.fit_settings import FitSettings
from flic.silos.linked_columns import LinkedColumns
from flic.silos.mixing import Mix
from flic.silos.model import Model
from flic.silos.models import NetworkModel

#: FedAvg needs frequent averages, and does not use the shared hidden layer of FLIC-HL.
AVERAGED: Mapping[str, Any] = {
    "training": {"rounds": 40, "local": "10 steps"},
    "model": {"hidden_layer": False, "predict_by": "head"},
}


@dataclass(frozen=True)
class EstimatorCandidate(Candidate):
    """An estimator of scikit-learn that each client fits by itself."""

    name: str  # of the method too
    title: str
    export: Callable[[Any, Task], Model]  # of a fitted estimator
    tasks: tuple[TaskName, ...]
    federated: bool = False

    def learn(self, encoded: EncodedFederation, settings: FitSettings, *, seed: int) -> Learned:
        clients = [silo.data for silo in encoded.silos]
        if not clients:
            return Learned({})
        population = Population.of(clients, encoded.task)
        method = build_method(self.name, settings.method, population, seed=seed)
        assert isinstance(method, PerClientEstimator)
        return Learned({client.name: self._model(method, client) for client in clients})

    def _model(self, method: PerClientEstimator, client: ClientData) -> Model:
        task = method.population.task
        if not method.is_regression and len(client.classes) == 1:  # nothing to distinguish
            return LinearModel.of_one_class(client.classes[0], client.schema.dim, task.num_outputs)
        return self.export(method.fitted(client), task)


@dataclass(frozen=True)
class NetworkCandidate(Candidate):
    """A method of the engine on a view of the columns, in a whole run of its own."""

    name: str
    title: str
    method: str
    view: View = own_columns
    changes: Mapping[str, Any] = field(default_factory=dict[str, Any])
    federated: bool = True
    tasks: tuple[TaskName, ...] = ("classification", "regression")

    def served(self, encoded: EncodedFederation) -> list[str]:
        return list(self.view(encoded))

    def simulate(
        self,
        encoded: EncodedFederation,
        settings: FitSettings,
        *,
        seed: int,
        on_step: OnRunStep = lambda record, run: None,
    ) -> Run:
        """The whole run; `on_step` is called after every step."""
        own = settings.method_with(self.changes)
        return run_in_memory(self._engine(encoded, settings, seed), own, on_step=on_step)

    def method_in(self, settings: FitSettings) -> str:
        """Name of the method in a fit."""
        del settings
        return self.method

    def _engine(self, encoded: EncodedFederation, settings: FitSettings, seed: int) -> Engine:
        seen = self.view(encoded)
        silos = [silo for silo in encoded.silos if silo.name in seen]
        clients = tuple(in_space(s, seen[s.name].inputs, seen[s.name].space) for s in silos)
        data = FederatedData("tables", encoded.task, clients)
        own = settings.method_with(self.changes)
        return Engine.of(self.method_in(settings), own, data, seed=seed)

    def refuse(self, encoded: EncodedFederation, settings: FitSettings) -> None:
        engine = self._engine(encoded, settings, settings.seed)
        engine.method.init_server()
        participation = settings.method_with(self.changes).training.participation
        num_active(len(engine.clients.names), participation)

    def learn(self, encoded: EncodedFederation, settings: FitSettings, *, seed: int) -> Learned:
        run, seen = self.simulate(encoded, settings, seed=seed), self.view(encoded)
        assert run.journal.server is not None
        shared, clients = run.journal.server.shared, run.engine.clients
        models = {
            name: NetworkModel(
                method=self.method_in(settings),
                settings=run.settings,
                task=encoded.task,
                schema=clients[name].schema,
                classes=clients[name].classes,
                inputs=seen[name].inputs,
                private=state or {},
                shared=_needed(shared, clients[name].schema),
            )
            for name, state in zip(clients.names, run.journal.states(clients.names), strict=True)
        }
        return Learned(models, run.journal.records, shared, sent=run.jobs.sent())


class FlicCandidate(NetworkCandidate):
    """FLIC on all columns of every client; the fit says which variant."""

    def method_in(self, settings: FitSettings) -> str:
        return settings.flic_method


def _needed(shared: Mapping[str, torch.Tensor], schema: FeatureSchema) -> dict[str, torch.Tensor]:
    """Shared tensors that one client uses: its own space and features, where they differ."""
    own = f"space.{schema.space}."
    rows = {f"{own}feature.{name}" for name in schema.features}
    return {
        name: value
        for name, value in shared.items()
        if not name.startswith("space.")
        or name in rows
        or (name.startswith(own) and not name.startswith(f"{own}feature."))
    }


def _alone(name: str, title: str, export: Callable[[Any, Task], Model]) -> EstimatorCandidate:
    return EstimatorCandidate(name, title, export, tuple(METHODS[name].tasks))


def _averaged(name: str, title: str, view: View) -> NetworkCandidate:
    return NetworkCandidate(name, title, "fedavg", view, AVERAGED)


FLIC = FlicCandidate("flic", "flic (shared anchors, private embeddings)", "flic-class")

_ALL: tuple[Candidate, ...] = (
    NetworkCandidate("network", "the same network alone", "local", federated=False),
    _alone("lda", "discriminant analysis alone", LinearModel.of_lda),
    _alone("ridge", "ridge regression alone", LinearModel.of_ridge),
    _alone("boosting", "gradient boosting alone", BoostedModel.of_trees),
    FLIC,
    _averaged("shared-columns", "one network on the shared columns", shared_columns),
    _averaged("same-space", "one network per group of equal columns", same_columns),
    _averaged("keyed", "one network on all linked columns", linked_columns),
    LinkedColumns(),
    Mix(),
)
CANDIDATES: dict[str, Candidate] = {candidate.name: candidate for candidate in _ALL}
