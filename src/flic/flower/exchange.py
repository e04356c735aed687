"""Messages between coordinator and silos: a request, a reply, and all replies of a round."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from flic.flower.federation_settings import FederationSettings
from flic.methods.protocol import ServerState, Update
from flic.shapes import Named


@dataclass(frozen=True)
class Request:
    """A request of the coordinator to a silo; `server.round` is the round."""

    run: str
    stage: str
    server: ServerState
    settings: FederationSettings
    refused: str | None = None  # why the silo's last update was not counted
    holders: tuple[int, ...] = ()  # silos that have each of the silo's features, linked columns
    statement: str = ""  # of a secure sum (flic.flower.secure.statements)
    totals: str = ""  # tags of the pooled sums (flic.flower.secure.tags)


@dataclass(frozen=True)
class Reply:
    """A silo's answer: the round, tensors with weights, and numbers by name."""

    round: int
    update: Update
    numbers: Mapping[str, float] = field(default_factory=dict)
    keys: tuple[str, ...] = ()  # of the silo's features, once, for linked columns
    statement: str = ""  # of a secure sum


@dataclass(frozen=True)
class SumPhase:
    """One phase of a secure sum: what each silo is told, and tensors that an answer may hold."""

    has_shared: bool  # whether the shared part goes with it
    statements: Mapping[str, str]  # by silo
    expected: Named


@dataclass(frozen=True)
class Asked:
    """Replies by silo as they came, and why others gave none that can be read."""

    replies: dict[str, Reply] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
