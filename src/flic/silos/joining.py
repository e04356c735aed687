"""Joining of a new site: it gets the shared part, learns alone and sends nothing.

For flic it gets {α, μ} and learns φ and β. For linked columns it gets the pooled sums and learns
only how much its own rows count beside them. Its verdict is made as for any client.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from torch import Tensor

from flic.data.client_data import FederatedData
from flic.data.task import Task
from flic.engine.engine import Engine, Job
from flic.engine.runners import one_thread
from flic.errors import ConfigError
from flic.method_settings import Duration, MethodSettings
from flic.methods.protocol import ServerState
from flic.silos.candidate import Candidate, Learned
from flic.silos.candidates import CANDIDATES, FLIC
from flic.silos.encoding import EncodedFederation, EncodedSilo, in_space, linked_features
from flic.silos.evaluator import Evaluator, Prior, work_through
from flic.silos.fit_settings import FitSettings
from flic.silos.fitted import FittedClient, FittedFederation
from flic.silos.linked_columns import JoinedLinked, LinkedColumns, explanations
from flic.silos.mixing import Mix
from flic.silos.models import NetworkModel
from flic.silos.splits import outer_splits
from flic.silos.verdict import verdict
from flic.tables import SiloTable, TableFederation
from flic.tables.declared import Kind, Raw
from flic.tables.labels import LabelNames, quoted
from flic.tables.values import text_of


class JoinedFlic(Candidate):
    """flic for a newcomer: the shared part is fixed, only φ and β are learnt."""

    name = FLIC.name
    title = FLIC.title
    federated = True

    def __init__(self, shared: Mapping[str, Tensor]) -> None:
        self._shared = shared

    def learn(self, encoded: EncodedFederation, settings: FitSettings, *, seed: int) -> Learned:
        own = with_whole_budget(settings.method)
        return Learned({s.name: self._join(s, encoded.task, own, seed) for s in encoded.silos})

    def _join(
        self, silo: EncodedSilo, task: Task, settings: MethodSettings, seed: int
    ) -> NetworkModel:
        name = silo.name
        client = in_space(silo, range(silo.data.schema.dim), silo.data.schema.space)
        data = FederatedData("newcomer", task, (client,))
        engine = Engine.of(FLIC.method, settings, data, seed=seed)
        server = ServerState(0, self._shared)
        state: Mapping[str, Tensor] | None = None
        for stage in ("prepare", "adapt"):
            state = engine.do(Job(stage, server, (name,), [state])).states[name]
        return NetworkModel(
            method=FLIC.method,
            settings=settings,
            task=task,
            schema=client.schema,
            classes=client.classes,
            inputs=tuple(range(client.schema.dim)),
            private=state or {},
            shared=self._shared,
        )


class JoinedOffsets(Candidate):
    """A shared network for new rows of a client: only its class offsets are learnt."""

    name = "shared network"
    title = "a network that others share"
    federated = True

    def __init__(self, model: NetworkModel) -> None:
        self._model = model

    def learn(self, encoded: EncodedFederation, settings: FitSettings, *, seed: int) -> Learned:
        del settings  # the network keeps its own
        return Learned({s.name: self._join(s, encoded.task, seed) for s in encoded.silos})

    def _join(self, silo: EncodedSilo, task: Task, seed: int) -> NetworkModel:
        known = set(self._model.schema.features)
        names = linked_features(silo)[0]
        inputs = tuple(i for i, feature in enumerate(names) if feature in known)
        client = in_space(silo, inputs, self._model.schema.space)
        data = FederatedData("client", task, (client,))
        engine = Engine.of(self._model.method, self._model.settings, data, seed=seed)
        server = ServerState(0, self._model.shared)
        answer = engine.do(Job("adapt", server, (client.name,), [None]))
        return replace(
            self._model,
            task=task,
            schema=client.schema,
            classes=client.classes,
            inputs=inputs,
            private=answer.states[client.name],
        )


def with_whole_budget(settings: MethodSettings) -> MethodSettings:
    """Settings whose one visit has the local steps of all rounds."""
    training = settings.training
    length, rounds = training.local.plus(training.shared), training.rounds + 1
    whole = Duration(
        epochs=None if length.epochs is None else rounds * length.epochs,
        steps=None if length.steps is None else rounds * length.steps,
    )
    update = {"training": training.model_copy(update={"local": whole})}
    return settings.model_copy(update=update)


@one_thread()
def join(fitted: FittedFederation, table: SiloTable, *, workers: int = 1) -> FittedFederation:
    """The federation with one more client; the rest of it does not change."""
    _refuse(fitted, table)
    offered: dict[str, Candidate] = {
        name: candidate for name, candidate in CANDIDATES.items() if not candidate.federated
    }
    if fitted.shared:
        offered[FLIC.name] = JoinedFlic(fitted.shared)
    if fitted.linked is not None:
        offered[LinkedColumns.name] = JoinedLinked(fitted.linked)
    offered[Mix.name] = CANDIDATES[Mix.name]
    bench = Evaluator(
        TableFederation(fitted.task, fitted.labels, (table,)),
        fitted.settings,
        {name: candidate for name, candidate in offered.items() if name in fitted.known},
        Prior(fitted.known, fitted.temperatures, fitted.weights),
    )
    splits = outer_splits([table], fitted.settings)
    results = list(work_through(bench, splits, workers=workers))
    rows = np.arange(len(table))
    final = bench.trial({table.name: rows}, seed=fitted.settings.seed)
    encoded = bench.encode({table.name: (rows, rows[:0])})
    name = final.choices["kept"][table.name].candidate
    learned = bench.learn_all([name], encoded, final)[name]
    kept = (name, fitted.temperatures.get(name), learned.models[table.name])
    client = FittedClient.of(table, encoded.silos[0].encoder, kept, fitted.task, fitted.labels)
    metric, count = fitted.settings.metric_for(fitted.task), {table.name: len(table)}
    notices = (
        explanations(encoded, fitted.settings, fitted.linked, sent={}) if fitted.linked else ()
    )
    return fitted.with_client(client, verdict(results, final, metric=metric, rows=count), notices)


def _refuse(fitted: FittedFederation, table: SiloTable) -> None:
    if table.name in fitted.clients:
        raise ConfigError(
            f"name is {table.name!r}, which a client of the federation has already; expected a new "
            "one. Choose another with --name."
        )


def kinds_of_columns(fitted: FittedFederation) -> dict[str, Kind]:
    """Kind of each shared column, where all its holders agree."""
    found: dict[str, set[Kind]] = {}
    for name, client in fitted.clients.items():
        for column in client.columns:
            shared = client.declared.shared_name(column.name, name)
            found.setdefault(shared, set()).add(column.kind)
    return {name: kinds.pop() for name, kinds in found.items() if len(kinds) == 1}


def label_names(
    fitted: FittedFederation, own: Mapping[str, Sequence[Raw]] | None = None
) -> LabelNames | None:
    """Raw labels of a newcomer's classes: its own list, its peers', or the classes' names.

    Raises:
        ConfigError: its list names an unknown class.
    """
    strange = [name for name in own or {} if name not in fitted.labels]
    if strange:
        known = f"{quoted(fitted.labels)}" if fitted.labels else "none, since it is a regression"
        raise ConfigError(
            f"labels have the classes {quoted(strange)}; expected classes of the federation, "
            f"{known}. Correct the names."
        )
    if not fitted.labels:
        return None
    values = {
        label: dict.fromkeys(map(text_of, (own or {}).get(label, ()))) for label in fitted.labels
    }
    taken = {value for texts in values.values() for value in texts}
    shared = [(label, i) for i, label in enumerate(fitted.labels)]
    for client in fitted.clients.values():
        shared += (client.labelling.positions or {}).items()
    for value, position in shared:
        if value not in taken:
            values[fitted.labels[position]][value] = None
            taken.add(value)
    return {label: tuple(texts) for label, texts in values.items()}
