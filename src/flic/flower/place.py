"""What a silo works with: a roster of one, the core's algorithm, and its own rows."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from flic.algorithms import ServerState, Update, build_algorithm
from flic.alignment.anchors import factor_name, mean_name
from flic.alignment.meta_classes import MAP
from flic.data.client_data import ClientData, FederatedData
from flic.data.task import Regression
from flic.federation.roster import Roster
from flic.federation.work import Stage, Task, Workshop
from flic.flower.settings import FederationSettings
from flic.shapes import Named


@dataclass(frozen=True)
class Trained:
    """What one visit gives: the update that leaves, and the loss terms."""

    update: Update
    losses: Mapping[str, float]


class Place:
    """A roster of one, and what is needed to work for it."""

    def __init__(self, client: ClientData, settings: FederationSettings) -> None:
        self.client = client
        own = settings.method_settings
        data = FederatedData("silo", settings.question, (client,))
        roster = Roster(data, own.embedding, dtype=torch.float32)
        seed = settings.seed
        algorithm = build_algorithm(settings.method, own, roster.population, seed=seed)
        self.workshop = Workshop(algorithm, roster, seed)

    def prepared(self, server: ServerState) -> Named:
        """Private parameters before a first visit: φ_i fitted to the anchors as they are now."""
        roster, algorithm = self.workshop.roster, self.workshop.algorithm
        name = self.client.name
        if not algorithm.preparations:
            return algorithm.init_client(self.client, roster.architecture(name))
        task = Task("prepare", ServerState(0, server.shared), (name,), [None])
        return self.workshop.do(task).states[name]

    def train(
        self, stage: Stage, server: ServerState, state: Named, least_rows: int
    ) -> tuple[Trained, Named]:
        """What leaves, and the private parameters that stay."""
        name = self.client.name
        answer = self.workshop.do(Task(stage, server, (name,), [state]))
        update = answer.updates[0] if answer.updates else Update(name, {})
        few = _anchors_of_few(self.client, server, self.workshop, least_rows)
        entries = {name: e for name, e in update.entries.items() if name not in few}
        return Trained(Update(name, entries), answer.losses[name]), answer.states[name]

    def figures(self, server: ServerState, state: Named) -> dict[str, float]:
        """Sums over the silo's held-out rows."""
        name = self.client.name
        answer = self.workshop.do(Task("evaluate", server, (name,), [state]))
        figures = answer.scores[name].figures()
        return {name: float(v) for name, v in figures.items() if name.startswith("test_")}


def _anchors_of_few(
    client: ClientData, server: ServerState, workshop: Workshop, least: int
) -> set[str]:
    """Names of the anchors for which the silo has rows, but too few to hide one among them."""
    rows: Counter[int] = Counter()
    meta_of = server.shared.get(MAP)
    for c, count in client.class_counts.items():
        rows[c if meta_of is None else int(meta_of[c])] += count
    if isinstance(workshop.roster.data.task, Regression):
        rows = Counter(dict.fromkeys((0, 1), len(client.train)))  # all rows pull at both ends
    few = [anchor for anchor, count in rows.items() if count < least]
    return {name(anchor) for anchor in few for name in (mean_name, factor_name)}
