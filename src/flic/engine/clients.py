"""Clients of a federation, and stacks of them.

A stack holds clients of one architecture, largest first. Padding depends on the whole federation
and never on the cohort, so that stacking changes results only by rounding.
"""

from collections.abc import Iterable, Sequence
from functools import cached_property

import torch
from torch import Tensor

from flic.data.client_data import ClientData, FederatedData
from flic.data.inspect import unusable_labels
from flic.data.schema import FeatureSchema
from flic.data.stacked import StackedData
from flic.errors import DataError
from flic.method_settings import EmbeddingConfig
from flic.methods.protocol import Population, Stack
from flic.networks.base import Embedding
from flic.networks.build import build_embedding
from flic.networks.mlp import FIRST_LAYER
from flic.shapes import Named

# Below this width, a wider first layer costs less than a second stack.
CHEAP_WIDTH = 128
# Up to this width, zeros at the end of a row do not change the order of summation.
SUMMED_AT_ONCE = 256


class Clients:
    """The clients of a federation by name, and their common padding."""

    def __init__(
        self, data: FederatedData, embedding: EmbeddingConfig, *, dtype: torch.dtype
    ) -> None:
        _refuse_unusable(data)
        self.data = data
        self.dtype = dtype
        self._clients = {client.name: client for client in data.clients}
        widths = stack_widths([client.schema for client in data.clients])
        self._architectures = {
            name: build_embedding(own.schema, embedding, width=widths.get(own.schema.dim))
            for name, own in self._clients.items()
        }
        self._slots = max(len(client.classes) for client in data.clients)
        self._longest = self._longest_by_architecture()

    @property
    def names(self) -> list[str]:
        """Names of all clients."""
        return list(self._clients)

    def __getitem__(self, name: str) -> ClientData:
        return self._clients[name]

    @cached_property
    def population(self) -> Population:
        """Facts about the federation that every client may know."""
        return Population.of(self.data.clients, self.data.task)

    def split(self, names: Iterable[str], *, stack_width: int) -> list[tuple[str, ...]]:
        """Stacks of at most `stack_width` clients: one architecture each, largest first."""
        alike: dict[Embedding, list[str]] = {}
        for name in sorted(names, key=lambda n: (-len(self[n].train), n)):
            alike.setdefault(self.architecture(name), []).append(name)
        return [
            tuple(members[start : start + size])
            for members in alike.values()
            for size in [_even_size(len(members), stack_width)]
            for start in range(0, len(members), size)
        ]

    def architecture(self, name: str) -> Embedding:
        """Architecture of a client's φ, at its padded width."""
        return self._architectures[name]

    def _longest_by_architecture(self) -> dict[Embedding, int]:
        """Training rows of the largest client of each architecture; batches are padded to it."""
        longest: dict[Embedding, int] = {}
        for name, client in self._clients.items():
            embedding = self.architecture(name)
            longest[embedding] = max(longest.get(embedding, 0), len(client.train))
        return longest

    def stacked_data(self, names: Sequence[str]) -> StackedData:
        """Training rows of one stack."""
        return StackedData.of(
            [self[name] for name in names],
            task=self.data.task,
            width=self.architecture(names[0]).dim,
            slots=self._slots,
            longest=self._longest[self.architecture(names[0])],
            dtype=self.dtype,
        )

    def stack(self, names: Sequence[str], states: Sequence[Named]) -> Stack:
        """Private parameters of several clients with a leading client axis."""
        embedding = self.architecture(names[0])
        padded = [pad_features(state, embedding.dim) for state in states]
        return Stack(embedding, {n: torch.stack([s[n] for s in padded]) for n in padded[0]})

    def unstack(self, names: Sequence[str], stack: Stack) -> dict[str, dict[str, Tensor]]:
        """Private parameters of each client as copies, features unpadded."""
        found: dict[str, dict[str, Tensor]] = {}
        for i, name in enumerate(names):
            own = {n: value[i] for n, value in stack.private.items()}
            own = trim_features(own, self[name].schema.dim)
            found[name] = {n: value.clone() for n, value in own.items()}
        return found


def _refuse_unusable(data: FederatedData) -> None:
    """Refuse clients that no stack can hold; `flic.data.inspect` has all checks."""
    if not data.clients:
        raise DataError(f"data {data.name!r} has no clients; expected at least one. Add a client.")
    seen: set[str] = set()
    for client in data.clients:
        who = f"client {client.name!r}"
        if client.name in seen:
            raise DataError(f"{who} is there twice; expected one name per client. Rename one.")
        seen.add(client.name)
        if not len(client.train):
            raise DataError(f"{who} has no training rows; expected some. Leave the client out.")
        splits = {"training": client.train, "validation": client.validation, "test": client.test}
        for which, split in splits.items():
            wrong = unusable_labels(which, split.y, data.task)
            if wrong is not None:
                raise DataError(f"{who} {wrong}")


def stack_widths(schemas: Sequence[FeatureSchema]) -> dict[int, int]:
    """Padded width for each number of features of a vector: few widths, little padding.

    The widths depend only on the whole federation, so that no result depends on which clients
    are stacked together. A wide client's width depends only on its own features: a product sums
    long rows in parts, and the width decides where these end.
    """
    widths: dict[int, int] = {}
    current = 0
    vectors = {schema.dim for schema in schemas if schema.shape is None}
    for dim in sorted(vectors, reverse=True):
        small = dim < current / 2 and current > CHEAP_WIDTH
        if not current or small or current > SUMMED_AT_ONCE:
            current = -(-dim // 16) * 16
        widths[dim] = current
    return widths


def pad_features(parameters: Named, width: int) -> dict[str, Tensor]:
    """Parameters of one client with zero weights for padded features."""
    if FIRST_LAYER not in parameters:
        return dict(parameters)
    weight = parameters[FIRST_LAYER]
    padded = torch.nn.functional.pad(weight, (0, 0, 0, width - len(weight)))
    return {**parameters, FIRST_LAYER: padded}


def trim_features(parameters: Named, features: int) -> dict[str, Tensor]:
    """Parameters of one client without the weights of padded features."""
    if FIRST_LAYER not in parameters:
        return dict(parameters)
    return {**parameters, FIRST_LAYER: parameters[FIRST_LAYER][:features]}


def _even_size(members: int, limit: int) -> int:
    """Size of stacks that divide `members` evenly without exceeding `limit`."""
    return -(-members // -(-members // limit))
