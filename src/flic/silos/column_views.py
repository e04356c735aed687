"""Views of the clients' columns: the encoded columns that each client gives to a method."""

from collections import Counter
from collections.abc import Callable, Container
from dataclasses import dataclass

from flic.data.client_data import ClientData
from flic.method_settings import MethodSettings
from flic.methods.protocol import Exported
from flic.silos.encoding import (
    EncodedFederation,
    EncodedSilo,
    in_own_units,
    in_shared_units,
    in_space,
    linked_features,
    linked_spaces,
)
from flic.tables.table import Column


@dataclass(frozen=True)
class Columns:
    """Columns of one client: the space that they lie in, and their positions."""

    space: str
    inputs: tuple[int, ...]

    def client(self, silo: EncodedSilo, settings: MethodSettings) -> ClientData:
        """The client with these columns alone."""
        del settings
        return in_space(silo, self.inputs, self.space)

    def in_own_units(self, exported: Exported, silo: EncodedSilo) -> Exported:
        """A model of these columns, for the client's encoded rows."""
        del silo
        return exported


class SharedUnits(Columns):
    """Columns in units that mean the same at every client."""

    def client(self, silo: EncodedSilo, settings: MethodSettings) -> ClientData:
        return in_shared_units(silo, self.space, least=settings.linked.min_rows)

    def in_own_units(self, exported: Exported, silo: EncodedSilo) -> Exported:
        return in_own_units(exported, silo)


View = Callable[[EncodedFederation], dict[str, Columns]]
"""Function that picks the columns of each client that a candidate serves."""


def own_columns(encoded: EncodedFederation) -> dict[str, Columns]:
    """All columns of every client, each in a space of its own."""
    return {s.name: Columns(s.name, tuple(range(len(s.encoder.features)))) for s in encoded.silos}


def shared_columns(encoded: EncodedFederation) -> dict[str, Columns]:
    """The columns that every client has, but no free text; without any, no client is served."""
    common = set.intersection(*({*silo.shared} for silo in encoded.silos))
    names = {column.name for column in common if column.kind != "text"}
    found = {s.name: Columns("shared", _features_of(s, names)) for s in encoded.silos}
    return found if all(seen.inputs for seen in found.values()) else {}


def _features_of(silo: EncodedSilo, columns: Container[str]) -> tuple[int, ...]:
    """Positions of the features that come from some columns, by their common names."""
    pairs = zip(silo.encoder.sources, silo.encoder.kinds, strict=True)
    shared = [silo.declared.shared_name(source, silo.name, kind) for source, kind in pairs]
    return tuple(i for i, name in enumerate(shared) if name in columns)


def same_columns(encoded: EncodedFederation) -> dict[str, Columns]:
    """All columns of clients whose columns are exactly those of another client."""
    alike: dict[frozenset[Column], list[str]] = {}
    for silo in encoded.silos:
        alike.setdefault(frozenset(silo.shared), []).append(silo.name)
    groups = [names for names in alike.values() if len(names) > 1]
    own = own_columns(encoded)
    return {
        name: Columns(f"group {number}", own[name].inputs)
        for number, names in enumerate(groups)
        for name in names
    }


def pooled_columns(encoded: EncodedFederation) -> dict[str, Columns]:
    """All columns of clients that have one in common with another, in shared units."""
    own = own_columns(encoded)
    spaces = linked_spaces({silo.name: linked_features(silo)[0] for silo in encoded.silos})
    return {client: SharedUnits(space, own[client].inputs) for client, space in spaces.items()}


def linked_columns(encoded: EncodedFederation) -> dict[str, Columns]:
    """Columns that several clients have; no client is served if a simpler view gives the same."""
    names = {silo.name: linked_features(silo)[0] for silo in encoded.silos}
    holders = Counter(name for own in names.values() for name in own)
    found = {
        client: Columns(
            space, tuple(i for i, name in enumerate(names[client]) if holders[name] > 1)
        )
        for client, space in linked_spaces(names).items()
    }
    simpler = [_inputs(view(encoded)) for view in (shared_columns, same_columns)]
    return {} if _inputs(found) in simpler else found


def _inputs(seen: dict[str, Columns]) -> dict[str, tuple[int, ...]]:
    return {client: own.inputs for client, own in seen.items()}
