"""Sharing within a feature space: FedRep among clients that declare the same features.

The strong baseline wherever several clients read the same kind of rows. Clients of one space may
lack some of its features: the first layer is shared feature by feature, each averaged over
the clients that have it.
"""

import torch
from torch import Tensor

from flic.algorithms.network import NetworkMethod
from flic.algorithms.protocol import Entry, ServerState
from flic.algorithms.workplace import Workplace
from flic.data.client_data import ClientData
from flic.embedding.build import build_embedding
from flic.embedding.mlp import FIRST_LAYER, Mlp
from flic.personal.rule import under
from flic.seeding import generator
from flic.shapes import Named


class WithinSpace(NetworkMethod):
    """Body (φ and hidden layer) shared per space, head private."""

    name = "within-space"
    rule_name = "fedrep"

    def init_server(self) -> ServerState:
        shared = {}
        for space, features in self.population.spaces.items():
            rng = generator(self.seed, "server", "space", space)
            phi = build_embedding("vector", len(features), self.settings.embedding)
            body = phi.init(len(features), rng=rng, dtype=self.dtype)
            theta = self.model.init(rng=rng, dtype=self.dtype)
            body |= {n: theta[n] for n in theta if n in self.shared_names}
            rows = zip(features, body.pop(FIRST_LAYER), strict=True)
            shared |= {f"space.{space}.feature.{f}": row.clone() for f, row in rows}
            shared |= {f"space.{space}.{name}": value for name, value in body.items()}
        return ServerState(0, shared)

    def init_client(self, client: ClientData, embedding: Mlp) -> dict[str, Tensor]:
        private = super().init_client(client, embedding)
        return {n: private[n] for n in private if n in self.personal_names}

    def each_shared(self, place: Workplace) -> dict[str, Tensor]:
        """Body of each client's own space, first layer restricted to its own features."""
        bodies = [self._body(place, client) for client in place.data.clients]
        return {name: torch.stack([body[name] for body in bodies]) for name in bodies[0]}

    def _body(self, place: Workplace, client: ClientData) -> dict[str, Tensor]:
        prefix = f"space.{client.schema.space}."
        body = {name: place.server.shared[prefix + name] for name in self._body_names}
        rows = [place.server.shared[f"{prefix}feature.{f}"] for f in client.schema.features]
        first = torch.stack(rows)
        missing = place.data.width - len(first)
        return body | {FIRST_LAYER: torch.nn.functional.pad(first, (0, 0, 0, missing))}

    def joint_names(self) -> set[str]:
        """Body and head are trained together in the local epochs.

        Departs: FedRep's own alternation gives the body one epoch a round, and with few active
        clients it then hardly trains (docs/departures.md has the difference).
        """
        return set(self._body_names) | {FIRST_LAYER}

    def apart_names(self) -> set[str]:
        return set()

    @property
    def _body_names(self) -> list[str]:
        """Names of the body besides the first layer's weights."""
        layers = range(len(self.settings.embedding.hidden) + 1)
        phi = [f"embedding.{i}.{part}" for i in layers for part in ("weight", "bias")]
        return [name for name in phi if name != FIRST_LAYER] + sorted(self.shared_names)

    def phi(self, place: Workplace, private: Named, shared: Named) -> Named:
        return under("embedding.", shared)

    def entries(
        self, place: Workplace, client: int, private: Named, shared: Named
    ) -> dict[str, Entry]:
        """The client's version of its space's body, the first layer feature by feature."""
        data = place.data.clients[client]
        weight = self.client_weight(len(data.train))
        prefix = f"space.{data.schema.space}."
        rows = shared[FIRST_LAYER][client].clone()
        entries = {
            f"{prefix}feature.{f}": Entry(row, weight)
            for f, row in zip(data.schema.features, rows, strict=False)
        }
        for name in self._body_names:
            entries[prefix + name] = Entry(shared[name][client].clone(), weight)
        return entries
