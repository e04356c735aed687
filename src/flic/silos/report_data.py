"""Data of a fit for the report, beyond the verdict: flic's rounds, and rows embedded by φ.

Taken from flic on the first split, so that the report can show held-out rows too. The fit keeps
the positions of rows in the plane, not the rows themselves.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from pydantic import BaseModel

from flic.data.task import Classification
from flic.engine.journal import Record
from flic.engine.traffic import ClientTraffic
from flic.methods.network import NetworkMethod
from flic.runs.latent import AlignmentCell, Latent, alignment, held_out, latent, read
from flic.silos.candidate import STACK_WIDTH, Run
from flic.silos.candidates import FLIC
from flic.silos.evaluator import Evaluator
from flic.silos.measures import figures
from flic.silos.model import log_probabilities, tempered
from flic.silos.splits import Rows
from flic.tables import TableFederation

POINTS = 50  # number of measured rounds, about


class RoundScore(BaseModel):
    """Mean score of held-out rows after a round; None where it is not defined."""

    round: int
    score: float | None


class ReportData(BaseModel):
    """Values for the report; those of flic are missing where it is no candidate."""

    scores: list[RoundScore] = []
    latent: Latent | None = None
    alignment: list[AlignmentCell] = []
    never_left: list[str] = []  # tensors of flic that clients keep
    traffic: list[ClientTraffic] = []


def report_data(evaluator: Evaluator, rows: Rows, temperature: float | None) -> ReportData:
    """Values for the report, without the traffic.

    The temperature is that of flic on the training rows, as in the verdict.
    """
    if FLIC.name not in evaluator.served:
        return ReportData()
    scores: list[RoundScore] = []

    def measure(record: Record, run: Run) -> None:
        if _is_measured(record, run.settings.training.rounds):
            score = _score(evaluator, run, temperature)
            known = score if np.isfinite(score) else None
            scores.append(RoundScore(round=record["round"], score=known))

    encoded, seed = evaluator.encode(rows), evaluator.settings.seed
    run = FLIC.simulate(encoded, evaluator.settings, seed=seed, on_step=measure)
    assert isinstance(run.engine.method, NetworkMethod)
    seen = read(run.engine.clients, run.engine.method, run.journal, stack_width=STACK_WIDTH)
    names = _names(evaluator.federation)
    return ReportData(
        scores=scores,
        latent=_named(latent(seen, seed=seed), names),
        alignment=[replace(c, label=names.get(c.label, c.label)) for c in alignment(seen)],
        never_left=list(seen.kept),
    )


def _is_measured(record: Record, rounds: int) -> bool:
    every = -(-rounds // POINTS)
    is_due = record["stage"] != "update" or record["round"] % every == 0
    return is_due and record["round"] >= 0


def _score(evaluator: Evaluator, run: Run, temperature: float | None) -> float:
    """The verdict's metric of held-out rows, mean over the clients where it is defined."""
    assert isinstance(run.engine.method, NetworkMethod)
    task = evaluator.federation.task
    metric = evaluator.settings.metric_for(task)
    known = []
    scores = held_out(run.engine.clients, run.engine.method, run.journal, stack_width=STACK_WIDTH)
    for name, own in scores.items():
        predicted = own.numpy().astype(float)
        if isinstance(task, Classification):
            predicted = tempered(log_probabilities(predicted), temperature)
        found = figures(task, predicted, run.engine.clients[name].test.y.numpy())[metric]
        known += [found] if np.isfinite(found) else []
    return float(np.mean(known)) if known else float("nan")


def _names(federation: TableFederation) -> dict[str, str]:
    """Position of each class → its name; none in a regression."""
    return {str(i): name for i, name in enumerate(federation.labels)}


def _named(view: Latent, names: Mapping[str, str]) -> Latent:
    """The view with classes by their names instead of their positions."""
    points = [replace(p, label=names.get(p.label, p.label)) for p in view.points]
    anchors = [replace(a, label=names.get(a.label, a.label)) for a in view.anchors]
    return replace(view, points=points, anchors=anchors)
