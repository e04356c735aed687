"""Data of a fit for the report, beyond the verdict: flic's rounds, and rows embedded by φ.

Taken from flic on the first split, so that the report can show held-out rows too. The fit keeps
the positions of rows in the plane, not the rows themselves.
"""

from dataclasses import asdict
from typing import Any

import numpy as np

from flic.data.task import Classification
from flic.engine.journal import Record
from flic.methods.network import NetworkMethod
from flic.runs.latent import alignment, held_out, latent, read
from flic.silos.candidate import STACK_WIDTH
from flic.silos.candidates import FLIC, NetworkCandidate, Run
from flic.silos.evaluator import Evaluator
from flic.silos.measures import figures
from flic.silos.model import log_probabilities, tempered
from flic.silos.splits import Rows

POINTS = 50  # number of measured rounds, about


def report_data(bench: Evaluator, rows: Rows, temperature: float | None) -> dict[str, Any]:
    """Plain values for the report; empty where flic is not among the candidates.

    The temperature is that of flic on the training rows, as in the verdict.
    """
    candidate = bench.offered.get(FLIC.name)
    if FLIC.name not in bench.served or not isinstance(candidate, NetworkCandidate):
        return {}
    scores: list[dict[str, float]] = []

    def measure(record: Record, run: Run) -> None:
        if _is_measured(record, run.settings.training.rounds):
            scores.append({"round": record["round"], "score": _score(bench, run, temperature)})

    encoded, seed = bench.encode(rows), bench.settings.seed
    run = candidate.simulate(encoded, bench.settings, seed=seed, on_step=measure)
    assert isinstance(run.engine.method, NetworkMethod)
    seen = read(run.engine.clients, run.engine.method, run.journal, stack_width=STACK_WIDTH)
    found = {
        "scores": scores,
        "latent": asdict(latent(seen, seed=seed)),
        "alignment": [asdict(cell) for cell in alignment(seen)],
        "never_left": list(seen.kept),
    }
    return _with_names(found, bench) if isinstance(seen.task, Classification) else found


def _is_measured(record: Record, rounds: int) -> bool:
    every = -(-rounds // POINTS)
    is_due = record["stage"] != "update" or record["round"] % every == 0
    return is_due and record["round"] >= 0


def _score(bench: Evaluator, run: Run, temperature: float | None) -> float:
    """The verdict's metric of held-out rows, mean over the clients where it is defined."""
    assert isinstance(run.engine.method, NetworkMethod)
    task = bench.federation.task
    metric = bench.settings.metric_for(task)
    known = []
    scores = held_out(run.engine.clients, run.engine.method, run.journal, stack_width=STACK_WIDTH)
    for name, own in scores.items():
        predicted = own.numpy().astype(float)
        if isinstance(task, Classification):
            predicted = tempered(log_probabilities(predicted), temperature)
        found = figures(task, predicted, run.engine.clients[name].test.y.numpy())[metric]
        known += [found] if np.isfinite(found) else []
    return float(np.mean(known)) if known else float("nan")


def _with_names(found: dict[str, Any], bench: Evaluator) -> dict[str, Any]:
    """Classes by their names instead of their positions."""
    names = {str(i): name for i, name in enumerate(bench.federation.labels)}
    cells = (*found["latent"]["points"], *found["latent"]["anchors"], *found["alignment"])
    for cell in cells:
        cell["label"] = names.get(cell["label"], cell["label"])
    return found
