"""Journal: stores the clients' private states and the finished steps of a run.

A run is a sequence of steps: preparation, one per round, the last round. A step first puts the
new states of its clients, stack by stack, and then commits them together with the server's state
and a record of what was measured. States that are put but not committed are lost.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from pydantic import BaseModel, NonNegativeInt

from flic.methods.protocol import ServerState
from flic.shapes import Named

Record = dict[str, Any]
"""Measurements of a step: plain numbers and names, ready for JSON."""


class StoredRecord(BaseModel, strict=True, extra="allow"):
    """The fields of a record that readers of a file rely on; a runner may add others."""

    round: int
    stage: str
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    losses: dict[str, float] = {}
    bytes_sent: NonNegativeInt = 0
    active: list[str] = []
    scores: dict[str, dict[str, float]] = {}


def stored(raw: Any) -> Record:
    """A record from a file, after a check of its form.

    Raises:
        ValueError: a field is not what a run writes.
    """
    StoredRecord.model_validate(raw)
    return raw


class Journal(Protocol):
    """Store of one run."""

    @property
    def records(self) -> Sequence[Record]:
        """Records of the committed steps, oldest first."""
        ...

    @property
    def server(self) -> ServerState | None:
        """Server state of the last committed step; None before the first."""
        ...

    def states(self, names: Sequence[str]) -> list[Named | None]:
        """Latest private state of each client, pending ones included; None before the first."""
        ...

    def put(self, states: Mapping[str, Named]) -> None:
        """Keep new states of some clients for the next commit."""
        ...

    def commit(self, server: ServerState, record: Record) -> None:
        """Finish the step."""
        ...


class MemoryJournal:
    """A journal in memory, for small federations and tests."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.server: ServerState | None = None
        self._states: dict[str, Named] = {}
        self._pending: dict[str, Named] = {}

    def states(self, names: Sequence[str]) -> list[Named | None]:
        """Latest private state of each client, pending ones included; None before the first."""
        return [self._pending.get(name, self._states.get(name)) for name in names]

    def put(self, states: Mapping[str, Named]) -> None:
        """Keep new states of some clients for the next commit."""
        self._pending |= states

    def commit(self, server: ServerState, record: Record) -> None:
        """Finish the step."""
        self._states |= self._pending
        self._pending = {}
        self.server = server
        self.records.append(record)
