"""The story of a fitted federation, for the report page."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flic.report.page.story import (
    AlignmentCell,
    Anchor,
    ClientTraffic,
    Gain,
    Gains,
    Latent,
    LatentPoint,
    Measure,
    Round,
    SentTensor,
    Story,
    VerdictRow,
)
from flic.silos.candidates import CANDIDATES
from flic.silos.fitted import FittedFederation
from flic.silos.folder import load
from flic.silos.metrics import HIGHER_IS_BETTER
from flic.silos.verdict import ClientVerdict, Verdict

NEVER = ("rows and labels", "the fitted encoders, with usual values of the columns")


def story_of(folder: Path) -> Story:
    """The story of a folder that flic fit made."""
    fitted = load(folder)
    verdict, portrait = fitted.verdict, fitted.portrait
    return Story(
        title=f"A federation of {len(fitted.clients)} clients",
        kind="federation",
        measure=Measure(
            verdict.metric.replace("_", " "),
            percent="accuracy" in verdict.metric,
            higher_is_better=HIGHER_IS_BETTER[verdict.metric],
        ),
        verdict=[_row(line) for line in verdict.clients],
        rounds=[_round(record) for record in fitted.records],
        gains=Gains("the best model of the client alone", [_gain(c) for c in verdict.clients]),
        latent=_latent(portrait["latent"]) if "latent" in portrait else None,
        alignment=[AlignmentCell(**cell) for cell in portrait.get("alignment", ())],
        traffic=_traffic(fitted),
        never_left=[*NEVER, *portrait.get("never_left", ())],
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
    )


def _gain(line: ClientVerdict) -> Gain:
    own = line.difference
    return Gain(line.client, own.mean, own.low, own.high)


def _round(record: Mapping[str, Any]) -> Round:
    return Round(
        number=record["round"],
        losses=record.get("losses", {}),
        bytes_sent=record.get("bytes_sent", 0),
    )


def _latent(raw: Mapping[str, Any]) -> Latent:
    points = [LatentPoint(**point) for point in raw["points"]]
    return Latent(points, [Anchor(**anchor) for anchor in raw["anchors"]], raw["caption"])


def _traffic(fitted: FittedFederation) -> list[ClientTraffic]:
    """What left each client; one that joined later sent nothing."""
    sent = {raw["client"]: raw["tensors"] for raw in fitted.portrait.get("traffic", ())}
    return [
        ClientTraffic(name, [SentTensor(**tensor) for tensor in sent.get(name, ())])
        for name in fitted.clients
    ]


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
