"""Sharing within a feature space: FedRep among clients that declare the same features.

The strong baseline wherever several clients read the same kind of rows. Clients of one space may
lack some of its features: the first layer is shared feature by feature, each averaged over
the clients that have it.
"""

from collections.abc import Sequence
from functools import cached_property

import torch
from torch import Tensor

from flic.data.client_data import ClientData
from flic.data.schema import FeatureSchema
from flic.errors import ConfigError
from flic.method_settings import MethodSettings
from flic.methods.network import NetworkMethod
from flic.methods.protocol import Entry, Population, ServerState, VisitContext
from flic.networks.base import Embedding
from flic.networks.build import build_embedding
from flic.networks.mlp import FIRST_LAYER
from flic.seeding import generator
from flic.shapes import Named, under


class WithinSpace(NetworkMethod):
    """Body (φ and hidden layer) shared per space, head private."""

    name = "within-space"
    rule_name = "fedrep"

    def __init__(
        self, settings: MethodSettings, population: Population, *, seed: int, dtype: torch.dtype
    ) -> None:
        if settings.embedding.frozen:
            raise ConfigError(
                f"{self.name}: got embedding.frozen = true; expected false, since sharing φ is all "
                "it does. Leave the method out, or the setting."
            )
        super().__init__(settings, population, seed=seed, dtype=dtype)

    def init_server(self) -> ServerState:
        shared = {}
        for space, schema in self.population.spaces.items():
            rng = generator(self.seed, "server", "space", space)
            phi = build_embedding(schema, self.settings.embedding)
            body = phi.init(schema.dim, rng=rng, dtype=self.dtype)
            theta = self.model.init(rng=rng, dtype=self.dtype)
            body |= {n: theta[n] for n in theta if n in self.shared_names}
            shared |= _by_feature(space, body, schema.features)
        return ServerState(0, shared)

    def init_client(self, client: ClientData, embedding: Embedding) -> dict[str, Tensor]:
        private = super().init_client(client, embedding)
        return {n: private[n] for n in private if n in self.personal_names}

    def each_shared(self, context: VisitContext) -> dict[str, Tensor]:
        """Body of each client's own space, first layer restricted to its own features."""
        bodies = [self._body(context, client) for client in context.data.clients]
        return {name: torch.stack([body[name] for body in bodies]) for name in bodies[0]}

    def _body(self, context: VisitContext, client: ClientData) -> dict[str, Tensor]:
        prefix, shared = _prefix(client.schema.space), context.server.shared
        names = sorted(self._body_names | self.shared_names)  # sets have another order each time
        body = {name: shared[prefix + name] for name in names if prefix + name in shared}
        if client.schema.shape is not None:
            return body
        first = torch.stack([shared[f"{prefix}feature.{f}"] for f in client.schema.features])
        missing = context.data.width - len(first)
        return body | {FIRST_LAYER: torch.nn.functional.pad(first, (0, 0, 0, missing))}

    def joint_names(self) -> set[str]:
        """Body and head are trained together in the local epochs.

        Departs: FedRep's own alternation gives the body one epoch a round, and with few active
        clients it then hardly trains (docs/departures.md has the difference).
        """
        return self._body_names | self.shared_names

    def apart_names(self) -> set[str]:
        return set()

    @cached_property
    def _body_names(self) -> set[str]:
        """Names of the parameters of φ, of all kinds of spaces."""
        kinds = [
            build_embedding(schema, self.settings.embedding).init(
                schema.dim, rng=torch.Generator(), dtype=self.dtype
            )
            for schema in self.population.spaces.values()
        ]
        return {name for kind in kinds for name in kind}

    def phi(self, context: VisitContext, private: Named, shared: Named) -> Named:
        return under("embedding.", shared)

    def entries(
        self, context: VisitContext, client: int, private: Named, shared: Named
    ) -> dict[str, Entry]:
        """The client's version of its space's body, the first layer feature by feature."""
        data = context.data.clients[client]
        weight = self.client_weight(len(data.train))
        body = {name: value[client] for name, value in shared.items()}
        named = _by_feature(data.schema.space, body, data.schema.features)
        return {name: Entry(value.clone(), weight) for name, value in named.items()}

    def shared_with(self, schema: FeatureSchema, shared: Named) -> dict[str, Tensor]:
        """Tensors of the client's own space, and of it the rows of its own features."""
        own = _prefix(schema.space)
        rows = {f"{own}feature.{name}" for name in schema.features}
        return {
            name: value
            for name, value in shared.items()
            if not name.startswith("space.")
            or name in rows
            or (name.startswith(own) and not name.startswith(f"{own}feature."))
        }


def _prefix(space: str) -> str:
    return f"space.{space}."


def _by_feature(space: str, body: Named, features: Sequence[str]) -> dict[str, Tensor]:
    """A body under the names it is sent by: a perceptron's first layer row by row."""
    named = {_prefix(space) + name: value for name, value in body.items() if name != FIRST_LAYER}
    if FIRST_LAYER not in body:
        return named
    rows = body[FIRST_LAYER][: len(features)]
    return named | {
        f"{_prefix(space)}feature.{f}": row for f, row in zip(features, rows, strict=True)
    }
