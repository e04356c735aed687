"""Sentences on linked columns: which are unlike others', and which are worth most."""

from collections.abc import Iterator, Mapping, Sequence

from flic.methods.linked.client_sums import Sent
from flic.methods.linked.link_checks import unlike
from flic.methods.linked.linked_client import LinkedClient
from flic.notation import quoted
from flic.silos.encoding import EncodedFederation, in_shared_units, linked_features
from flic.silos.fit_settings import FitSettings
from flic.silos.linked_state import LinkedState
from flic.tables.encoder import TableEncoder

LinkedClients = Mapping[str, LinkedClient]

MOST_COLUMNS = 30
"""Most linked columns of a client for which the worth of each link is measured."""

LEAST_GAIN = 0.02
"""Share of a client's cross-validated loss below which a change of it is called little."""

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
    """Columns that behave unlike peers', gains by what others sent, and most useful links."""
    return [*_unlike(encoders, known), *_gains(known), *_carriers(encoders, known)]


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


def _gains(known: LinkedClients) -> Iterator[str]:
    """A sentence per client: whether the other clients' columns improve its predictions."""
    for name, own in known.items():
        scores = own.best_scores()
        gain = (scores["mix"] - scores["own"]) / (abs(scores["own"]) or 1.0)
        change = "improve its predictions" if gain > 0 else "make its predictions worse"
        if abs(gain) < LEAST_GAIN:
            change = "change its predictions little"
        yield f"client '{name}': the other clients' columns {change}."


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
        told = [source for source in best if worth[source] >= 0.0005]
        yield (
            f"client '{name}': its most useful links: {quoted(told)}."
            if told
            else f"client '{name}': leaving out any one of its {len(features)} links changes next "
            "to nothing."
        )
