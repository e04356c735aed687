"""Linked features: pooled class statistics of what clients have in common, in three uploads.

Clients of one space that have a feature of the same name mean the same thing by it. What is linked
is pooled among its holders as sums, everything else stays private; `experts.py` has what a client
makes of it. Uploads, each the preparation of that round number:

  −2  sums of the features as they are
  −1  sums of a random-feature map of them; cross-validated likelihoods of `own` and `linked`
   0  cross-validated likelihoods of the map, and of every mix of the three experts

Every choice is made by the mean of the clients' likelihoods on rows that they held out.
"""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from flic.algorithms.experts import (
    EVER,
    LINKED,
    MAPPED,
    OWN,
    PARTS,
    TEMPERATURES,
    WEIGHTS,
    Agreed,
    Known,
    View,
    enough,
    likelihood,
    likelihoods,
    mixed,
    tempered,
    zeros,
)
from flic.algorithms.protocol import (
    Algorithm,
    Entry,
    Generators,
    Population,
    ServerState,
    Stack,
    Update,
    Visit,
    check_update,
    gather_entries,
    weighted_mean,
)
from flic.algorithms.settings import MethodSettings
from flic.alignment.pooled import Moments
from flic.data.client_data import ClientData, Split
from flic.data.stacked import StackedData
from flic.embedding.network import Embedding


class Linked(Algorithm):
    """Closed form: a client's own discriminant, a pooled one, a pooled one of random features."""

    name = "linked"
    tasks = ("classification",)
    closed_form = True

    def __init__(
        self, settings: MethodSettings, population: Population, *, seed: int, dtype: torch.dtype
    ) -> None:
        del dtype  # sums of many rows are kept in double precision
        outputs = population.task.num_outputs
        self.agreed = Agreed(settings.linked, population.spaces, outputs, seed)

    @property
    def preparations(self) -> int:
        return 3

    # ---- the server half -----------------------------------------------------------------

    def init_server(self) -> ServerState:
        num, shared = self.agreed.num_classes, {}
        for space, schema in self.agreed.spaces.items():
            widths = {"linear": schema.dim, "mapped": self.agreed.settings.random_features}
            for kind, p in widths.items():
                shapes = {"count": (num, p), "total": (num, p), "scatter": (p, p), "dof": (p, p)}
                for part, shape in shapes.items():
                    shared[f"moments.{space}.{kind}.{part}"] = zeros(*shape)
        temperatures = len(TEMPERATURES)
        shared["scores.own"] = zeros(len(OWN), temperatures)
        shared["scores.linked"] = zeros(len(LINKED), temperatures)
        shared["scores.mix"] = zeros(len(MAPPED), temperatures, len(WEIGHTS))
        return ServerState(0, shared)

    def aggregate(self, server: ServerState, updates: Iterable[Update]) -> ServerState:
        """Moments are summed over their holders, likelihoods averaged."""
        updates = list(updates)
        for update in updates:
            check_update(server, update)
        shared = dict(server.shared)
        for name, entries in gather_entries(updates).items():
            if name.startswith("moments."):
                shared[name] = torch.stack([entry.value for entry in entries]).sum(0)
            else:
                shared[name] = weighted_mean(entries)
        return ServerState(server.round, shared)

    # ---- the client half -----------------------------------------------------------------

    def init_client(self, client: ClientData, embedding: Embedding) -> dict[str, Tensor]:
        del client, embedding
        return {}

    def prepare(
        self, server: ServerState, stack: Stack, data: StackedData, *, rngs: Generators
    ) -> Visit:
        del rngs
        upload = {-2: self._sums, -1: self._mapped_sums_and_scores, 0: self._mix_scores}
        updates = [
            Update(client.name, upload[server.round](server, client)) for client in data.clients
        ]
        return Visit(stack, updates, {})

    def client_update(
        self, server: ServerState, stack: Stack, data: StackedData, *, rngs: Generators
    ) -> Visit:
        del server, data, rngs
        return Visit(stack, [], {})

    adapt = client_update

    def _sums(self, server: ServerState, client: ClientData) -> dict[str, Entry]:
        del server
        sums = View(self.agreed, client).moments(enough(self.agreed, client))
        return _entries(f"moments.{client.schema.space}.linear.", sums)

    def _mapped_sums_and_scores(self, server: ServerState, client: ClientData) -> dict[str, Entry]:
        known = Known(self.agreed, server.shared, client)
        entries = {}
        if known.has_links:
            sums = known.mapped_moments(enough(self.agreed, client))
            entries = _entries(f"moments.{client.schema.space}.mapped.", sums)
        folds = known.folds()
        y = known.fold_labels(folds)
        for name in ("own", "linked"):
            found = likelihoods(known.fold_scores(name, folds), y)
            entries[f"scores.{name}"] = Entry(found, 1.0)
        return entries

    def _mix_scores(self, server: ServerState, client: ClientData) -> dict[str, Entry]:
        known = Known(self.agreed, server.shared, client)
        folds = known.folds()
        y = known.fold_labels(folds)
        own = known.best_fold_scores("own", folds)
        linked = known.best_fold_scores("linked", folds)
        mapped = tempered(torch.stack(known.fold_scores("mapped", folds)))
        found = [likelihood(mixed((own, linked, mapped), weights), y) for weights in WEIGHTS]
        return {"scores.mix": Entry(torch.stack(found, -1), 1.0)}

    def predict(
        self, server: ServerState, stack: Stack, data: StackedData, splits: Sequence[Split]
    ) -> list[Tensor]:
        del stack
        pairs = zip(data.clients, splits, strict=True)
        return [self._scores(server, client, split) for client, split in pairs]

    def _scores(self, server: ServerState, client: ClientData, split: Split) -> Tensor:
        scores = torch.full((len(split), self.agreed.num_classes), -EVER)
        if len(split):
            known = Known(self.agreed, server.shared, client)
            scores[:, known.held] = known.mix(split.x).float()
        return scores


def _entries(prefix: str, moments: Moments) -> dict[str, Entry]:
    parts = zip(PARTS, moments.parts, strict=True)
    return {prefix + name: Entry(value, 1.0) for name, value in parts}
