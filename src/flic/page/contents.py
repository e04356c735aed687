"""Report: everything the report page shows, as plain values.

`from_run` and `page/from_fit.py` fill it, `html.render` shows it. A part that is empty is left out
of the page; differences are positive where the federation is better.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from flic.engine.traffic import ClientTraffic
from flic.runs.latent import AlignmentCell, Latent

Word = Literal["helps", "no difference shown", "harms"]
Group = Literal["class", "range"]
"""Common property of rows that are shown alike: their class, or a range of responses."""


@dataclass(frozen=True)
class Measure:
    """Name of a score, whether it is a share shown in per cent, and which direction is better."""

    name: str = "accuracy"
    percent: bool = True
    higher_is_better: bool = True


@dataclass(frozen=True)
class VerdictRow:
    """Effect of the federation on one client; low and high bound the difference at 95 %."""

    client: str
    rows: int
    alone_model: str
    alone: float
    federation_model: str
    federation: float
    difference: float
    low: float
    high: float
    word: Word
    sentence: str
    kept: str
    kept_score: float


@dataclass(frozen=True)
class Round:
    """One round: mean scores over clients where they were measured, loss terms, bytes sent.

    The preparation and the last adaptation are shown as rounds, and do not count as such.
    """

    number: int
    test: float | None = None
    validation: float | None = None
    losses: Mapping[str, float] = field(default_factory=dict)
    bytes_sent: int = 0
    stage: str = "update"


@dataclass(frozen=True)
class Gain:
    """Gain of a client, with a 95 % interval where one is known."""

    client: str
    gain: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Gains:
    """Gains of clients, and the reference for them, e.g. "the client alone"."""

    against: str
    clients: Sequence[Gain]


@dataclass(frozen=True)
class Report:
    """Everything the page shows, and nothing else."""

    title: str
    kind: Literal["run", "federation"]
    measure: Measure = Measure()
    verdict: Sequence[VerdictRow] = ()
    group: Group = "class"
    rounds: Sequence[Round] = ()
    rounds_note: str = ""  # which rows and which training the rounds are of
    gains: Gains | None = None
    latent: Latent | None = None
    alignment: Sequence[AlignmentCell] = ()
    traffic: Sequence[ClientTraffic] = ()
    traffic_notes: Sequence[str] = ()  # contents of the traffic, and conclusions from it
    never_left: Sequence[str] = ()
    candidates: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # method → client
    settings: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    notes: Sequence[str] = ()
