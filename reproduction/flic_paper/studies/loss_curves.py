"""Local losses, epoch by epoch, in three situations that train different parts.

Paper: fig:losscurve. 100 rounds of 100 local epochs; from round 21 on, the second half of the
epochs trains the shared part, where the situation has one.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from statistics import fmean
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from flic.config import RunConfig, resolve
from flic.data.batches import BatchPlan
from flic.engine.clients import Clients
from flic.engine.engine import Engine
from flic.engine.journal import MemoryJournal
from flic.engine.rounds import Schedule
from flic.engine.runners import local_rounds, open_jobs
from flic.method_settings import TrainingConfig
from flic.methods.flic.algorithm import FlicHL
from flic.methods.protocol import Visit, VisitContext
from flic.networks.descent import Losses, LossFn
from flic.runs.loaded import data_of
from flic.settings import merge
from flic.shapes import Named
from flic_paper.study import Cell, CellContext, Results, Scope, Study, Table, Value

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SHOWN = 3  # clients in the figure: the most visited ones
_SITUATIONS: Mapping[str, Mapping[str, Any]] = {
    "classifier alone": {"embedding": {"frozen": True}, "training": {"shared": "0 epochs"}},
    "classifier and shared part": {"embedding": {"frozen": True}},
    "everything": {},
}
_FULL: Mapping[str, Any] = {
    "data": {"problem": "linear-mapping", "variant": "appendix"},
    "training": {
        "rounds": 100,
        "local": "100 epochs",
        "shared": "50 epochs",
        "shared_schedule": "last",
        "shared_from_round": 20,
    },
}
_QUICK: Mapping[str, Any] = {
    "data": {"num_clients": 10, "train_rows_per_class": 100},
    "training": {
        "rounds": 20,
        "local": "10 epochs",
        "shared": "5 epochs",
        "participation": 0.3,
        "shared_from_round": 4,
    },
    "pretraining": {"epochs": 5},
}


class _Traced(FlicHL):
    """FLIC-HL that records every client's loss at every step of its rounds."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self.visits: dict[str, list[list[dict[str, float]]]] = {}
        self.rounds: dict[str, list[int]] = {}
        self._clients: Sequence[str] = ()

    def client_update(self, context: VisitContext) -> Visit:
        self._clients = context.data.names
        for name in context.data.names:
            self.visits.setdefault(name, []).append([])
            self.rounds.setdefault(name, []).append(context.server.round)
        visit = super().client_update(context)
        self._clients = ()
        return visit

    def _descend(
        self, parameters: Named, losses: LossFn, plan: BatchPlan
    ) -> tuple[dict[str, Tensor], Losses]:
        def traced(current: Named, step: int, count: int) -> Losses:
            terms = losses(current, step, count)
            for i, name in enumerate(self._clients[:count]):
                values = {term: value[i].item() for term, value in terms.items()}
                self.visits[name][-1].append(values)
            return terms

        return super()._descend(parameters, traced, plan)


def _trace(config: RunConfig, context: CellContext) -> dict[str, Any]:
    """Losses per visit and epoch of the most visited clients, and the visits' rounds."""
    data = data_of(config)
    clients = Clients(data, config.embedding, dtype=torch.float32)
    method = _Traced(config, clients.population, seed=config.seed, dtype=torch.float32)
    engine = Engine(method, clients, config.seed)
    training = config.training
    schedule = Schedule(training.rounds, training.participation, False, 0)
    with open_jobs(engine, workers=1) as jobs:
        for record in local_rounds(jobs, schedule, MemoryJournal(), stack_width=100).steps():
            context.tell(f"round {record['round']}")
    often = sorted(method.visits, key=lambda name: (-len(method.visits[name]), name))
    return {
        name: {
            "rounds": method.rounds[name],
            "epochs": [
                _epochs(visit, -(-len(clients[name].train) // training.batch_size))
                for visit in method.visits[name]
            ],
        }
        for name in often[:_SHOWN]
    }


def _epochs(steps: Sequence[Mapping[str, float]], per_epoch: int) -> list[list[float]]:
    """Data loss and whole loss of each epoch of a visit."""
    whole = [[step["data"], sum(step.values())] for step in steps]
    return [
        [fmean(column) for column in zip(*whole[i : i + per_epoch], strict=True)]
        for i in range(0, len(whole), per_epoch)
    ]


class LossCurves(Study):
    """Loss of three clients over their visits, in three situations."""

    name = "loss-curves"
    title = "Loss curves of three clients in three situations, linear mapping"
    paper = "fig:losscurve"

    def cells(self, scope: Scope) -> Sequence[Cell]:
        return [
            Cell(_key(situation, seed), partial(_trace, config), config.model_dump(mode="json"))
            for seed in scope.seeds_or(1)
            for situation, changes in _SITUATIONS.items()
            for config in [_config(changes, seed, scope)]
        ]

    def tables(self, results: Results, scope: Scope) -> Sequence[Table]:
        columns = ["situation", "seed", "first loss", "last loss", "last whole loss"]
        columns += ["jump between visits", "drop when the shared part starts", "drop elsewhere"]
        rows: list[Sequence[Value]] = []
        for situation in _SITUATIONS:
            for seed in scope.seeds_or(1):
                clients = results.get(_key(situation, seed))
                if clients is not None:
                    training = _config(_SITUATIONS[situation], seed, scope).training
                    rows.append([situation, seed, *_means(clients.values(), training)])
        note = (
            "Data loss, except the whole loss, which has the weighted Wasserstein and calibration "
            "terms too; means over three clients. Jump: change of the loss from the last epoch of "
            "a visit to the first of the next, its size. Drops: fall of the loss from one epoch to "
            "the next, at the epoch where the shared part starts, and at all others, in rounds "
            "that train it."
        )
        return [Table(self.name, self.title, columns, rows, note)]

    def figures(self, results: Results, scope: Scope) -> Mapping[str, "Figure"]:
        from matplotlib.figure import Figure

        figure = Figure(figsize=(14, 4), layout="constrained")
        seed = scope.seeds_or(1)[0]
        panels = figure.subplots(1, len(_SITUATIONS))
        for axes, situation in zip(panels, _SITUATIONS, strict=True):
            # The paper's curves include the Wasserstein term if φ is trained.
            column = 1 if situation == "everything" else 0
            clients = results.get(_key(situation, seed), {})
            for name, client in clients.items():
                axes.plot(
                    [epoch[column] for visit in client["epochs"] for epoch in visit],
                    label=name,
                    lw=0.8,
                )
            axes.set_title(situation)
            axes.set_xlabel("local epochs")
            axes.set_ylabel("whole loss" if column else "data loss")
            axes.set_yscale("log")
            if clients:  # a situation may not have been done yet
                axes.legend()
        return {self.name: figure}


def _config(changes: Mapping[str, Any], seed: int, scope: Scope) -> RunConfig:
    raw = merge(merge(_FULL, _QUICK) if scope.quick else _FULL, changes)
    return resolve(merge(raw, {"seed": seed, "method": "flic-hl"}), source="the loss curves")


def _means(clients: Iterable[Mapping[str, Any]], training: TrainingConfig) -> list[Value]:
    """The table's figures, means over clients; None if a situation has no such figure."""
    figures = [_figures(client, training) for client in clients]
    return [
        None if None in column else fmean(v for v in column if v is not None)
        for column in zip(*figures, strict=True)
    ]


def _figures(client: Mapping[str, Any], training: TrainingConfig) -> list[float | None]:
    """First, last and whole loss, jumps between visits, and drops within them."""
    data = [[epoch[0] for epoch in visit] for visit in client["epochs"]]
    jumps = [abs(b[0] - a[-1]) for a, b in pairwise(data)]
    losses = [data[0][0], data[-1][-1], client["epochs"][-1][-1][1], fmean(jumps)]
    if not training.shared.epochs:
        return [*losses, None, None]
    falls = [
        [a - b for a, b in pairwise(visit)]
        for visit, round in zip(data, client["rounds"], strict=True)
        if round > training.shared_from_round
    ]
    border = (training.local.epochs or 0) - training.shared.epochs - 1
    elsewhere = [fall for visit in falls for i, fall in enumerate(visit) if i != border]
    return [*losses, fmean(visit[border] for visit in falls), fmean(elsewhere)]


def _key(situation: str, seed: int) -> str:
    return f"{situation.replace(' ', '-')}/seed{seed}"


STUDY = LossCurves()
