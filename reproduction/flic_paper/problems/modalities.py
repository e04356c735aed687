"""Clients that hold either the images or the texts of objects of the same classes.

Rows are vectors of pre-trained encoders, with coordinates missing at random.
Paper: "TextCaps data set".
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor

from flic.data.client_data import ClientData, FederatedData, Split
from flic.data.partition import deal_rows, draw_classes, draw_rows, in_turn, keep_features
from flic.data.problem import Problem
from flic.data.schema import FeatureSchema
from flic.data.task import Classification
from flic.errors import DataError
from flic.seeding import generator
from flic_paper.problems.pairs import Pairs, read_fashion, read_textcaps, twins

_TEST_SHARE = 0.2
"""Share of the pairs that no client trains on, drawn anew for every seed."""


class ModalitiesConfig(Problem):
    """Settings of two modalities.  Paper: "TextCaps data set"."""

    problem: Literal["modalities"] = "modalities"
    source: Literal["fashion", "textcaps"] = "fashion"
    label: Literal["season", "usage"] | None = None  # of fashion; None: season
    folder: Path | None = None  # of textcaps
    num_clients: int = Field(default=100, ge=2)  # b
    classes_per_client: int = Field(default=3, ge=2)  # |𝒴_i|
    prune: float = Field(default=0.1, ge=0, le=0.9)  # most coordinates that a client lacks
    test_rows: int = Field(default=100, ge=1)  # of a client, at most

    @model_validator(mode="after")
    def _source_has_what_it_needs(self) -> Self:
        if self.source == "textcaps" and self.folder is None:
            raise ValueError(
                "folder is missing; source 'textcaps' reads vectors from a folder. Set folder, "
                "and make it with scripts/embed_textcaps.py."
            )
        if self.source == "textcaps" and self.label is not None:
            raise ValueError(
                f"label is '{self.label}'; source 'textcaps' has one label only. Leave label out."
            )
        if self.source == "fashion" and self.folder is not None:
            raise ValueError(
                f"folder is '{self.folder}'; source 'fashion' is found through FLIC_DATA. Leave "
                "folder out, or set source to 'textcaps'."
            )
        return self

    def make(self, *, seed: int) -> FederatedData:
        return make_modalities(self, seed=seed)


def make_modalities(config: ModalitiesConfig, *, seed: int) -> FederatedData:
    """Clients that have image vectors and text vectors in turn.

    Within a modality, every training row is at one client. The text of a row may be at another
    client than its image, and neither knows that they belong together.
    """
    pairs = _read(config)
    _refuse_too_many_classes(config, pairs.num_classes)
    is_test = _draw_test(pairs, rng=generator(seed, "modalities", "test"))
    make = partial(_make_clients, pairs=pairs, is_test=is_test, config=config, seed=seed)
    clients = in_turn(("image", "text"), config.num_clients, make)
    return FederatedData(f"modalities-{config.source}", Classification(pairs.num_classes), clients)


def _read(config: ModalitiesConfig) -> Pairs:
    if config.source == "fashion":
        return read_fashion(config.label or "season")
    assert config.folder is not None, "settings refuse textcaps without a folder"
    return read_textcaps(config.folder)


def _refuse_too_many_classes(config: ModalitiesConfig, num_classes: int) -> None:
    if config.classes_per_client > num_classes:
        raise DataError(
            f"Source '{config.source}' has {num_classes} classes and a client wants "
            f"{config.classes_per_client}; expected at most as many. Lower classes_per_client."
        )


def _draw_test(pairs: Pairs, *, rng: torch.Generator) -> Tensor:
    """Mask of the test rows; rows that share an image or a text are on one side.

    Many products have the same name, and pictures have several captions: split row by row, a
    test row would often repeat a training row.
    """
    group = twins(pairs)
    rank = torch.rand(int(group.max()) + 1, generator=rng)[group]
    return rank < rank.sort().values[round(_TEST_SHARE * len(rank))]


def _make_clients(
    modality: str,
    members: range,
    *,
    pairs: Pairs,
    is_test: Tensor,
    config: ModalitiesConfig,
    seed: int,
) -> Iterator[ClientData]:
    """Clients of one modality, with the numbers `members`."""
    rng = generator(seed, "modalities", modality)
    rows = Split(pairs.vectors[modality], pairs.y)
    train, test = rows.take(~is_test), rows.take(is_test)
    classes = draw_classes(len(members), pairs.num_classes, config.classes_per_client, rng=rng)
    dealt = deal_rows(train.y, classes, rng=rng)
    for i, held, own in zip(members, classes, dealt, strict=True):
        name = f"{modality}-{i:03d}"
        client_rng = generator(seed, "modalities", name)
        kept = keep_features(rows.x.shape[1], (0.0, config.prune), rng=client_rng)
        # drawn from all its classes at once, so classes are as frequent as in training
        pool = torch.isin(test.y, torch.tensor(held)).nonzero().flatten()
        tested = test.take(draw_rows(pool, config.test_rows, rng=client_rng))
        yield _make_client(name, modality, train.take(own), tested, kept)


def _make_client(name: str, modality: str, train: Split, test: Split, kept: Tensor) -> ClientData:
    """Client of the given rows, restricted to its own coordinates."""
    features = tuple(f"{modality}{column}" for column in kept.tolist())
    return ClientData(
        name=name,
        schema=FeatureSchema(space=modality, features=features),
        train=Split(train.x[:, kept], train.y),
        validation=Split.empty(len(kept)),
        test=Split(test.x[:, kept], test.y),
    )
