"""The report of a fitted federation, for the report page."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flic.data.task import Regression
from flic.engine.traffic import ClientTraffic
from flic.method_settings import Scatter
from flic.notation import counted
from flic.page.contents import Gain, Gains, Measure, Report, Round, VerdictRow
from flic.silos.candidates import CANDIDATES, FLIC, LINKED
from flic.silos.fitted import FittedFederation
from flic.silos.folder import load
from flic.silos.measures import HIGHER_IS_BETTER
from flic.silos.verdict import ClientVerdict, Verdict

COUNTED = (
    "What the final fit would send, for the models that are kept and for those that newcomers may "
    "join; comparing candidates on splits is not counted. The fit was simulated on one machine: "
    "nothing was really sent."
)
SPREAD: Mapping[Scatter, str] = {
    "off": "",
    "diagonal": ", and their variances",
    "directions": ", their variances, and how they vary along what tells the classes apart",
    "projected": ", their variances, and covariances of random features of them",
    "full": ", and their variances and covariances",
}
"""Contents of the sums of linked columns beside the means."""


def report_of_fit(folder: Path) -> Report:
    """The report of a folder that flic fit made."""
    fitted = load(folder)
    verdict, report_data = fitted.verdict, fitted.report_data
    return Report(
        title=f"A federation of {counted(len(fitted.clients), 'client')}",
        kind="federation",
        measure=Measure(
            verdict.metric.replace("_", " "),
            percent="accuracy" in verdict.metric,
            higher_is_better=HIGHER_IS_BETTER[verdict.metric],
        ),
        verdict=[_row(line) for line in verdict.clients],
        group="range" if isinstance(fitted.task, Regression) else "class",
        rounds=_rounds(fitted),
        rounds_note=_rounds_note(fitted),
        gains=Gains("the best model of the client alone", [_gain(c) for c in verdict.clients]),
        latent=report_data.latent,
        alignment=report_data.alignment,
        traffic=_traffic(fitted),
        traffic_notes=_traffic_notes(fitted),
        never_left=_never_left(fitted),
        candidates=_candidates(verdict),
        settings=_settings(fitted),
        versions=fitted.environment,
        notes=[*fitted.notices, *(f"{line.client}: {line.reason}" for line in verdict.clients)],
    )


def _row(line: ClientVerdict) -> VerdictRow:
    return VerdictRow(
        client=line.client,
        rows=line.rows,
        alone_model=line.alone,
        alone=line.alone_score,
        federation_model=line.federation or "–",
        federation=line.federation_score,
        difference=line.difference.mean,
        low=line.difference.low,
        high=line.difference.high,
        word=line.difference.word,
        sentence=line.sentence,
        kept=CANDIDATES[line.kept].title,
        kept_score=line.kept_score,
    )


def _gain(line: ClientVerdict) -> Gain:
    own = line.difference
    return Gain(line.client, own.mean, own.low, own.high)


def _rounds(fitted: FittedFederation) -> list[Round]:
    """Losses of the final fit, which holds out no rows; scores come from the first split."""
    scores = {own.round: own.score for own in fitted.report_data.scores}
    return [
        Round(
            number=record["round"],
            test=scores.get(record["round"]),
            losses=record.get("losses", {}),
            bytes_sent=record.get("bytes_sent", 0),
            stage=record["stage"],
        )
        for record in fitted.records
    ]


def _rounds_note(fitted: FittedFederation) -> str:
    losses = "Losses are those of flic's final fit, which trains on all rows."
    if not fitted.report_data.scores:
        return losses
    return (
        "Scores are for the held-out rows of the first split; flic was trained on its other rows. "
        f"{losses}"
    )


def _traffic(fitted: FittedFederation) -> list[ClientTraffic]:
    """Tensors that left each client; one that joined later sent nothing."""
    sent = {own.client: own for own in fitted.report_data.traffic}
    return [sent.get(name, ClientTraffic(name, ())) for name in fitted.clients]


def _senders(fitted: FittedFederation) -> set[str]:
    """Candidates for which anything was sent."""
    return {
        tensor.name.partition(": ")[0]
        for client in fitted.report_data.traffic
        for tensor in client.tensors
    }


def _traffic_notes(fitted: FittedFederation) -> list[str]:
    """Notes on the contents of the traffic, and on what it discloses."""
    told, senders = [], _senders(fitted)
    if LINKED.name in senders:
        is_regression = isinstance(fitted.task, Regression)
        means = "means and that of the response" if is_regression else "class means"
        scatter = fitted.settings.method.linked.scatter
        # The relation to a response is a product of two columns: all of these are sent.
        spread = SPREAD["full" if is_regression and scatter == "directions" else scatter]
        told.append(f"The sums and counts of linked columns reveal their {means}{spread}.")
    if senders - {FLIC.name}:
        told.append("Names of shared columns and of their levels are known to all who share them.")
    return [COUNTED, *([" ".join(told)] if told else [])]


def _never_left(fitted: FittedFederation) -> list[str]:
    """Data that stayed at the clients; less where sums of columns were sent."""
    senders, own = _senders(fitted), fitted.report_data.never_left
    if LINKED.name in senders:
        kept = [
            "single rows and their labels",
            "of columns that are not linked, usual values and all else that the fitted encoders "
            "hold",
        ]
    else:
        kept = ["rows and labels", "the fitted encoders, with usual values of the columns"]
    return [*kept, *(f"of flic, {what}" if len(senders) > 1 else what for what in own)]


def _candidates(verdict: Verdict) -> dict[str, dict[str, float]]:
    return {
        name: {client: figures[verdict.metric] for client, figures in own.items()}
        for name, own in verdict.candidates.items()
    }


def _settings(fitted: FittedFederation) -> dict[str, Any]:
    columns: Sequence[tuple[str, list[str]]] = [
        (name, [f"{column.name} ({column.kind})" for column in client.columns])
        for name, client in fitted.clients.items()
    ]
    return {
        **fitted.settings.model_dump(mode="json"),
        "network": fitted.settings.method.model_dump(mode="json"),
        "columns": dict(columns),
        "labels": list(fitted.labels),
    }
