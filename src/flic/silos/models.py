"""Models of a client after a fit: networks, linked columns and mixes.

A model is plain values and tensors; nothing it saves is code.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from flic.data.client_data import ClientData, FederatedData, Split
from flic.data.schema import FeatureSchema
from flic.data.task import Classification, Regression, Task
from flic.engine.engine import Engine
from flic.errors import ConfigError, Damaged
from flic.method_settings import MethodSettings
from flic.methods.linked.client_sums import Sent
from flic.methods.linked.linked_client import apply_mix
from flic.methods.protocol import Exported, ServerState
from flic.shapes import Named, stripped, unlike_forms
from flic.silos.estimator_models import BoostedModel, LinearModel
from flic.silos.model import (
    Features,
    MethodModel,
    Model,
    Origin,
    Saved,
    log_probabilities,
    tempered,
)


@dataclass(frozen=True, eq=False)
class NetworkModel(MethodModel):
    """g_θi ∘ φ_i with the shared part it was trained under; predicts through the engine."""

    kind: ClassVar[str] = "network"
    method: str
    settings: MethodSettings
    task: Task
    schema: FeatureSchema
    classes: tuple[int, ...]
    inputs: tuple[int, ...]  # positions of the network's features among the client's encoded ones
    private: Mapping[str, Tensor]
    shared: Mapping[str, Tensor]

    @classmethod
    def of(cls, exported: Exported, origin: Origin) -> "NetworkModel":
        return cls(
            method=origin.method,
            settings=origin.settings,
            task=origin.task,
            schema=origin.client.schema,
            classes=origin.client.classes,
            inputs=origin.inputs,
            private=stripped("private.", exported.tensors),
            shared=stripped("shared.", exported.tensors),
        )

    @cached_property
    def client(self) -> ClientData:
        """A stand-in for the client: prediction needs only its classes, none of its rows."""
        real = isinstance(self.task, Regression)
        y = torch.zeros(2) if real else torch.tensor(self.classes)
        nothing = Split(torch.zeros(0, self.schema.dim), y[:0])
        train = Split(torch.zeros(len(y), self.schema.dim), y)
        return ClientData("client", self.schema, train, nothing, nothing)

    # In double precision, so that a row's prediction does not depend on the rows beside it:
    # products of many rows and of one are rounded differently.

    @cached_property
    def _engine(self) -> Engine:
        data = FederatedData("prediction", self.task, (self.client,))
        return Engine.of(self.method, self.settings, data, seed=0, dtype=torch.float64)

    def predict(self, rows: Features) -> np.ndarray:
        clients, names = self._engine.clients, [self.client.name]
        x = torch.from_numpy(np.ascontiguousarray(rows.standard[:, list(self.inputs)]))
        labels = torch.zeros(len(x), dtype=self.client.train.y.dtype)
        stack = clients.stack(names, [_double(self.private)])
        server = ServerState(0, _double(self.shared))
        data = clients.stacked_data(names)
        [scores] = self._engine.method.predict(server, stack, data, [Split(x, labels)])
        if isinstance(self.task, Classification):
            return log_probabilities(scores.numpy())
        return scores.numpy()

    def reads(self, features: Sequence[str]) -> bool:
        read = [features[i] for i in self.inputs if 0 <= i < len(features)]
        return read == [*self.schema.features]

    def save(self) -> Saved:
        facts = {
            "method": self.method,
            "settings": self.settings.model_dump(mode="json"),
            "space": self.schema.space,
            "features": list(self.schema.features),
            "classes": list(self.classes),
            "inputs": list(self.inputs),
        }
        private = {f"private.{name}": value for name, value in self.private.items()}
        shared = {f"shared.{name}": value for name, value in self.shared.items()}
        return Saved(self.kind, facts, {**private, **shared})

    @classmethod
    def load(cls, saved: Saved, task: Task) -> "NetworkModel":
        facts = saved.facts
        model = cls(
            method=facts["method"],
            settings=MethodSettings.model_validate(facts["settings"]),
            task=task,
            schema=FeatureSchema(facts["space"], tuple(facts["features"])),
            classes=tuple(facts["classes"]),
            inputs=tuple(facts["inputs"]),
            private=stripped("private.", saved.tensors),
            shared=stripped("shared.", saved.tensors),
        )
        try:
            phi = model._engine.clients.architecture(model.client.name)
            new = model._engine.method.init_client(model.client, phi)
            if wrong := unlike_forms(new, _double(model.private)):  # some would still fit in
                raise KeyError(", ".join(wrong))
            if len(model.inputs) != model.schema.dim:
                raise KeyError("inputs")
            model.predict(_zeros(1 + max(model.inputs)))
        except (RuntimeError, KeyError, IndexError, ConfigError) as error:
            raise misfit(error) from error
        return model


def misfit(error: object) -> Damaged:
    """The error for tensors of which no network can be made."""
    return Damaged(
        f"a network does not fit its settings ({error}); expected the tensors that flic wrote. Fit "
        "the federation again."
    )


@dataclass(frozen=True, eq=False)
class LinkedModel(MethodModel):
    """A client's mix of its own and of pooled discriminants; reads features in plain units."""

    kind: ClassVar[str] = "linked"
    tensors: Mapping[str, Tensor]
    classes: tuple[int, ...]
    num_outputs: int
    sent: Sent  # its own part of the pooled sums, left out when it learns again

    @classmethod
    def of(cls, exported: Exported, origin: Origin) -> "LinkedModel":
        return cls._of_tensors(exported.tensors, origin.client.classes, origin.task)

    @classmethod
    def _of_tensors(cls, named: Named, classes: tuple[int, ...], task: Task) -> "LinkedModel":
        sent: Sent = {
            "linear": stripped("sent.linear.", named),
            "mapped": stripped("sent.mapped.", named),
        }
        own = {name: value for name, value in named.items() if not name.startswith("sent.")}
        return cls(own, classes, task.num_outputs, sent)

    def predict(self, rows: Features) -> np.ndarray:
        x = rows.plain
        scores = np.full((len(x), self.num_outputs), -np.inf)
        scores[:, list(self.classes)] = apply_mix(self.tensors, torch.from_numpy(x)).numpy()
        return scores

    def reads(self, features: Sequence[str]) -> bool:
        return len(features) == len(self.tensors["shift"])

    def save(self) -> Saved:
        sent = {f"sent.{kind}.{n}": t for kind, own in self.sent.items() for n, t in own.items()}
        return Saved(self.kind, {"classes": list(self.classes)}, {**self.tensors, **sent})

    @classmethod
    def load(cls, saved: Saved, task: Task) -> "LinkedModel":
        model = cls._of_tensors(saved.tensors, tuple(saved.facts["classes"]), task)
        try:
            model.predict(_zeros(len(saved.tensors["shift"])))
        except (RuntimeError, KeyError, IndexError) as error:
            raise Damaged(
                f"a linked model does not fit together ({error}); expected the tensors that flic "
                "wrote. Fit the federation again."
            ) from error
        return model


@dataclass(frozen=True, eq=False)
class Part:
    """One of the models in a mix."""

    candidate: str
    weight: float
    temperature: float | None
    model: Model


@dataclass(frozen=True, eq=False)
class MixModel(Model):
    """Σ_m w_m p_m: several models of a client, each at its temperature and with its weight."""

    kind: ClassVar[str] = "mix"
    parts: tuple[Part, ...]
    task: Task

    def predict(self, rows: Features) -> np.ndarray:
        predicted = [tempered(part.model.predict(rows), part.temperature) for part in self.parts]
        return pooled(predicted, [part.weight for part in self.parts], self.task)

    def reads(self, features: Sequence[str]) -> bool:
        return all(part.model.reads(features) for part in self.parts)

    def save(self) -> Saved:
        facts, tensors, trees = [], {}, b""
        for i, part in enumerate(self.parts):
            own = part.model.save()
            facts.append(
                {
                    "candidate": part.candidate,
                    "weight": part.weight,
                    "temperature": part.temperature,
                    "kind": own.kind,
                    "facts": own.facts,
                }
            )
            tensors |= {f"{i}.{name}": value for name, value in own.tensors.items()}
            trees = trees or own.trees  # at most one part has trees
        return Saved(self.kind, {"parts": facts}, tensors, trees)

    @classmethod
    def load(cls, saved: Saved, task: Task) -> "MixModel":
        parts = []
        for i, own in enumerate(saved.facts["parts"]):
            kind, tensors = KINDS[own["kind"]], stripped(f"{i}.", saved.tensors)
            model = kind.load(Saved(own["kind"], own["facts"], tensors, saved.trees), task)
            parts.append(Part(own["candidate"], own["weight"], own["temperature"], model))
        weights = [part.weight for part in parts]
        if not parts or min(weights) <= 0 or abs(sum(weights) - 1) > 1e-6:
            raise Damaged(
                f"a mix has the weights {weights}; expected positive ones that sum to 1. Fit the "
                "federation again."
            )
        return cls(tuple(parts), task)


def pooled(predicted: Sequence[np.ndarray], weights: Sequence[float], task: Task) -> np.ndarray:
    """Weighted mean of probabilities, as logarithms, or of responses."""
    if not isinstance(task, Classification):
        return np.tensordot(np.array(weights), np.stack(predicted), 1)
    with np.errstate(divide="ignore"):
        return np.log(np.tensordot(np.array(weights), np.exp(predicted), 1))


def _zeros(width: int) -> Features:
    """A row of zeros of a model's width, to try the model on."""
    return Features(*[lambda: np.zeros((1, width), np.float32)] * 2)


def _double(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors in double precision; maps of classes stay integers."""
    return {n: v.double() if v.is_floating_point() else v for n, v in tensors.items()}


EXPORTED: dict[str, type[MethodModel]] = {
    kind.kind: kind for kind in (LinearModel, BoostedModel, NetworkModel, LinkedModel)
}
KINDS: dict[str, type[Model]] = {**EXPORTED, MixModel.kind: MixModel}
