"""Candidates of a newcomer: the shared part is fixed, and the site learns the rest alone."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from torch import Tensor

from flic.data.client_data import FederatedData
from flic.data.task import Task
from flic.engine.engine import Engine, Job
from flic.method_settings import Duration, MethodSettings
from flic.methods.linked.client_sums import Sent
from flic.methods.linked.linked import exported
from flic.methods.linked.linked_client import LinkedClient
from flic.methods.protocol import ServerState
from flic.silos.candidate import Learned, Learner
from flic.silos.candidates import FLIC, LINKED
from flic.silos.encoding import (
    EncodedFederation,
    EncodedSilo,
    in_own_units,
    in_shared_units,
    in_space,
    linked_features,
)
from flic.silos.fit_settings import FitSettings
from flic.silos.linked_state import LinkedState
from flic.silos.model import Origin
from flic.silos.models import LinkedModel, NetworkModel


class JoinedFlic(Learner):
    """flic for a newcomer: the shared part is fixed, only φ and β are learnt."""

    name = FLIC.name
    title = FLIC.title
    federated = True

    def __init__(self, shared: Mapping[str, Tensor]) -> None:
        self._shared = shared

    def learn(self, encoded: EncodedFederation, settings: FitSettings, *, seed: int) -> Learned:
        return Learned({s.name: self._join(s, encoded.task, settings, seed) for s in encoded.silos})

    def _join(self, silo: EncodedSilo, task: Task, fit: FitSettings, seed: int) -> NetworkModel:
        name, method, settings = silo.name, fit.flic_method, with_whole_budget(fit.method)
        client = in_space(silo, range(silo.data.schema.dim), silo.data.schema.space)
        data = FederatedData("newcomer", task, (client,))
        engine = Engine.of(method, settings, data, seed=seed)
        server = ServerState(0, self._shared)
        state: Mapping[str, Tensor] | None = None
        for stage in ("prepare", "adapt"):
            state = engine.do(Job(stage, server, (name,), [state])).states[name]
        origin = Origin(method, settings, task, client, tuple(range(client.schema.dim)))
        return NetworkModel.of(engine.method.export(server, client, state), origin)


class JoinedOffsets(Learner):
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


class JoinedLinked(Learner):
    """Linked columns for new rows: the pooled sums, less those that the client sent.

    The sums are enough for a model: nothing is trained, and nothing leaves.
    """

    name = LINKED.name
    title = LINKED.title
    federated = True

    def __init__(self, state: LinkedState, sent: Sent | None = None) -> None:
        self._state, self._sent = state, sent or {}

    def served(self, encoded: EncodedFederation) -> list[str]:
        return [silo.name for silo, _ in self._linked(encoded)]

    def _linked(self, encoded: EncodedFederation) -> Iterator[tuple[EncodedSilo, str]]:
        for silo in encoded.silos:
            space = self._state.space_of(linked_features(silo)[0])
            if space is not None:
                yield silo, space

    def learn(self, encoded: EncodedFederation, settings: FitSettings, *, seed: int) -> Learned:
        del seed  # nothing is drawn
        agreed = self._state.agreed(settings, encoded.task)
        models = {}
        for silo, space in self._linked(encoded):
            client, inputs = in_shared_units(silo, space), tuple(range(silo.data.schema.dim))
            known = LinkedClient(agreed, self._state.tensors, client, self._sent)
            origin = Origin(LINKED.method, settings.method, encoded.task, client, inputs)
            models[silo.name] = LinkedModel.of(in_own_units(exported(known), silo), origin)
        return Learned(models)


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
