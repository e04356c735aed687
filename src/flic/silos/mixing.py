"""A mix of candidates: a weighted mean of models, with weights from rows of peers.

The weights maximise the mean over clients of the out-of-fold likelihood (for responses: minimise
the squared error). Clients share them, so only candidates that serve all clients take part. A
client's own weights are learnt from rows of its peers alone, so that its cross-validated score is
not fitted to the rows it is measured on.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from flic.data.task import Classification, Task
from flic.silos.candidate import Learned, Learner
from flic.silos.encoding import EncodedFederation
from flic.silos.fit_settings import FitSettings
from flic.silos.model import FLOOR, Model
from flic.silos.models import MixModel, Part, pooled

Weighed = Mapping[str, float]
"""candidate → its weight; they sum to 1."""

ByCandidate = Mapping[str, Mapping[str, np.ndarray]]
"""candidate → client → predictions of the client's rows."""

MOST_ROWS = 1000
"""Most rows of a client that are used: more change little, and cost time."""

LEAST = 0.02
"""Weight below which a candidate is left out: its model is not worth keeping."""

STEPS = 300


@dataclass(frozen=True)
class Weights:
    """Weights of the candidates in each client's mix; empty if there is no mix."""

    of_client: Mapping[str, Weighed] = field(default_factory=dict[str, Weighed])
    of_all: Weighed = field(default_factory=dict[str, float])  # for newcomers

    def say(self, said: ByCandidate, task: Task) -> dict[str, dict[str, np.ndarray]]:
        """Predictions of the mix for every client's rows, under its name."""
        found = {
            client: pooled([said[name][client] for name in own], list(own.values()), task)
            for client, own in self.of_client.items()
        }
        return {Mix.name: found} if found else {}


class Mix(Learner):
    """A mix of several candidates; without any, it serves no client.

    It is no method: clients train nothing for it, and its weights come from predictions of the
    others' models on rows that those did not learn from.
    """

    name = "mix"
    title = "a mix of all candidates"
    federated = True

    def __init__(
        self,
        members: Mapping[str, Learner] | None = None,
        temperatures: Mapping[str, float] | None = None,
        weights: Mapping[str, Weighed] | None = None,
    ) -> None:
        self._members = members or {}
        self._temperatures = temperatures or {}
        self._weights = weights or {}

    def served(self, encoded: EncodedFederation) -> list[str]:
        able = [{*member.served(encoded)} for member in self._members.values()]
        return [client for client in self._weights if all(client in own for own in able)]

    def learn(self, encoded: EncodedFederation, settings: FitSettings, *, seed: int) -> Learned:
        learned = {n: c.learn(encoded, settings, seed=seed) for n, c in self._members.items()}
        return Learned(mixed(learned, self._temperatures, self._weights, encoded.task))


def mixed(
    learned: Mapping[str, Learned],
    temperatures: Mapping[str, float],
    weights: Mapping[str, Weighed],
    task: Task,
) -> dict[str, Model]:
    """Each client's mix of the learnt models."""
    return {
        client: MixModel(
            tuple(
                Part(name, weight, temperatures.get(name), learned[name].models[client])
                for name, weight in own.items()
            ),
            task,
        )
        for client, own in weights.items()
    }


def find_weights(
    said: ByCandidate, y: Mapping[str, np.ndarray], task: Task, before: Weighed | None
) -> Weights:
    """Weights by client: from rows of its peers, or for a newcomer from `before`."""
    if before is not None:
        return Weights({client: _of(before, said, client) for client in y}, before)
    for_all = {name: own for name, own in said.items() if {*y} <= {*own}}
    found = {}
    for client in y:
        others = {other: own for other, own in y.items() if other != client}
        found[client] = _best(for_all, others, task)
    return Weights(found, _best(for_all, y, task))


def _of(weights: Weighed, said: ByCandidate, client: str) -> Weighed:
    """Weights of the candidates that serve a client."""
    return _without_the_least({n: w for n, w in weights.items() if client in said.get(n, {})})


def _best(said: ByCandidate, y: Mapping[str, np.ndarray], task: Task) -> Weighed:
    """The weights of the best mix over some clients."""
    names = list(said)
    parts = [_say({n: said[n][client] for n in names}, own, task) for client, own in y.items()]
    if not parts:
        return dict.fromkeys(names, 1 / len(names))
    rows = np.concatenate([own for own, _ in parts])
    target = np.concatenate([own for _, own in parts])
    count = np.concatenate([np.full(len(own), 1 / len(own)) for own, _ in parts])
    solve = _likeliest if isinstance(task, Classification) else _closest
    return _without_the_least(dict(zip(names, solve(rows, target, count).tolist(), strict=True)))


def _without_the_least(weights: Weighed) -> Weighed:
    whole = sum(weights.values())
    kept = {name: w for name, w in weights.items() if w >= LEAST * whole and w > 0}
    total = sum(kept.values())
    return {name: weight / total for name, weight in kept.items()}


def _say(
    said: Mapping[str, np.ndarray], y: np.ndarray, task: Task
) -> tuple[np.ndarray, np.ndarray]:
    """Each candidate's probability of each row's class, or its response in units of y; and y."""
    rows = np.unique(np.linspace(0, len(y) - 1, min(len(y), MOST_ROWS)).astype(int))
    y = y[rows]
    if isinstance(task, Classification):
        given = [np.exp(own[rows][np.arange(len(y)), y]) for own in said.values()]
        return np.stack(given, 1).clip(FLOOR), y.astype(float)
    spread = y.std() or 1.0
    given = [(own[rows][:, 0] - y.mean()) / spread for own in said.values()]
    return np.stack(given, 1), (y - y.mean()) / spread


def _likeliest(given: np.ndarray, target: np.ndarray, count: np.ndarray) -> np.ndarray:
    """Weights of the likeliest mixture, by expectation-maximisation."""
    del target  # the probabilities are already those of the target
    weights = np.full(given.shape[1], 1 / given.shape[1])
    for _ in range(STEPS):
        shares = weights * given
        shares *= (count / shares.sum(1))[:, None]
        weights = shares.sum(0) / count.sum()
    return weights


def _closest(given: np.ndarray, target: np.ndarray, count: np.ndarray) -> np.ndarray:
    """Weights of the mean with the least squared error: not negative, sum 1."""
    from scipy.optimize import nnls

    root, firm = np.sqrt(count)[:, None], 1e4 * np.sqrt(count.sum())
    matrix = np.vstack([root * given, np.full((1, given.shape[1]), firm)])
    return nnls(matrix, np.append(root[:, 0] * target, firm))[0]
