"""Linked features: pooled class statistics of what clients have in common, in four uploads.

Clients of one space that have a feature of the same name mean the same thing by it. Linked features
are pooled among their holders as sums; everything else stays private. `linked_client.py` has the
predictors made of them. Uploads, each the preparation of that round number:

  −3  sums of the features as they are
  −2  sums of them along the directions between classes; sums of a random-feature map of them
  −1  sums of the map along the directions between classes; cross-validated likelihoods of `own`
      and `linked`; shares of linked features that differ from the peers', by distance
   0  cross-validated likelihoods of the map, and of every mix of the three predictors

Every choice is made by the mean of the clients' likelihoods on rows that they held out; in a
regression the squared error, with its sign turned, stands for the likelihood.
"""

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from flic.data.client_data import ClientData, Split
from flic.data.stacked import StackedData
from flic.method_settings import MethodSettings
from flic.methods.linked.agreement import Agreement, SumsKind
from flic.methods.linked.client_sums import ClientSums, sent_sums
from flic.methods.linked.deviations import USUAL
from flic.methods.linked.disclosure import DisclosedRows, told_detail
from flic.methods.linked.link_checks import UNLIKE, shares_unlike
from flic.methods.linked.linked_client import (
    LinkedClient,
    apply_mix,
    best_of_mix,
    scores_name,
    zeros,
)
from flic.methods.linked.sums import SENT
from flic.methods.linked.tuning import PREDICTORS, WEIGHTS, Predictor, tuning_of
from flic.methods.protocol import (
    Entry,
    Exported,
    Method,
    Population,
    ServerState,
    Stack,
    Stage,
    Step,
    Update,
    Visit,
    VisitContext,
    check_update,
    gather_entries,
    weighted_mean,
)
from flic.networks.base import Embedding
from flic.shapes import Named, under

UPLOAD = "prepare"
"""The name of the only stage."""

LEAN = 1.0
"""Weight of the pooled cv_scores in each tuning group, as a number of clients."""


class Linked(Method):
    """Closed form: a client's own discriminant, a pooled one, a pooled one of random features."""

    name = "linked"
    between_machines = True
    sends_sums = True

    def __init__(
        self, settings: MethodSettings, population: Population, *, seed: int, dtype: torch.dtype
    ) -> None:
        del dtype  # sums of many rows are kept in double precision
        self.agreed = Agreement(settings.linked, population.shared, population.task, seed)

    @property
    def _groups(self) -> list[str]:
        return sorted({self.agreed.group(space) for space in self.agreed.shared})

    # ---- the server half -----------------------------------------------------------------

    def init_server(self) -> ServerState:
        shared: dict[str, Tensor] = {}
        kinds: tuple[SumsKind, ...] = ("linear", "mapped")
        for space, features in self.agreed.shared.items():
            for kind in kinds if features.names else ():
                shapes = self.agreed.layout(space, kind).shapes
                for part in SENT[self.agreed.detail(kind)]:
                    shared[f"moments.{space}.{kind}.{part}"] = zeros(*shapes[part])
        tuning = tuning_of(self.agreed.task)
        temperatures = len(tuning.temperatures)
        for group in self._groups:
            for predictor in ("own", "linked"):
                cv_scores = zeros(tuning.grid(predictor), temperatures)
                shared[scores_name(predictor, group)] = cv_scores
            mixes = zeros(tuning.grid("mapped"), temperatures, len(WEIGHTS))
            shared[scores_name("mix", group)] = mixes
        shared[UNLIKE] = zeros(*USUAL.shape)
        return ServerState(0, shared)

    def aggregate(self, server: ServerState, updates: Iterable[Update]) -> ServerState:
        """Sum moments over their holders; average cv_scores, the pooled ones included."""
        updates = list(updates)
        for update in updates:
            check_update(server, update)
        shared = dict(server.shared)
        gathered = gather_entries(updates)
        for name, entries in gathered.items():
            if name.startswith("moments."):
                shared[name] = _sum([entry.value for entry in entries])
            else:
                shared[name] = weighted_mean(entries)
        for predictor in ("own", "linked", "mix"):
            shared |= _leant(under(scores_name(predictor, ""), gathered))
        return ServerState(server.round, shared)

    # ---- the client half -----------------------------------------------------------------

    def init_client(self, client: ClientData, embedding: Embedding) -> dict[str, Tensor]:
        del client, embedding
        return {}

    @property
    def stages(self) -> dict[str, Stage]:
        return {UPLOAD: Stage(UPLOAD, self.prepare, self.aggregate, sums=True)}

    def programme(self, rounds: int, *, final_round: bool) -> list[Step]:
        """Four uploads and an evaluation, without rounds."""
        del rounds, final_round
        uploads = [Step(UPLOAD, t, (*self.stages.values(),), "never") for t in (-3, -2, -1, 0)]
        return [*uploads, Step("evaluate", 1, measured="always")]

    def prepare(self, context: VisitContext) -> Visit:
        """Make each client's upload for the server's round."""
        server = context.server
        upload = {-3: self._sums, -2: self._mapped_sums, -1: self._scores, 0: self._mix_scores}
        updates = [
            Update(client.name, upload[server.round](server, client) if self._tells(client) else {})
            for client in context.data.clients
        ]
        return Visit(context.stack, updates, {})

    def _tells(self, client: ClientData) -> bool:
        """Return whether the client has enough rows to send likelihoods, which use all of them."""
        return len(client.train) >= self.agreed.settings.min_rows

    def _sums(self, server: ServerState, client: ClientData) -> dict[str, Entry]:
        del server
        space = client.schema.space
        if not {*client.schema.features} & {*self.agreed.shared[space].names}:
            return {}
        told = DisclosedRows.of(self.agreed, client)
        sent = sent_sums(self.agreed, told, told_detail(self.agreed, client))
        return _entries(f"{_prefix(client)}linear.", sent)

    def _mapped_sums(self, server: ServerState, client: ClientData) -> dict[str, Entry]:
        pool, prefix = ClientSums(self.agreed, server.shared, client), _prefix(client)
        sent = pool.sent_along("linear"), pool.sent_at_first("mapped")
        return _entries(f"{prefix}linear.", sent[0]) | _entries(f"{prefix}mapped.", sent[1])

    def _scores(self, server: ServerState, client: ClientData) -> dict[str, Entry]:
        known = LinkedClient(self.agreed, server.shared, client)
        entries = _entries(f"{_prefix(client)}mapped.", known.pool.sent_along("mapped"))
        predictors: tuple[Predictor, ...] = ("own", "linked")
        cv_scores = {
            scores_name(name, known.group): self._as_told(known, known.cv_scores(name))
            for name in predictors
        }
        entries |= _entries("", cv_scores)
        if known.pool.has_links:  # weighted by its number of linked features
            weight = float(known.pool.is_linked.sum())
            entries[UNLIKE] = Entry(shares_unlike(known), weight)
        return entries

    def _mix_scores(self, server: ServerState, client: ClientData) -> dict[str, Entry]:
        known = LinkedClient(self.agreed, server.shared, client)
        mixes = self._as_told(known, known.mix_scores())
        return _entries("", {scores_name("mix", known.group): mixes})

    def _as_told(self, known: LinkedClient, cv_scores: Tensor) -> Tensor:
        """Scores in steps of the most that one row can add to them, where rows are to be hidden."""
        if self.agreed.settings.min_rows == 1:
            return cv_scores
        step = -known.tuning.worst / len(known.truth)
        return ((cv_scores / step).round() * step).clamp_min(known.tuning.worst)

    def explain(self, server: ServerState) -> list[str]:
        return [self._explain(server.shared, group) for group in self._groups]

    def _explain(self, shared: Named, group: str) -> str:
        mixes, word = shared[scores_name("mix", group)], tuning_of(self.agreed.task).word
        cv_scores = {
            "own": shared[scores_name("own", group)],
            "linked": shared[scores_name("linked", group)],
            "mapped": mixes[..., WEIGHTS.index((0.0, 0.0, 1.0))],
            "mix": mixes,
        }
        weights = WEIGHTS[best_of_mix(mixes)[2]]
        parts = [f"{w:.0%} {name}" for name, w in zip(PREDICTORS, weights, strict=True)]
        found = [f"{float(score.max()):.3f} {name}" for name, score in cv_scores.items()]
        where = "" if len(self._groups) == 1 else f"in space '{group}', "
        return (
            f"{where}predictions are a mix of {', '.join(parts)}. Cross-validated {word}: "
            f"{', '.join(found)}."
        )

    def predict(
        self, server: ServerState, stack: Stack, data: StackedData, splits: Sequence[Split]
    ) -> list[Tensor]:
        del stack
        pairs = zip(data.clients, splits, strict=True)
        return [self._answers(server, client, split) for client, split in pairs]

    def _answers(self, server: ServerState, client: ClientData, split: Split) -> Tensor:
        answers = torch.full((len(split), self.agreed.task.num_outputs), -torch.inf)
        if len(split):
            known = LinkedClient(self.agreed, server.shared, client)
            answers[:, known.held] = apply_mix(known.model(), split.x).float()
        return answers

    def export(self, server: ServerState, client: ClientData, state: Named | None) -> Exported:
        del state
        return exported(LinkedClient(self.agreed, server.shared, client))


def exported(known: LinkedClient) -> Exported:
    """A client's model, and its own part of the pooled sums."""
    kinds: tuple[SumsKind, ...] = ("linear", "mapped")
    sent = {f"sent.{k}.{name}": v for k in kinds for name, v in known.pool.sent(k).items()}
    return Exported("linked", {**known.model(), **sent})


def _prefix(client: ClientData) -> str:
    """Beginning of the names of sums of a client's space."""
    return f"moments.{client.schema.space}."


def _entries(prefix: str, tensors: Named) -> dict[str, Entry]:
    return {prefix + name: Entry(value, 1.0) for name, value in tensors.items()}


def _leant(gathered: Mapping[str, Sequence[Entry]]) -> dict[str, Tensor]:
    """Mean cv_scores of each tuning group; the pooled ones count for `LEAN` clients in it.

    Spaces need their own settings, since one may have six features and another 240; scores of few
    clients are mostly noise.
    """
    if not gathered:
        return {}
    every = weighted_mean([entry for entries in gathered.values() for entry in entries])
    return {
        name: weighted_mean([*entries, Entry(every, LEAN)]) for name, entries in gathered.items()
    }


def _sum(values: Sequence[Tensor]) -> Tensor:
    """Sum in the order given, one at a time: many clients' sums need the memory of two."""
    total = values[0].clone()
    for value in values[1:]:
        total += value
    return total
