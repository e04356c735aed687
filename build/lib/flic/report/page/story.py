"""Story: everything the report page shows, as plain values, wherever they came from.

`from_run` and `silos/story.py` fill it, `html.render` shows it. A part that is empty is left out
of the page; differences are positive where the federation is better.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Word = Literal["helps", "no difference shown", "harms"]
Split = Literal["train", "test"]
Group = Literal["class", "range"]
"""What rows have in common that are shown alike: their class, or a range of responses."""


@dataclass(frozen=True)
class Measure:
    """What a score is, whether it is a share that is shown in per cent, and which way is up."""

    name: str = "accuracy"
    percent: bool = True
    higher_is_better: bool = True


@dataclass(frozen=True)
class VerdictRow:
    """What the federation does for one client; low and high bound the difference at 95 %."""

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
    """What a client gains, with a 95 % interval where one is known."""

    client: str
    gain: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Gains:
    """Gains of clients, and what they are measured against, e.g. "the client alone"."""

    against: str
    clients: Sequence[Gain]


@dataclass(frozen=True)
class LatentPoint:
    """One embedded row in the plane of the view."""

    x: float
    y: float
    label: str
    client: str
    split: Split


@dataclass(frozen=True)
class Anchor:
    """Mean of a class's anchor in the plane of the view."""

    x: float
    y: float
    label: str


@dataclass(frozen=True)
class Latent:
    """A view of the latent space; `caption` says how its plane was found."""

    points: Sequence[LatentPoint]
    anchors: Sequence[Anchor] = ()
    caption: str = ""


@dataclass(frozen=True)
class AlignmentCell:
    """W₂² between a client's embedded rows of a class and the anchor.

    The 95 % interval needs more rows of the class than latent dimensions; None where there are
    fewer.
    """

    client: str
    label: str
    w2sq: float
    low: float | None
    high: float | None
    split: Split


@dataclass(frozen=True)
class SentTensor:
    """A tensor that leaves a client: bytes of one sending, and how often it was sent."""

    name: str
    shape: Sequence[int]
    bytes: int
    times: int

    @property
    def total(self) -> int:
        """Bytes over all sendings."""
        return self.bytes * self.times


@dataclass(frozen=True)
class ClientTraffic:
    """What left one client; no tensors where it sent nothing."""

    client: str
    tensors: Sequence[SentTensor]

    @property
    def total(self) -> int:
        """Bytes that left the client."""
        return sum(tensor.total for tensor in self.tensors)


@dataclass(frozen=True)
class Story:
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
    traffic_notes: Sequence[str] = ()  # what is counted, and what follows from it
    never_left: Sequence[str] = ()
    candidates: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # method → client
    settings: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    notes: Sequence[str] = ()
