"""Scores of a run: at the last round, and at the round that validation chooses.

A client's score is its accuracy or, if labels are real responses, its R². Paper:
sec:participation shows that training longer can hurt. So both figures are reported for every
method, and the same rule chooses for all.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, Literal

Record = Mapping[str, Any]

ScoreName = Literal["accuracy", "R²"]

KEYS: Mapping[ScoreName, str] = {"accuracy": "accuracy", "R²": "r2"}
"""ScoreName → its name in files."""


@dataclass(frozen=True)
class Scores:
    """Test score of every client at one round."""

    round: int
    clients: Mapping[str, float]
    weights: Mapping[str, float]  # test rows; of R², the spread Σ (y − ȳ)² of the test responses
    measure: ScoreName = "accuracy"
    errors: Mapping[str, float] = field(default_factory=dict)  # of R²: mean RMSE and MAE of clients

    @property
    def mean(self) -> float:
        """Mean over clients."""
        return fmean(self.clients.values())

    @property
    def worst(self) -> float:
        """Score of the worst client."""
        return min(self.clients.values())

    @property
    def worst_decile(self) -> float:
        """Mean over the worst tenth of the clients, at least one."""
        ordered = sorted(self.clients.values())
        return fmean(ordered[: max(1, len(ordered) // 10)])

    @property
    def weighted(self) -> float:
        """Score of all test rows together; for accuracy, as the authors' program reports it."""
        total = sum(self.clients[name] * weight for name, weight in self.weights.items())
        return total / sum(self.weights.values())

    def summary(self) -> dict[str, float | int]:
        """The figures by name."""
        return {
            "round": self.round,
            "mean": self.mean,
            "worst": self.worst,
            "weighted": self.weighted,
            **self.errors,
        }


@dataclass(frozen=True)
class Outcome:
    """Outcome of a run: its scores."""

    last: Scores
    chosen: Scores | None  # None where no client has validation rows

    @classmethod
    def of(cls, records: Sequence[Record]) -> "Outcome":
        """Outcome of the records of a whole run."""
        measured = [record for record in records if "scores" in record]
        chosen = _chosen(measured)
        return cls(scores_at(measured[-1]), None if chosen is None else scores_at(chosen))

    def summary(self) -> dict[str, Any]:
        """The figures by name."""
        chosen = None if self.chosen is None else self.chosen.summary()
        return {"last_round": self.last.summary(), "chosen_round": chosen}


def scores_at(record: Record) -> Scores:
    """Test score of every client in one measured record."""
    scores = {name: s for name, s in record["scores"].items() if s["test_rows"]}
    if _measure(record) == "R²":
        return _r2(record["round"], scores)
    return Scores(
        record["round"],
        {name: s["test_right"] / s["test_rows"] for name, s in scores.items()},
        {name: s["test_rows"] for name, s in scores.items()},
    )


def _measure(record: Record) -> ScoreName:
    some = next(iter(record["scores"].values()))
    return "accuracy" if "test_right" in some else "R²"


def _r2(round: int, scores: Mapping[str, Mapping[str, float]]) -> Scores:
    """R² = 1 − Σ (ŷ − y)² / Σ (y − ȳ)² of every client whose test responses differ."""
    spread = {name: s["test_spread"] for name, s in scores.items() if s["test_spread"] > 0}
    return Scores(
        round,
        {name: 1 - scores[name]["test_squared_error"] / total for name, total in spread.items()},
        spread,
        "R²",
        {
            "rmse": fmean(
                (s["test_squared_error"] / s["test_rows"]) ** 0.5 for s in scores.values()
            ),
            "mae": fmean(s["test_absolute_error"] / s["test_rows"] for s in scores.values()),
        },
    )


def validation_score(record: Record) -> float | None:
    """Validation accuracy, mean over clients, or R² of all validation rows together.

    A client's few validation rows may hardly differ, and its own R² may be any number: with their
    mean, one client could choose the round. None if there are no such rows.
    """
    scores = [s for s in record["scores"].values() if s["validation_rows"]]
    if _measure(record) == "accuracy":
        shares = [s["validation_right"] / s["validation_rows"] for s in scores]
        return fmean(shares) if shares else None
    spread = _total(scores, "validation_spread")
    return 1 - _total(scores, "validation_squared_error") / spread if spread else None


def _total(scores: Iterable[Mapping[str, float]], name: str) -> float:
    return sum(s[name] for s in scores)


def round_scores(record: Record) -> dict[str, float | None]:
    """Mean test score and validation score of a measured record, under the names of files."""
    test = scores_at(record)
    key = KEYS[test.measure]
    return {f"test_{key}": test.mean, f"validation_{key}": validation_score(record)}


def _chosen(measured: Sequence[Record]) -> Record | None:
    """The measured round with the best validation score; the earliest of equals."""
    scored = [(validation_score(record), record) for record in measured]
    known = [(value, record) for value, record in scored if value is not None]
    return max(known, key=lambda pair: pair[0])[1] if known else None
