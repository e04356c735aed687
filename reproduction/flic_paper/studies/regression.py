"""FLIC on real responses: anchors on a line, against models that each client fits alone.

Paper: "Reference Distribution for Regression", which has no experiment. There are two federations,
synthetic data with few rows and the diabetes study by columns, each at the paper's settings and the
recommended ones.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from statistics import fmean
from typing import TYPE_CHECKING, Any

from flic.config import RunConfig, resolve
from flic.runs.comparison import ComparedRun, Row, compare
from flic.runs.loaded import data_of
from flic.runs.metrics import Outcome, Scores
from flic.runs.run_folder import simulate
from flic.settings import merge
from flic_paper.arms import revision
from flic_paper.study import WHICH, Cell, CellContext, Results, Scope, Study, Table, Value, listed

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_PRESETS = ("paper", "recommended")
_REFERENCE = "local"
_METHODS = (
    "local",
    "ridge",
    "boosting",
    "hetfedrep",
    "flic-class",
    "flic-hl",
    "permuted-anchors",
    "permuted-anchors-hl",
)
# The control with FLIC-HL's network; the plain one has FLIC-Class's.
_VARIANTS = {"permuted-anchors-hl": ("permuted-anchors", {"model": {"hidden_layer": True}})}
_ON: Mapping[str, tuple[str, ...]] = {
    "made-regression": _METHODS,
    "diabetes": (*_METHODS, "within-space"),  # its clients have the same names for columns
}

_FULL: dict[str, Any] = {
    "training": {"rounds": 30, "participation": 0.5, "local": "5 epochs", "batch_size": 20},
    "pretraining": {"epochs": 50},
    "evaluation": {"every": 5},
    "methods": {"permuted-anchors": {"model": {"hidden_layer": False}}},
}
_QUICK = {
    "data": {"num_clients": 8},
    "training": {"rounds": 4},
    "pretraining": {"epochs": 5},
    "evaluation": {"every": 2},
}


def study_config(problem: str, preset: str, *, quick: bool = False) -> RunConfig:
    """Settings of all runs on one federation."""
    raw = merge(_FULL, {"preset": preset, "data": {"problem": problem}})
    return resolve(merge(raw, _QUICK) if quick else raw, source="the regression study")


def _run(config: RunConfig, method: str, seed: int, context: CellContext) -> dict[str, Any]:
    """Scores of every client at the last and at the chosen round, and the best possible mean."""
    context.tell(f"{config.data.problem}, {config.preset}, {method}, seed {seed}")
    name, changes = _VARIANTS.get(method, (method, {}))
    raw = merge(config.model_dump(mode="json"), {"methods": {name: changes}})
    own = resolve(raw, source="the regression study").for_method(name, seed=seed)
    data = data_of(own)
    started = time.perf_counter()
    outcome = simulate(own, data)
    known = [client.ceiling for client in data.clients if client.ceiling is not None]
    return {
        "last": asdict(outcome.last),
        "chosen": None if outcome.chosen is None else asdict(outcome.chosen),
        "seconds": time.perf_counter() - started,
        "ceiling": fmean(known) if known else None,
    }


def _rows(results: Results, problem: str, preset: str, scope: Scope) -> list[Row]:
    """A row for each method that has run."""
    ran = []
    for method in _ON[problem]:
        for seed in _seeds_of(results, problem, preset, method, scope):
            found = results[_key(problem, preset, method, seed)]
            chosen = None if found["chosen"] is None else Scores(**found["chosen"])
            outcome = Outcome(Scores(**found["last"]), chosen)
            ran.append(ComparedRun(method, seed, outcome, found["seconds"], 0))
    return compare(ran, reference=_REFERENCE)


def _seeds_of(
    results: Results, problem: str, preset: str, method: str, scope: Scope
) -> Sequence[int]:
    """Seeds that a method has run."""
    return [s for s in _seeds(scope) if _key(problem, preset, method, s) in results]


def _seeds(scope: Scope) -> tuple[int, ...]:
    return scope.seeds_or(5)


def _key(problem: str, preset: str, method: str, seed: int) -> str:
    return f"{problem}/{preset}/{method}/{seed}"


_IN_BRIEF = (
    *("preset", "method", WHICH, "mean R²", "spread"),
    *(f"gain over {_REFERENCE}, last round", "±"),
)


class RegressionStudy(Study):
    """R² of every method on both federations."""

    name = "regression"
    title = "Real responses: R² of FLIC, of its control and of models trained alone"
    paper = "Reference Distribution for Regression"

    def cells(self, scope: Scope) -> Sequence[Cell]:
        return [
            Cell(
                _key(problem, preset, method, seed),
                partial(_run, config, method, seed),
                config.model_dump(mode="json"),
                revision(method),
            )
            for problem, methods in _ON.items()
            for preset in _PRESETS
            for config in [study_config(problem, preset, quick=scope.quick)]
            for seed in _seeds(scope)
            for method in methods
        ]

    def tables(self, results: Results, scope: Scope) -> Sequence[Table]:
        return [self._table(results, problem, scope) for problem in _ON]

    def _table(self, results: Results, problem: str, scope: Scope) -> Table:
        columns = [*_IN_BRIEF, "worst client", "chosen round", "gaining", "losing", "seconds"]
        lines = [
            [
                preset,
                row.method,
                listed(_seeds_of(results, problem, preset, row.method, scope)),
                *_line(row),
            ]
            for preset in _PRESETS
            for row in _rows(results, problem, preset, scope)
        ]
        note = "± is a 95 % interval of the paired difference over seeds × clients"
        note += "; clients of one seed share their test patients." if problem == "diabetes" else "."
        ceilings = [
            found["ceiling"]
            for key, found in results.items()
            if key.startswith(f"{problem}/") and found["ceiling"] is not None
        ]
        if ceilings:
            note += f" Bayes R², the ceiling: {fmean(ceilings):.3f}."
        title = f"R² on the test rows, mean over clients: {problem}"
        table = Table(f"regression-{problem}", title, columns, lines, note)
        return table.cut(_IN_BRIEF, lambda row: True)

    def figures(self, results: Results, scope: Scope) -> Mapping[str, "Figure"]:
        from matplotlib.figure import Figure

        figure = Figure(figsize=(9, 3.6), layout="constrained")
        for axes, problem in zip(figure.subplots(1, len(_ON)), _ON, strict=True):
            for preset in _PRESETS:
                _draw(axes, _rows(results, problem, preset, scope), preset, _others(problem))
            axes.axvline(0, color="0.7", linewidth=0.8)
            axes.set_title(problem)
            axes.set_xlabel(f"gain in R² over {_REFERENCE}, 95 % interval")
            axes.set_yticks(range(len(_others(problem))), labels=_others(problem))
            axes.invert_yaxis()
        handles = figure.axes[0].get_legend_handles_labels()
        figure.legend(*handles, loc="outside lower center", ncols=len(_PRESETS))
        return {"regression": figure}


def _line(row: Row) -> list[Value]:
    figures = [row.mean, row.spread, row.gain, row.gain_interval, row.worst, row.chosen]
    shown = [None if value is None else round(value, 3) for value in figures]
    counts = [row.gaining, row.losing] if row.gain is not None else [None, None]
    return [*shown, *counts, round(row.seconds, 1)]


def _others(problem: str) -> list[str]:
    return [method for method in _ON[problem] if method != _REFERENCE]


def _draw(axes: "Axes", rows: Sequence[Row], preset: str, order: Sequence[str]) -> None:
    """Gains of one preset, a dot and an interval per method."""
    shift = 0.15 * (2 * _PRESETS.index(preset) - 1)
    shown = [row for row in rows if row.gain is not None]
    axes.errorbar(
        [row.gain or 0.0 for row in shown],
        [order.index(row.method) + shift for row in shown],
        xerr=[row.gain_interval or 0.0 for row in shown],
        fmt="o",
        markersize=4,
        label=f"preset {preset}",
    )


STUDY = RegressionStudy()
