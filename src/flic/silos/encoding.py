"""From tables to a federation the engine can train: encoders fitted on training rows only."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from flic.data.client_data import ClientData, FederatedData, Split
from flic.data.schema import FeatureSchema
from flic.data.tables.encoder import TableEncoder
from flic.data.tables.table import Column, SiloTable
from flic.data.task import Task


@dataclass(frozen=True)
class EncodedSilo:
    """One client's rows as numbers, and how they became so."""

    columns: tuple[Column, ...]
    encoder: TableEncoder
    data: ClientData

    @property
    def name(self) -> str:
        """Name of the client."""
        return self.data.name


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
    """Training and held-out rows of every client, by its own encoder."""
    return EncodedFederation(task, tuple(_encode(table, *rows[table.name]) for table in tables))


def _encode(table: SiloTable, train: np.ndarray, test: np.ndarray) -> EncodedSilo:
    training = table.take(train)
    encoder = TableEncoder.fit(training)
    schema = FeatureSchema(table.name, encoder.features)
    own, held_out = _split(encoder, training), _split(encoder, table.take(test))
    nothing = held_out.take(torch.zeros(len(held_out), dtype=torch.bool))
    return EncodedSilo(
        table.columns, encoder, ClientData(table.name, schema, own, nothing, held_out)
    )


def _split(encoder: TableEncoder, table: SiloTable) -> Split:
    y = torch.from_numpy(table.y)
    labels = y.to(torch.float32) if y.is_floating_point() else y.long()
    return Split(torch.from_numpy(encoder.transform(table.frame)), labels)


def shared_columns(tables: Sequence[Sequence[Column]]) -> list[Column]:
    """Columns of the same name and kind at every client; free text is nobody else's."""
    holders = Counter(column for columns in tables for column in set(columns))
    return [c for c in tables[0] if holders[c] == len(tables) and c.kind != "text"]


def groups_of_one_space(tables: Mapping[str, Sequence[Column]]) -> list[list[str]]:
    """Clients with exactly the same columns, two or more together."""
    alike: dict[frozenset[Column], list[str]] = {}
    for name, columns in tables.items():
        alike.setdefault(frozenset(columns), []).append(name)
    return [names for names in alike.values() if len(names) > 1]


def features_from(silo: EncodedSilo, columns: Sequence[Column]) -> tuple[int, ...]:
    """Positions of the features that come from some columns."""
    names = {column.name for column in columns}
    return tuple(i for i, source in enumerate(silo.encoder.sources) if source in names)


def in_space(silo: EncodedSilo, inputs: Sequence[int], space: str) -> ClientData:
    """The client with some of its features, declared to lie in a space that others read too."""
    client, picked = silo.data, list(inputs)
    names = tuple(client.schema.features[i] for i in picked)
    return replace(
        client,
        schema=FeatureSchema(space, names),
        train=Split(client.train.x[:, picked], client.train.y),
        validation=Split(client.validation.x[:, picked], client.validation.y),
        test=Split(client.test.x[:, picked], client.test.y),
    )
