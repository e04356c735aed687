"""Announcement: all that will leave a silo, listed before it joins a federation."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from flic.flower.federation_settings import (
    NUMBER_BYTES,
    FederationSettings,
    federation_settings,
)
from flic.flower.pooling import FIRST, KEY_BYTES, SUMS, round_of
from flic.flower.silo_engine import SiloEngine
from flic.flower.silo_figures import figure_names
from flic.flower.silo_folder import SiloFolder
from flic.flower.silo_run import rows_of
from flic.flower.sums_form import LINEAR
from flic.methods.protocol import ServerState
from flic.settings import merge

EVERY = "every round"

#: A visit of a few steps, which sends what a whole one sends.
_SHORT = {
    "training": {"local": "2 steps", "shared": "1 steps", "batch_size": 2**40},  # all rows
    "pretraining": {"epochs": 0},
}


@dataclass(frozen=True)
class Leaving:
    """One thing that leaves a silo."""

    what: str
    shape: tuple[int, ...]
    num_bytes: int
    when: str
    linked: int = 0  # columns that must be linked before it does
    is_in_sum: bool = False  # whether the operator sees it in sums of many silos alone


def announce(silo: SiloFolder, settings: FederationSettings) -> list[Leaving]:
    """Exactly what will leave in every round and in every evaluation, found by a short visit.

    Beside it, every answer carries the number of its round.
    """
    if settings.sends_sums:
        return _sums(silo, settings)
    short = settings.model_copy(update={"network": merge(settings.network, _SHORT)})
    short = federation_settings(short.model_dump(mode="json"), source="announcement")
    engine = SiloEngine(silo.encoded(silo.read(short)[0], short).data, short)
    server = ServerState(1, engine.engine.method.init_server().shared)
    state = engine.prepared(server)
    trained, _ = engine.train("update", server, state, silo.min_rows(short))
    entries, masked = trained.update.entries, settings.masks_sums
    found = [
        *(_tensor(n, e.value.shape, e.value, EVERY) for n, e in entries.items()),
        *(_number(f"weight of {name}", EVERY) for name in entries),
    ]
    losses = [_number(f"loss {term}", EVERY) for term in trained.losses]  # stay at home if masked
    return [
        *(replace(own, is_in_sum=masked) for own in found),
        *([] if masked else losses),
        *_figures(settings),
    ]


def _sums(silo: SiloFolder, settings: FederationSettings) -> list[Leaving]:
    """The most that leaves where columns are linked, once in each of five rounds."""
    encoded, least = silo.encoded(silo.read(settings)[0], settings), silo.min_rows(settings)
    client = rows_of(encoded, settings, least=least)
    engine = silo.linked_engine(client, settings)
    keys = client.schema.features
    leaving = engine.leaving()
    told = [(SUMS, 1), *((round_of(n), own) for n, _, own in leaving if n == f"{LINEAR}along")]
    found = [
        Leaving(what, (len(keys),), KEY_BYTES * len(keys), _nth(round), linked)
        for what, round, linked in (
            ("keys of columns", FIRST, 0),
            *(("keys of linked columns", *own) for own in told),
        )
    ]
    for name, value, linked in leaving:
        sent = _nth(round_of(name))
        both = _tensor(name, value.shape, value, sent), _number(f"weight of {name}", sent)
        found += [replace(o, linked=linked, is_in_sum=settings.masks_sums) for o in both]
    return [*found, *_figures(settings)]


def _figures(settings: FederationSettings) -> list[Leaving]:
    names, masked = figure_names(settings.common_task), settings.masks_sums
    return [replace(_number(name, "every evaluation"), is_in_sum=masked) for name in names]


def _nth(round: int) -> str:
    return f"once, in round {round - FIRST + 1}"


def _tensor(name: str, shape: Sequence[int], value: torch.Tensor, when: str) -> Leaving:
    return Leaving(name, tuple(shape), value.numel() * value.element_size(), when)


def _number(what: str, when: str) -> Leaving:
    return Leaving(what, (), NUMBER_BYTES, when)
