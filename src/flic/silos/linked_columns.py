"""Linked columns: a candidate for members, for newcomers and for members that learn again.

The pooled sums that the federation shares are enough for a model of new rows: nothing is trained,
and nothing leaves.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from torch import Tensor

from flic.data.client_data import ClientData, FederatedData, Split
from flic.data.schema import FeatureSchema
from flic.engine.engine import Engine
from flic.methods.linked.client_sums import Sent
from flic.methods.linked.hiding import rare_indicators
from flic.methods.linked.link_checks import unlike
from flic.methods.linked.linked import Linked
from flic.methods.linked.linked_client import LinkedClient
from flic.methods.linked.tuning import PREDICTORS
from flic.shapes import Named
from flic.silos.candidate import Candidate, Learned, run_in_memory
from flic.silos.encoding import EncodedFederation, EncodedSilo, linked_features, linked_spaces
from flic.silos.fit_settings import FitSettings
from flic.silos.linked_state import LinkedState
from flic.silos.models import LinkedModel
from flic.tables.encoder import TableEncoder

LinkedClients = Mapping[str, LinkedClient]


class LinkedColumns(Candidate):
    """Pooled statistics of columns of the same name, in closed form."""

    name = "linked"
    title = "pooled statistics of linked columns"
    federated = True

    def served(self, encoded: EncodedFederation) -> list[str]:
        return list(linked_spaces({s.name: linked_features(s)[0] for s in encoded.silos}))

    def learn(self, encoded: EncodedFederation, settings: FitSettings, *, seed: int) -> Learned:
        names = {silo.name: linked_features(silo)[0] for silo in encoded.silos}
        spaces = linked_spaces(names)
        silos = [silo for silo in encoded.silos if silo.name in spaces]
        least = settings.method.linked.min_rows
        own = tuple(in_shared_units(silo, spaces[silo.name], least=least) for silo in silos)
        data = FederatedData("tables", encoded.task, own)
        engine = Engine.of("linked", settings.method, data, seed=seed)
        run, method = run_in_memory(engine, settings.method), engine.method
        assert run.journal.server is not None
        assert isinstance(method, Linked)
        state = LinkedState(method.agreed.shared, seed, run.journal.server.shared)
        known = {c.name: LinkedClient(method.agreed, state.tensors, c) for c in own}
        models = {silo.name: _model(known[silo.name], silo) for silo in silos}
        return Learned(models, run.journal.records, state.tensors, state, run.jobs.sent())


class JoinedLinked(Candidate):
    """Linked columns for new rows: the pooled sums, less those that the client sent."""

    name = LinkedColumns.name
    title = LinkedColumns.title
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
            client = in_shared_units(silo, space)
            known = LinkedClient(agreed, self._state.tensors, client, self._sent)
            models[silo.name] = _model(known, silo)
        return Learned(models)


def _model(known: LinkedClient, silo: EncodedSilo) -> LinkedModel:
    """The client's model for rows in its own units, and its own part of the pooled sums."""
    model = in_own_units(known.model(), silo)
    sent: Sent = {"linear": known.pool.sent("linear"), "mapped": known.pool.sent("mapped")}
    return LinkedModel(model, silo.data.classes, known.agreed.task.num_outputs, sent)


def in_own_units(model: Named, silo: EncodedSilo) -> dict[str, Tensor]:
    """A model for rows in shared units, converted to the client's own units.

    (f x + o − m) / s = (x − (m − o)/f) / (s/f)
    """
    _, factor, offset = linked_features(silo)
    shift, scale = (model["shift"] - offset) / factor, model["scale"] / factor
    return {**model, "shift": shift, "scale": scale}


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


# ---- explanations --------------------------------------------------------------------------------

MOST_COLUMNS = 30
"""Most linked columns of a client for which the worth of each link is measured."""

_CARRIERS = 3
_WHAT = {"location": "mean", "contrast": "relation to the label", "scale": "spread"}


def explanations(
    encoded: EncodedFederation,
    settings: FitSettings,
    linked: LinkedState,
    sent: Sent | None = None,
) -> list[str]:
    """Sentences on linked columns for each client; `sent` is empty for newcomers."""
    agreed = linked.agreed(settings, encoded.task)
    silos = {silo.name: silo for silo in encoded.silos}
    least = settings.method.linked.min_rows if sent is None else 1
    known = {
        name: LinkedClient(agreed, linked.tensors, in_shared_units(silo, space, least=least), sent)
        for name, silo in silos.items()
        for space in [linked.space_of(linked_features(silo)[0])]
        if space is not None
    }
    return sentences({name: silo.encoder for name, silo in silos.items()}, known)


def sentences(encoders: Mapping[str, TableEncoder], known: LinkedClients) -> list[str]:
    """Columns that behave unlike peers', gains of the predictors, and most useful links."""
    return [*_unlike(encoders, known), *_predictors(known), *_carriers(encoders, known)]


def _unlike(
    encoders: Mapping[str, TableEncoder], known: Mapping[str, LinkedClient]
) -> Iterator[str]:
    """The odd client of each feature; it also makes its peers look far off."""
    found: dict[tuple[str, str], list[tuple[float, str, str]]] = {}
    for name, own in known.items():
        encoder, keys = encoders[name], own.client.schema.features
        sources = dict(zip(keys, zip(encoder.features, encoder.sources, strict=True), strict=True))
        for key, kind, far in unlike(own):
            feature, source = sources[key]
            # The variance of an indicator follows from how often its level occurs.
            if kind != "scale" or feature == source:
                found.setdefault((key, kind), []).append((far, name, source))
    worst: dict[str, tuple[float, str, str, str]] = {}
    for (key, kind), every in found.items():
        far, name, source = _odd_one(every)
        worst[key] = max(worst.get(key, (0.0, "", "", "")), (abs(far), name, source, kind))
    told: set[tuple[str, str]] = set()
    for far, name, column, kind in sorted(worst.values(), reverse=True):
        if (name, column) not in told:
            told.add((name, column))
            yield (
                f"client '{name}': column '{column}' is unlike the same column of other clients: "
                f"given the label, its {_WHAT[kind]} is {far:.0f} times as far from theirs as is "
                "usual in this federation. Check its unit and meaning; then correct it with links, "
                "or list it in unlinked."
            )


def _odd_one(found: Sequence[tuple[float, str, str]]) -> tuple[float, str, str]:
    """The most extreme client on the minority side."""
    sides = [[own for own in found if (own[0] > 0) == above] for above in (True, False)]
    fewest = min(len(side) for side in sides if side)
    return max((own for side in sides if len(side) == fewest for own in side), key=_distance)


def _distance(found: tuple[float, str, str]) -> float:
    return abs(found[0])


def _predictors(known: LinkedClients) -> Iterator[str]:
    for name, own in known.items():
        scores, weights = own.best_scores(), own.model()["weights"].tolist()
        gains = [
            f"{predictor} {scores[predictor] - scores['own']:+.3f} (weight {weight:.0%})"
            for predictor, weight in zip(PREDICTORS[1:], weights[1:], strict=True)
        ]
        yield (
            f"client '{name}': change in cross-validated {own.tuning.word}, compared with a model "
            f"of its own rows: {', '.join(gains)}, mix {scores['mix'] - scores['own']:+.3f}."
        )


def _carriers(
    encoders: Mapping[str, TableEncoder], known: Mapping[str, LinkedClient]
) -> Iterator[str]:
    """The most useful links of each client."""
    for name, own in known.items():
        encoder, keys = encoders[name], own.client.schema.features
        features: dict[str, list[str]] = {}
        for key, source, linked in zip(keys, encoder.sources, own.pool.is_linked, strict=True):
            if linked:
                features.setdefault(source, []).append(key)
        if not 1 < len(features) <= MOST_COLUMNS:
            continue
        worth = {source: own.worth_of_links(all_of) for source, all_of in features.items()}
        best = sorted(worth, key=lambda source: -worth[source])[:_CARRIERS]
        told = [f"'{source}' {worth[source]:+.3f}" for source in best if worth[source] >= 0.0005]
        yield (
            f"client '{name}': its most useful links, with the cross-validated {own.tuning.word} "
            f"that each adds: {', '.join(told)}."
            if told
            else f"client '{name}': leaving out any one of its {len(features)} links changes next "
            "to nothing."
        )
