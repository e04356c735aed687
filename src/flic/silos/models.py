"""What a client has after a fit: a model of its own encoded rows, whoever helped to learn it.

Part 6 of the flow, for tables. A model is plain values and tensors; nothing it saves is code.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from flic.data.client_data import ClientData, FederatedData, Split
from flic.data.schema import FeatureSchema
from flic.data.task import Classification, Regression, Task
from flic.engine.clients import Clients
from flic.errors import ConfigError, DamagedModel
from flic.method_settings import MethodSettings
from flic.methods import build_method
from flic.methods.linked.client import apply_mix
from flic.methods.linked.client_sums import Sent
from flic.methods.protocol import Method, ServerState
from flic.silos.model import Features, Model, Saved, log_probabilities, tempered


@dataclass(frozen=True, eq=False)
class LinearModel(Model):
    """Scores x W + b: discriminant analysis, or ridge regression."""

    kind: ClassVar[str] = "linear"
    weights: np.ndarray  # [features, outputs]
    bias: np.ndarray  # [outputs], −∞ for classes not held
    is_regression: bool

    def predict(self, rows: Features) -> np.ndarray:
        scores = rows.standard.astype(float) @ self.weights + self.bias
        return scores if self.is_regression else log_probabilities(scores)

    def reads(self, features: Sequence[str]) -> bool:
        return len(features) == len(self.weights)

    def save(self) -> Saved:
        tensors = {"weights": torch.from_numpy(self.weights), "bias": torch.from_numpy(self.bias)}
        return Saved(self.kind, {}, tensors)

    @classmethod
    def load(cls, saved: Saved, task: Task) -> "LinearModel":
        weights, bias = (saved.tensors[name].numpy() for name in ("weights", "bias"))
        outputs = (task.num_outputs,)
        if weights.ndim != 2 or bias.shape != outputs or weights.shape[1:] != outputs:
            raise DamagedModel(
                f"a linear model has weights {weights.shape} and bias {bias.shape}; expected "
                f"{task.num_outputs} outputs. Fit the federation again."
            )
        return cls(weights, bias, isinstance(task, Regression))


@dataclass(frozen=True, eq=False)
class BoostedModel(Model):
    """Gradient boosted trees of scikit-learn."""

    kind: ClassVar[str] = "boosting"
    #: The only type beyond skops' own list that a file of ours holds; never read from the file.
    TRUSTED: ClassVar[Sequence[str]] = (
        "sklearn.ensemble._hist_gradient_boosting.predictor.TreePredictor",
    )
    estimator: Any
    num_outputs: int
    is_regression: bool
    source: bytes = b""  # the file it was read from; skops writes the same trees differently

    def predict(self, rows: Features) -> np.ndarray:
        x = rows.standard
        if self.is_regression:
            return self.estimator.predict(x)[:, None]
        probabilities = np.zeros((len(x), self.num_outputs))
        probabilities[:, self.estimator.classes_] = self.estimator.predict_proba(x)
        with np.errstate(divide="ignore"):
            return np.log(probabilities)

    def reads(self, features: Sequence[str]) -> bool:
        return len(features) == self.estimator.n_features_in_

    def save(self) -> Saved:
        import skops.io

        return Saved(self.kind, {}, trees=self.source or skops.io.dumps(self.estimator))

    @classmethod
    def load(cls, saved: Saved, task: Task) -> "BoostedModel":
        import skops.io

        try:
            estimator = skops.io.loads(saved.trees, trusted=list(cls.TRUSTED))
        except Exception as error:  # skops raises what the broken part happens to raise
            raise DamagedModel(
                f"a boosted model cannot be read ({error}); expected the file that flic wrote. "
                "Fit the federation again."
            ) from error
        return cls(estimator, task.num_outputs, isinstance(task, Regression), saved.trees)


@dataclass(frozen=True, eq=False)
class NetworkModel(Model):
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

    @cached_property
    def client(self) -> ClientData:
        """A stand-in for the client: prediction needs no row of it, only which classes it holds."""
        real = isinstance(self.task, Regression)
        y = torch.zeros(2) if real else torch.tensor(self.classes)
        nothing = Split(torch.zeros(0, self.schema.dim), y[:0])
        train = Split(torch.zeros(len(y), self.schema.dim), y)
        return ClientData("client", self.schema, train, nothing, nothing)

    # In double precision, so that a row's prediction does not depend on the rows beside it:
    # products of many rows and of one are rounded differently.

    @cached_property
    def _roster(self) -> Clients:
        data = FederatedData("prediction", self.task, (self.client,))
        return Clients(data, self.settings.embedding, dtype=torch.float64)

    @cached_property
    def _algorithm(self) -> Method:
        population = self._roster.population
        return build_method(self.method, self.settings, population, seed=0, dtype=torch.float64)

    def _refuse_other_shapes(self) -> None:
        """Refuse private tensors that are not those of a new client, of which some would fit in."""
        new = self._algorithm.init_client(self.client, self._roster.architecture(self.client.name))
        wrong = [
            name
            for name in {**new, **self.private}
            if name not in new
            or name not in self.private
            or new[name].shape != self.private[name].shape
        ]
        if len(self.inputs) != self.schema.dim:
            wrong.append("inputs")
        if wrong:
            raise KeyError(", ".join(wrong))

    def predict(self, rows: Features) -> np.ndarray:
        clients, names = self._roster, [self.client.name]
        x = torch.from_numpy(np.ascontiguousarray(rows.standard[:, list(self.inputs)]))
        labels = torch.zeros(len(x), dtype=self.client.train.y.dtype)
        stack = clients.stack(names, [_double(self.private)])
        server = ServerState(0, _double(self.shared))
        data = clients.stacked_data(names)
        [scores] = self._algorithm.predict(server, stack, data, [Split(x, labels)])
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
            private=_under("private.", saved.tensors),
            shared=_under("shared.", saved.tensors),
        )
        try:
            model._refuse_other_shapes()
            model.predict(_zeros(1 + max(model.inputs)))
        except (RuntimeError, KeyError, IndexError, ConfigError) as error:
            raise DamagedModel(
                f"a network does not fit its settings ({error}); expected the tensors that flic "
                "wrote. Fit the federation again."
            ) from error
        return model


@dataclass(frozen=True, eq=False)
class LinkedModel(Model):
    """A client's mix of its own and of pooled discriminants; reads features in plain units."""

    kind: ClassVar[str] = "linked"
    tensors: Mapping[str, Tensor]
    classes: tuple[int, ...]
    num_outputs: int
    sent: Sent  # its own part of everyone's sums, to be left out when it learns again

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
        sent: Sent = {
            "linear": _under("sent.linear.", saved.tensors),
            "mapped": _under("sent.mapped.", saved.tensors),
        }
        tensors = {n: t for n, t in saved.tensors.items() if not n.startswith("sent.")}
        model = cls(tensors, tuple(saved.facts["classes"]), task.num_outputs, sent)
        try:
            model.predict(_zeros(len(saved.tensors["shift"])))
        except (RuntimeError, KeyError, IndexError) as error:
            raise DamagedModel(
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
            trees = trees or own.trees  # one part has trees, if any
        return Saved(self.kind, {"parts": facts}, tensors, trees)

    @classmethod
    def load(cls, saved: Saved, task: Task) -> "MixModel":
        parts = []
        for i, own in enumerate(saved.facts["parts"]):
            kind, tensors = KINDS[own["kind"]], _under(f"{i}.", saved.tensors)
            model = kind.load(Saved(own["kind"], own["facts"], tensors, saved.trees), task)
            parts.append(Part(own["candidate"], own["weight"], own["temperature"], model))
        weights = [part.weight for part in parts]
        if not parts or min(weights) <= 0 or abs(sum(weights) - 1) > 1e-6:
            raise DamagedModel(
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
    """A row of a model's width, on which it can be tried."""
    return Features(*[lambda: np.zeros((1, width), np.float32)] * 2)


def _double(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same in double precision; maps of classes stay what they are."""
    return {n: v.double() if v.is_floating_point() else v for n, v in tensors.items()}


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {n.removeprefix(prefix): v for n, v in tensors.items() if n.startswith(prefix)}


KINDS: dict[str, type[Model]] = {
    kind.kind: kind for kind in (LinearModel, BoostedModel, NetworkModel, LinkedModel, MixModel)
}
