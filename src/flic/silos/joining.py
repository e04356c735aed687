"""Joining of a new site: it gets the shared part, learns alone and sends nothing.

For flic it gets {α, μ} and learns φ and β. For linked columns it gets the pooled sums and learns
only how much its own rows count beside them. Its verdict is made as for any client. The shared
part comes from a fitted federation, or from a run of flic (`shared_by_run`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import get_args

import numpy as np
import torch
from torch import Tensor

from flic.data.task import Classification, Task
from flic.digests import environment
from flic.engine.checkpoint import CHECKPOINTS, DiskJournal
from flic.engine.runners import one_thread
from flic.errors import ConfigError
from flic.files import alone_in
from flic.method_settings import MethodSettings
from flic.notation import quoted
from flic.runs.loaded import data_of, engine_of
from flic.runs.run_folder import read_config, refuse_damaged
from flic.silos.candidate import Learner
from flic.silos.candidates import CANDIDATES, FLIC, LINKED
from flic.silos.evaluator import Evaluator, Prior, Trial, work_through
from flic.silos.explanations import explanations
from flic.silos.fit_settings import FitSettings, FlicMethod
from flic.silos.fitted import FittedClient, FittedFederation
from flic.silos.linked_state import LinkedState
from flic.silos.mixing import Mix
from flic.silos.newcomers import JoinedFlic, JoinedLinked
from flic.silos.report_data import ReportData
from flic.silos.results import Results
from flic.silos.splits import outer_splits
from flic.silos.verdict import Verdict, verdict
from flic.tables import SiloTable, TableFederation
from flic.tables.declared import Kind, Raw
from flic.tables.labels import LabelNames
from flic.tables.values import text_of


@dataclass(frozen=True, eq=False)
class SharedPart:
    """Everything that a newcomer gets: what the others share, and how they were trained."""

    task: Task
    labels: tuple[str, ...]
    settings: FitSettings
    shared: Mapping[str, Tensor]  # {α, μ} of flic
    linked: LinkedState | None = None
    before: Prior | None = None  # the federation's experience with the candidates
    clients: Mapping[str, FittedClient] = field(default_factory=dict[str, FittedClient])

    @classmethod
    def of(cls, fitted: FittedFederation) -> "SharedPart":
        """The shared part of a fitted federation."""
        before = Prior(fitted.known, fitted.temperatures, fitted.weights)
        settings, clients = fitted.settings, fitted.clients
        return cls(
            fitted.task, fitted.labels, settings, fitted.shared, fitted.linked, before, clients
        )

    def candidates(self) -> dict[str, Learner]:
        """The candidates for a newcomer: alone, or with the shared part as it is."""
        offered = {name: c for name, c in CANDIDATES.items() if not c.federated}
        if self.shared:
            offered[FLIC.name] = JoinedFlic(self.shared)
        if self.linked is not None:
            offered[LINKED.name] = JoinedLinked(self.linked)
        offered[Mix.name] = CANDIDATES[Mix.name]
        known = offered if self.before is None else self.before.known
        return {name: candidate for name, candidate in offered.items() if name in known}

    def kinds_of_columns(self) -> dict[str, Kind]:
        """Kind of each shared column, where all its holders agree."""
        found: dict[str, set[Kind]] = {}
        for name, client in self.clients.items():
            for column in client.columns:
                shared = client.declared.shared_name(column.name, name)
                found.setdefault(shared, set()).add(column.kind)
        return {name: kinds.pop() for name, kinds in found.items() if len(kinds) == 1}

    def label_names(self, own: Mapping[str, Sequence[Raw]] | None = None) -> LabelNames | None:
        """Raw labels of a newcomer's classes: its own list, its peers', or the classes' names.

        Raises:
            ConfigError: its list names an unknown class.
        """
        strange = [name for name in own or {} if name not in self.labels]
        if strange:
            known = f"{quoted(self.labels)}" if self.labels else "none, since it is a regression"
            raise ConfigError(
                f"labels have the classes {quoted(strange)}; expected classes of the federation, "
                f"{known}. Correct the names."
            )
        if not self.labels:
            return None
        values = {
            label: dict.fromkeys(map(text_of, (own or {}).get(label, ()))) for label in self.labels
        }
        taken = {value for texts in values.values() for value in texts}
        shared = [(label, i) for i, label in enumerate(self.labels)]
        for client in self.clients.values():
            shared += (client.labelling.positions or {}).items()
        for value, position in shared:
            if value not in taken:
                values[self.labels[position]][value] = None
                taken.add(value)
        return {label: tuple(texts) for label, texts in values.items()}


@dataclass(frozen=True, eq=False)
class Joined:
    """Result of joining: the newcomer's model, its verdict, and the choice that led to them."""

    client: FittedClient
    verdict: Verdict
    notices: Sequence[str]
    final: Trial


def join(fitted: FittedFederation, table: SiloTable, *, workers: int = 1) -> FittedFederation:
    """The federation with one more client; the rest of it does not change."""
    if table.name in fitted.clients:
        raise ConfigError(
            f"name is {table.name!r}, which a client of the federation has already; expected a new "
            "one. Choose another with --name."
        )
    joined = join_shared(SharedPart.of(fitted), table, workers=workers)
    return fitted.with_client(joined.client, joined.verdict, joined.notices)


@one_thread()
def join_shared(part: SharedPart, table: SiloTable, *, workers: int = 1) -> Joined:
    """A newcomer's own choice of a model, its verdict by splits, and the model on all rows."""
    settings, federation = part.settings, TableFederation(part.task, part.labels, (table,))
    evaluator = Evaluator(federation, settings, part.candidates(), part.before)
    splits = work_through(evaluator, outer_splits([table], settings), workers=workers)
    results = Results.of_splits([result for result, _ in splits])
    rows = np.arange(len(table))
    final = evaluator.trial({table.name: rows}, seed=settings.seed)
    encoded = evaluator.encode({table.name: (rows, rows[:0])})
    name = final.choices["kept"][table.name].candidate
    model = evaluator.learn_all([name], encoded, final)[name].models[table.name]
    kept = (name, final.temperatures.get(name), model)
    client = FittedClient.of(table, encoded.silos[0], kept, part.task, part.labels)
    metric, count = settings.metric_for(part.task), {table.name: len(table)}
    notices = explanations(encoded, settings, part.linked, sent={}) if part.linked else ()
    found = verdict(results, final, metric=metric, rows=count)
    return Joined(client, found, notices, final)


def shared_by_run(folder: Path) -> SharedPart:
    """The shared part of a finished or stopped run of flic, as its last step left it.

    Raises:
        ConfigError: the run is of another method, or has not begun.
    """
    config = read_config(folder)
    if config.method not in get_args(FlicMethod):
        raise ConfigError(
            f"{folder} is a run of {config.method}; expected one of "
            f"{' or '.join(get_args(FlicMethod))}, whose anchors a newcomer can use."
        )
    data = data_of(config)
    with alone_in(folder):
        journal = DiskJournal(folder / CHECKPOINTS)
        refuse_damaged(folder, config, engine_of(config, data), journal)
    if journal.server is None:
        raise ConfigError(
            f"{folder} has no finished step; expected a run with anchors. Resume it first: "
            f"flic run --resume {folder}"
        )
    task = data.task
    network = config.model_dump(mode="json", include={*MethodSettings.model_fields})
    raw = {"seed": config.seed, "network": network, "flic_method": config.method}
    settings = FitSettings.model_validate(raw)
    labels = tuple(map(str, range(task.num_classes))) if isinstance(task, Classification) else ()
    shared = {name: tensor.to(torch.float32) for name, tensor in journal.server.shared.items()}
    return SharedPart(task, labels, settings, shared)


def join_run(part: SharedPart, table: SiloTable, *, workers: int = 1) -> FittedFederation:
    """A federation of one: the newcomer, with the shared part of a run."""
    joined = join_shared(part, table, workers=workers)
    return FittedFederation(
        task=part.task,
        labels=part.labels,
        settings=part.settings,
        verdict=joined.verdict,
        clients={table.name: joined.client},
        shared=part.shared,
        known=joined.final.known,
        temperatures=joined.final.temperatures,
        weights=joined.final.weights.of_all,
        records=(),
        report_data=ReportData(),
        environment=environment(),
        notices=joined.notices,
    )
