"""What came of asking silos, and the record that is kept of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean

from flic.engine.checkpoint import Commit
from flic.engine.engine import Stage
from flic.engine.journal import Record
from flic.flower.pooling import KEY_BYTES
from flic.flower.settings import NUMBER_BYTES
from flic.methods.protocol import Update

Figures = Mapping[str, Mapping[str, float]]
"""Silo → name → number."""


@dataclass(frozen=True)
class Answers:
    """What came of asking the silos of one round."""

    updates: Sequence[Update] = ()
    losses: Figures = field(default_factory=dict)
    absent: Mapping[str, str] = field(default_factory=dict)  # silo → why
    refused: Mapping[str, str] = field(default_factory=dict)  # silo → why
    keys: Mapping[str, Sequence[str]] = field(default_factory=dict)  # of a silo's features

    def record(self, stage: Stage, round: int, figures: Figures, seconds: float) -> Record:
        """What is kept of the round, ready for JSON."""
        sent = {update.client: self._bytes_of(update) for update in self.updates}
        record: Record = {
            "stage": stage,
            "round": round,
            "active": sorted(sent),
            "absent": dict(self.absent),
            "refused": dict(self.refused),
            "losses": _mean_terms(self.losses),
            "bytes": sent,
            "bytes_sent": sum(sent.values()),
            "seconds": seconds,
        }
        return record | ({"scores": dict(figures)} if figures else {})

    def _bytes_of(self, update: Update) -> int:
        numbers = len(update.entries) + len(self.losses.get(update.client, {}))
        keys = len(self.keys.get(update.client, ()))
        return update.num_bytes + NUMBER_BYTES * numbers + KEY_BYTES * keys


def _mean_terms(losses: Figures) -> dict[str, float]:
    """Mean of each loss term over the silos that have it."""
    terms = sorted({term for own in losses.values() for term in own})
    return {t: fmean(own[t] for _, own in sorted(losses.items()) if t in own) for t in terms}


def finished_rounds(folder: Path) -> list[Record]:
    """Records of the rounds on the disk, oldest first, read without touching anything."""
    records: list[Record] = []
    for path in sorted((folder / "checkpoints").glob("[0-9]*.json")):
        try:
            records.append(Commit.parse(path.read_bytes()).record)
        except (ValueError, KeyError, TypeError, OSError):
            break
    return records
