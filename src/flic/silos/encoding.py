"""Encoding of tables for the engine; encoders are fitted on training rows only."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import torch

from flic.data.client_data import ClientData, FederatedData, Split
from flic.data.schema import FeatureSchema
from flic.data.task import Task
from flic.methods.linked.hiding import rare_indicators
from flic.methods.protocol import Exported
from flic.silos.model import Features
from flic.tables.declared import Declared
from flic.tables.encoder import TableEncoder
from flic.tables.table import Column, SiloTable

LINKED = "linked"
"""Name of the space of linked columns, as a deployment calls it."""


@dataclass(frozen=True)
class EncodedSilo:
    """One client's rows as numbers, and the encoder that made them."""

    shared: tuple[Column, ...]  # its columns under their common names
    declared: Declared
    encoder: TableEncoder
    data: ClientData  # features standardised by the client's own rows
    plain: ClientData  # the same features in units that mean the same everywhere

    @property
    def name(self) -> str:
        """Name of the client."""
        return self.data.name

    @property
    def held_out(self) -> Features:
        """The held-out rows as models read them."""
        return Features(self.data.test.x.numpy, self.plain.test.x.numpy)


@dataclass(frozen=True)
class EncodedFederation:
    """All clients encoded; `data` is what methods with private embeddings train on."""

    task: Task
    silos: tuple[EncodedSilo, ...]

    @property
    def data(self) -> FederatedData:
        """The federation as the engine knows it, every client in a space of its own."""
        return FederatedData("tables", self.task, tuple(silo.data for silo in self.silos))


def encode(
    tables: Sequence[SiloTable],
    task: Task,
    rows: Mapping[str, tuple[np.ndarray, np.ndarray]],
) -> EncodedFederation:
    """Encode the training and held-out rows of every client with its own encoder."""
    silos = []
    for table in tables:
        training, testing = (table.take(own) for own in rows[table.name])
        encoder = TableEncoder.fit(training)
        data = _client(table.name, encoder.transform, encoder.features, training, testing)
        plain = _client("columns", encoder.plain, encoder.features, training, testing)
        silos.append(EncodedSilo(table.shared, table.declared, encoder, data, plain))
    return EncodedFederation(task, tuple(silos))


def _client(
    space: str,
    transform: Callable[[pd.DataFrame], np.ndarray],
    features: tuple[str, ...],
    training: SiloTable,
    testing: SiloTable,
) -> ClientData:
    splits = [
        Split(torch.from_numpy(transform(table.frame)), _labels(table.y))
        for table in (training, testing)
    ]
    nothing = splits[1].take(torch.zeros(len(splits[1]), dtype=torch.bool))
    schema = FeatureSchema(space, features)
    return ClientData(training.name, schema, splits[0], nothing, splits[1])


def _labels(y: np.ndarray) -> torch.Tensor:
    labels = torch.from_numpy(y)
    return labels.to(torch.float32) if labels.is_floating_point() else labels.long()


def linked_names(encoder: TableEncoder, declared: Declared, client: str) -> list[str]:
    """Common names of a client's features.

    Only features of one kind are linked: a number never with a boolean or a level.
    """
    names = []
    features = zip(encoder.features, encoder.sources, encoder.kinds, strict=True)
    for feature, source, kind in features:
        of_kind = "" if kind == "number" else f" ({kind})"
        shared = declared.shared_name(source, client, kind)
        names.append(shared + of_kind + feature.removeprefix(source))
    return names


def linked_features(silo: EncodedSilo) -> tuple[list[str], torch.Tensor, torch.Tensor]:
    """Common names of a client's features, and factor and offset into the shared units."""
    factors, offsets = [], []
    for feature, source in zip(silo.encoder.features, silo.encoder.sources, strict=True):
        link = silo.declared.links.get(source)
        in_units = link is not None and feature == source
        factors.append(link.factor if link is not None and in_units else 1.0)
        offsets.append(link.offset if link is not None and in_units else 0.0)
    names = linked_names(silo.encoder, silo.declared, silo.name)
    return names, torch.tensor(factors).double(), torch.tensor(offsets).double()


def linked_spaces(features: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Space of each client that has a feature in common with another.

    Clients are in one space if a chain of common features connects them. A space is not named
    after a client: that name would appear in the names of what its peers send.
    """
    holders: dict[str, list[str]] = {}
    for name, own in features.items():
        for feature in own:
            holders.setdefault(feature, []).append(name)
    space = {name: name for name in features}
    for names in holders.values():
        joined = {space[name] for name in names}
        first = min(joined)
        space = (
            {n: first if s in joined else s for n, s in space.items()} if len(joined) > 1 else space
        )
    members = Counter(space.values())
    firsts = sorted(first for first, count in members.items() if count > 1)
    names = {s: f"{LINKED} {i}" if i > 1 else LINKED for i, s in enumerate(firsts, 1)}
    return {name: names[s] for name, s in space.items() if s in names}


def in_space(silo: EncodedSilo, inputs: Sequence[int], space: str) -> ClientData:
    """The client with some of its features, declared to lie in a shared space."""
    client, picked = silo.data, list(inputs)
    shared = linked_features(silo)[0]
    names = tuple(shared[i] for i in picked)
    return replace(
        client,
        schema=FeatureSchema(space, names),
        train=Split(client.train.x[:, picked], client.train.y),
        validation=Split(client.validation.x[:, picked], client.validation.y),
        test=Split(client.test.x[:, picked], client.test.y),
    )


def in_own_units(exported: Exported, silo: EncodedSilo) -> Exported:
    """A model for rows in shared units, converted to the client's own units.

    (f x + o − m) / s = (x − (m − o)/f) / (s/f)
    """
    _, factor, offset = linked_features(silo)
    shift, scale = (exported.tensors[name] for name in ("shift", "scale"))
    own = {"shift": (shift - offset) / factor, "scale": scale / factor}
    return replace(exported, tensors={**exported.tensors, **own})


def in_shared_units(silo: EncodedSilo, space: str, *, least: int = 1) -> ClientData:
    """The client with its columns under their shared names, in the shared units.

    A level or a gap in fewer than `least` of its rows is kept private.
    """
    names, factor, offset = linked_features(silo)
    client = silo.plain
    rare = rare_indicators(client.train.x, least=least).tolist()
    names = [f"{n}, at {silo.name} alone" if r else n for n, r in zip(names, rare, strict=True)]
    train = Split((client.train.x * factor + offset).float(), client.train.y)
    test = Split((client.test.x * factor + offset).float(), client.test.y)
    schema = FeatureSchema(space, tuple(names), sources=silo.encoder.source_numbers)
    return replace(client, schema=schema, train=train, test=test)
