"""From a run's records to accuracies: at the last round, and at the round validation chooses.

Paper: sec:participation shows that training longer can hurt; both figures are reported for every
method, and the same rule chooses for all.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

Record = Mapping[str, Any]


@dataclass(frozen=True)
class Accuracy:
    """Test accuracy of every client at one round."""

    round: int
    clients: Mapping[str, float]
    rows: Mapping[str, int]

    @property
    def mean(self) -> float:
        """Mean over clients."""
        return fmean(self.clients.values())

    @property
    def worst(self) -> float:
        """Accuracy of the worst client."""
        return min(self.clients.values())

    @property
    def weighted(self) -> float:
        """Mean over all test rows, as the authors' program reports it."""
        right = sum(self.clients[name] * n for name, n in self.rows.items())
        return right / sum(self.rows.values())

    def summary(self) -> dict[str, float | int]:
        """The figures by name."""
        return {
            "round": self.round,
            "mean": self.mean,
            "worst": self.worst,
            "weighted": self.weighted,
        }


@dataclass(frozen=True)
class Outcome:
    """What a run came to."""

    last: Accuracy
    chosen: Accuracy | None  # None where no client has validation rows

    @classmethod
    def of(cls, records: Sequence[Record]) -> "Outcome":
        """Outcome of the records of a whole run."""
        measured = [record for record in records if "scores" in record]
        chosen = _chosen(measured)
        return cls(accuracy_at(measured[-1]), None if chosen is None else accuracy_at(chosen))

    def summary(self) -> dict[str, Any]:
        """The figures by name."""
        chosen = None if self.chosen is None else self.chosen.summary()
        return {"last_round": self.last.summary(), "chosen_round": chosen}


def accuracy_at(record: Record) -> Accuracy:
    """Test accuracy of every client in one measured record."""
    scores = {name: s for name, s in record["scores"].items() if s["test_rows"]}
    return Accuracy(
        record["round"],
        {name: s["test_right"] / s["test_rows"] for name, s in scores.items()},
        {name: s["test_rows"] for name, s in scores.items()},
    )


def validation_accuracy(record: Record) -> float | None:
    """Mean over clients of the validation accuracy; None where there are no such rows."""
    shares = [
        s["validation_right"] / s["validation_rows"]
        for s in record["scores"].values()
        if s["validation_rows"]
    ]
    return fmean(shares) if shares else None


def _chosen(measured: Sequence[Record]) -> Record | None:
    """The measured round with the best mean validation accuracy; the earliest of equals."""
    scored = [(validation_accuracy(record), record) for record in measured]
    known = [(value, record) for value, record in scored if value is not None]
    return max(known, key=lambda pair: pair[0])[1] if known else None
