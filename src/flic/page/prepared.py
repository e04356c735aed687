"""Values for templates that are computed from a report."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from flic.engine.traffic import ClientTraffic, SentTensor
from flic.page import charts, latent_charts
from flic.page.charts import Chart
from flic.page.contents import Measure, Report
from flic.page.figures import score, size
from flic.page.names import distinct, in_order
from flic.runs.latent import AlignmentCell, SplitName


def drawn(report: Report) -> dict[str, Chart]:
    """The charts that the report has data for, by the id of their element."""
    found: dict[str, Chart] = {}
    if any(r.test is not None or r.validation is not None for r in report.rounds):
        found["plot-scores"] = charts.scores(report)
    if any(r.losses for r in report.rounds):
        found["plot-losses"] = charts.losses(report.rounds)
    if report.gains is not None and report.gains.clients:
        found["plot-gains"] = charts.gains(report.gains, report.measure)
    if report.latent is not None and report.latent.points:
        found["plot-latent"] = latent_charts.latent(report.latent, report.group)
    if report.alignment:
        found["plot-alignment"] = latent_charts.alignment(report.alignment, report.group)
    return found


def facts(report: Report) -> dict[str, str]:
    """The figures a reader looks for first."""
    found: dict[str, str] = {}
    if clients := max(len(report.verdict), len(report.traffic), len(score_rows(report))):
        found["clients"] = f"{clients:,}"
    if trained := sum(r.stage == "update" for r in report.rounds):
        found["rounds"] = f"{trained:,}"
    tested = [r.test for r in report.rounds if r.test is not None]
    if tested and report.kind == "run":  # for a federation, the verdict has the scores
        unit = "\u00a0%" if report.measure.percent else ""
        found[f"mean {report.measure.name} at the end"] = score(tested[-1], report.measure) + unit
    if report.traffic:
        sent = "left all clients together" if report.kind == "run" else "sent in the final fit"
        found[sent] = size(sum(own.total for own in report.traffic))
    return found


def score_rows(report: Report) -> dict[str, list[float | None]]:
    """Scores of each client, in the order of the methods."""
    methods = report.candidates.values()
    clients = distinct(client for scores in methods for client in scores)
    return {client: [scores.get(client) for scores in methods] for client in clients}


def mean_scores(report: Report) -> list[float | None]:
    """Mean score of each method over the clients that have one."""
    methods = report.candidates.values()
    return [sum(scores.values()) / len(scores) if scores else None for scores in methods]


def best(values: Sequence[float | None], measure: Measure) -> float | None:
    """The best score; None if there is nothing to compare."""
    known = [v for v in values if v is not None and v == v]
    choose = max if measure.higher_is_better else min
    return choose(known, default=None) if len(values) > 1 else None


def by_client_and_class(
    cells: Iterable[AlignmentCell],
) -> dict[tuple[str, str], dict[SplitName, AlignmentCell]]:
    """Distances of each client and class, by split."""
    found: dict[tuple[str, str], dict[SplitName, AlignmentCell]] = {}
    for cell in cells:
        found.setdefault((cell.client, cell.label), {})[cell.split] = cell
    return found


def sent_by_all(traffic: Iterable[ClientTraffic]) -> list[SentTensor]:
    """Each tensor over all clients that sent it, in the order of the names."""
    times: dict[tuple[str, tuple[int, ...], int], int] = {}
    for tensor in (tensor for own in traffic for tensor in own.tensors):
        key = (tensor.name, tuple(tensor.shape), tensor.bytes)
        times[key] = times.get(key, 0) + tensor.times
    order = {name: i for i, name in enumerate(in_order(name for name, *_ in times))}
    return [SentTensor(*key, times[key]) for key in sorted(times, key=lambda k: order[k[0]])]


def dotted(nested: Mapping[str, Any], before: str = "") -> dict[str, str]:
    """Settings as text, by their dotted names."""
    flat: dict[str, str] = {}
    for name, value in nested.items():
        if isinstance(value, Mapping) and value:
            flat |= dotted(value, f"{before}{name}.")
        else:
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            flat[f"{before}{name}"] = text
    return flat
