"""Comparison of methods: mean, spread over seeds, and differences paired client by client."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from flic.runs.metrics import Outcome, Scores

# Gains smaller than this count as neither gain nor loss.
TIE = 1e-9


@dataclass(frozen=True)
class ComparedRun:
    """One run of a comparison."""

    method: str
    seed: int
    outcome: Outcome
    seconds: float
    bytes_sent: int


@dataclass(frozen=True)
class Row:
    """One method over all seeds, in fractions."""

    method: str
    seeds: int
    mean: float
    spread: float | None  # standard deviation over seeds of the mean over clients
    worst: float  # worst client, mean over seeds
    worst_decile: float  # worst tenth of the clients, mean over seeds
    chosen: float | None  # mean at the round that validation chooses
    gain: float | None  # paired difference to the reference
    gain_interval: float | None  # half width of its 95 % interval over seeds × clients
    gaining: int
    losing: int
    tied: int
    seconds: float
    bytes_sent: float

    def summary(self) -> dict[str, Any]:
        """The figures by name."""
        return dict(vars(self))


def compare(
    runs: Sequence[ComparedRun], *, reference: str, clients_repeat: bool = False
) -> list[Row]:
    """A row per method, in order of appearance.

    With `clients_repeat`, a client has the same rows in every seed. Its gains over seeds are then
    averaged first, since they are not independent.
    """
    by_method: dict[str, list[ComparedRun]] = {}
    for run in runs:
        by_method.setdefault(run.method, []).append(run)
    base = {run.seed: run.outcome.last for run in by_method.get(reference, [])}
    gains = {
        method: _gains(own, base, clients_repeat) if method != reference else []
        for method, own in by_method.items()
    }
    return [_row(method, own, gains[method]) for method, own in by_method.items()]


def _row(method: str, runs: Sequence[ComparedRun], gains: Sequence[float]) -> Row:
    means = [run.outcome.last.mean for run in runs]
    chosen = [run.outcome.chosen.mean for run in runs if run.outcome.chosen is not None]
    return Row(
        method=method,
        seeds=len(runs),
        mean=fmean(means),
        spread=stdev(means) if len(means) > 1 else None,
        worst=fmean(run.outcome.last.worst for run in runs),
        worst_decile=fmean(run.outcome.last.worst_decile for run in runs),
        chosen=fmean(chosen) if chosen else None,
        gain=fmean(gains) if gains else None,
        gain_interval=_half_width(gains) if len(gains) > 1 else None,
        gaining=sum(gain > TIE for gain in gains),
        losing=sum(gain < -TIE for gain in gains),
        tied=sum(abs(gain) <= TIE for gain in gains),
        seconds=fmean(run.seconds for run in runs),
        bytes_sent=fmean(run.bytes_sent for run in runs),
    )


def _gains(
    runs: Sequence[ComparedRun], base: Mapping[int, Scores], clients_repeat: bool
) -> list[float]:
    """Difference of every client to the reference, in every seed that both have run."""
    gains: dict[str, list[float]] = {}
    for run in runs:
        if run.seed in base:
            for name, score in run.outcome.last.clients.items():
                gains.setdefault(name, []).append(score - base[run.seed].clients[name])
    if clients_repeat:
        return [fmean(own) for own in gains.values()]
    return [gain for own in gains.values() for gain in own]


def _half_width(gains: Sequence[float]) -> float:
    return 1.96 * stdev(gains) / math.sqrt(len(gains))
