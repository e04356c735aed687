"""The verdict: alone against the federation, per client, with an interval and a sentence.

Differences are paired: both sides were chosen, trained and tested on the same rows of each
split. Splits overlap, so the variance of their mean is corrected (Nadeau and Bengio 2003).
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from typing import Any, Literal

import numpy as np
from pydantic import TypeAdapter

from flic.errors import ConfigError
from flic.notation import quoted
from flic.silos.candidates import CANDIDATES
from flic.silos.choice import Choice
from flic.silos.evaluator import Trial
from flic.silos.measures import HIGHER_IS_BETTER
from flic.silos.results import KINDS, Means, Results, nanmean

Word = Literal["helps", "no difference shown", "harms"]

_AS_PERCENT = ("accuracy", "balanced_accuracy")
_OVERALL = ("all_clients", "kept_against_alone", "kept_against_best")


@dataclass(frozen=True)
class Difference:
    """A mean over splits with its 95 % interval; positive is better, whatever the metric."""

    mean: float
    low: float
    high: float

    def within(self, most: float) -> "Difference":
        """The difference with its interval limited to ± `most`."""
        return replace(self, low=max(self.low, -most), high=min(self.high, most))

    @property
    def word(self) -> Word:
        """The conclusion from the interval."""
        if self.low > 0:
            return "helps"
        return "harms" if self.high < 0 else "no difference shown"


@dataclass(frozen=True)
class ClientVerdict:
    """One client's line of the verdict."""

    client: str
    rows: int
    alone: str  # the candidate most often chosen among those that stay alone
    alone_score: float
    federation: str  # likewise among the federated ones
    federation_score: float
    difference: Difference
    kept: str  # the model that the client keeps
    kept_score: float  # mean held-out score of its choice on each split
    kept_against_alone: Difference
    splits: int
    reason: str
    sentence: str


_LINES = TypeAdapter(tuple[ClientVerdict, ...])


@dataclass(frozen=True)
class Verdict:
    """The verdict on all clients."""

    metric: str
    splits: int
    clients: tuple[ClientVerdict, ...]
    all_clients: Difference  # mean over clients of federation against alone
    kept_against_alone: Difference  # mean over clients of what is kept against alone
    best: str  # best candidate for all clients together, in hindsight
    kept_against_best: Difference  # mean over clients of what is kept against that one
    results: Results  # of all splits

    @property
    def candidates(self) -> Means:
        """Mean figures of every candidate."""
        return self.results.means

    def with_more(self, other: "Verdict") -> "Verdict":
        """The verdict with the lines of other clients."""
        lines, results = (*self.clients, *other.clients), self.results.with_more(other.results)
        return replace(self, clients=lines, results=results)

    def dump(self) -> dict[str, Any]:
        """The verdict as plain values, without the results."""
        plain = {name: getattr(self, name) for name in (field.name for field in fields(self))}
        lines = [asdict(line) for line in self.clients]
        overall = {name: asdict(plain[name]) for name in _OVERALL}
        del plain["results"]
        return {**plain, **overall, "clients": lines}

    @classmethod
    def load(cls, raw: Mapping[str, Any], results: Results) -> "Verdict":
        """The verdict from plain values and its results; None stands for an unknown value."""
        scores = ("alone_score", "federation_score", "kept_score")
        lines = [
            {
                **line,
                **{name: _number(line[name]) for name in scores},
                "difference": _difference(line["difference"]),
                "kept_against_alone": _difference(line["kept_against_alone"]),
            }
            for line in raw["clients"]
        ]
        overall = {n: _difference(raw[n]) for n in _OVERALL}
        found = {**raw, **overall, "clients": _LINES.validate_python(lines), "results": results}
        if strange := {line.kept for line in found["clients"]} - {*CANDIDATES}:
            raise ValueError(f"the verdict keeps {quoted([*strange])}, which is no candidate")
        if found["metric"] not in HIGHER_IS_BETTER:
            raise ValueError(f"the verdict is on {found['metric']!r}, which is no metric")
        figures = [own for clients in results.means.values() for own in clients.values()]
        if not all(found["metric"] in own for own in figures):
            raise ValueError(f"results lack {found['metric']!r}, which the verdict is on")
        return cls(**found)

    def __getitem__(self, client: str) -> ClientVerdict:
        found = {line.client: line for line in self.clients}
        if client not in found:
            raise ConfigError(
                f"the verdict has no client {client!r}; expected one of "
                f"{', '.join(map(repr, found))}. Correct the name."
            )
        return found[client]

    def __str__(self) -> str:
        return "\n".join(line.sentence for line in self.clients)


def _difference(raw: Mapping[str, float | None]) -> Difference:
    unknown = {"low": -np.inf, "high": np.inf}
    known = {n: unknown.get(n, np.nan) if v is None else float(v) for n, v in raw.items()}
    return Difference(**known)


def _number(value: float | None) -> float:
    return float("nan") if value is None else value


def verdict(
    results: Results,
    final: Trial,
    *,
    metric: str,
    rows: Mapping[str, int],
) -> Verdict:
    """The verdict from all splits, and each client's choice on all rows."""
    chosen = {
        kind: {client: results.chosen_values(kind, client, metric) for client in rows}
        for kind in KINDS
    }
    best = _best(results, metric, list(rows))
    chosen["best"] = {c: results.values(best, c, metric) for c in rows}
    share = results.mean_test_share

    def against(other: str, kind: str, clients: Sequence[str]) -> Difference:
        sign = 1.0 if HIGHER_IS_BETTER[metric] else -1.0
        gains = [chosen[kind][c] - chosen[other][c] for c in clients]
        tested = share * sum(rows[c] for c in clients)
        least = 0.5 / max(1.0, tested) if metric in _AS_PERCENT else 0.0
        found = difference(sign * np.mean(gains, axis=0), share, least=least)
        return found.within(1.0) if metric in _AS_PERCENT else found

    lines = tuple(
        _line(client, count, results, final, chosen, metric, partial(against, "alone"))
        for client, count in rows.items()
    )
    return Verdict(
        metric=metric,
        splits=results.num_splits,
        clients=lines,
        all_clients=against("alone", "federated", list(rows)),
        kept_against_alone=against("alone", "kept", list(rows)),
        best=best,
        kept_against_best=against("best", "kept", list(rows)),
        results=results,
    )


def difference(gains: np.ndarray, test_share: float, *, least: float = 0.0) -> Difference:
    """Mean gain over splits; its interval accounts for splits that share training rows.

    A share of rows changes in steps, and equal gains on few splits are luck. So their deviation is
    at least `least`, half a step.
    """
    from scipy.stats import t as student

    gains = gains[~np.isnan(gains)]
    if len(gains) < 2:
        return Difference(float(gains.mean()) if len(gains) else np.nan, -np.inf, np.inf)
    mean, count = float(gains.mean()), len(gains)
    variance = max(float(gains.var(ddof=1)), least**2) * (1 / count + test_share / (1 - test_share))
    half = float(student.ppf(0.975, count - 1) * np.sqrt(variance))
    return Difference(mean, mean - half, mean + half)


def _best(results: Results, metric: str, clients: Sequence[str]) -> str:
    """The candidate with the best mean held-out figure, of those that serve all clients."""
    sign = 1.0 if HIGHER_IS_BETTER[metric] else -1.0
    means = {
        name: nanmean(np.array([own[client][metric] for client in clients]))
        for name, own in results.means.items()
        if {*clients} <= {*own}
    }
    return max(means, key=lambda name: np.nan_to_num(sign * means[name], nan=-np.inf))


def _line(
    client: str,
    rows: int,
    results: Results,
    final: Trial,
    chosen: Mapping[str, Mapping[str, np.ndarray]],
    metric: str,
    against_alone: Callable[[str, Sequence[str]], Difference],
) -> ClientVerdict:
    federation = _usual(results, "federated", client)
    gain = against_alone("federated", [client]) if federation else Difference(0.0, 0.0, 0.0)
    kept = final.choices["kept"][client]
    own = {kind: nanmean(chosen[kind][client]) for kind in chosen}
    return ClientVerdict(
        client=client,
        rows=rows,
        alone=_usual(results, "alone", client),
        alone_score=own["alone"],
        federation=federation,
        federation_score=own["federated"],
        difference=gain,
        kept=kept.candidate,
        kept_score=own["kept"],
        kept_against_alone=against_alone("kept", [client]),
        splits=results.num_splits,
        reason=reason(kept, metric),
        sentence=sentence(client, gain, kept, metric, served=_served(results, client)),
    )


def _served(results: Results, client: str) -> bool | None:
    """Return whether a federated candidate serves the client, or None if none was compared."""
    federated = [own for name, own in results.served().items() if CANDIDATES[name].federated]
    return any(client in own for own in federated) if federated else None


def _usual(results: Results, kind: str, client: str) -> str:
    """The candidate that the client chose most often; the first of them in a tie."""
    names = Counter(results.chosen(kind, client))
    return names.most_common(1)[0][0] if names else ""


def reason(choice: Choice, metric: str) -> str:
    """The reason for keeping a model, in a sentence or two."""
    title, weight = CANDIDATES[choice.candidate].title, f"{choice.own_weight:.0%}"
    if choice.runner_up is None:
        return "no other candidate can serve this client."
    margin = _margin(choice.lead, CANDIDATES[choice.runner_up].title, metric)
    if choice.candidate != choice.usual:
        return (
            f"{CANDIDATES[choice.usual].title} did best over all clients. But this client's own "
            f"rows count for up to {weight}, and with them {title} comes first, {margin}."
        )
    found = f"in cross-validation over all clients, {title} came first, {margin}."
    if weight == "0%":
        return f"{found} Clients differ too little for this client's own rows to change that."
    return f"{found} This client's own rows count for up to {weight}."


def _margin(lead: float, other: str, metric: str) -> str:
    """The lead over the runner-up, or a tie if it would be shown as zero."""
    if lead < 0.0005:
        return f"tied with {other}"
    by = f"{100 * lead:.1f} points" if metric in _AS_PERCENT else f"{lead:.3f}"
    return f"{by} ahead of {other}"


def sentence(
    client: str, gain: Difference, kept: Choice, metric: str, *, served: bool | None
) -> str:
    """The verdict in plain words; `served` as `_served` finds it."""
    if served is None:
        return f"No federated candidate was compared for {client}."
    if not served:
        return f"No federated candidate can serve {client}. Stay alone."
    title, stays = CANDIDATES[kept.candidate].title, not CANDIDATES[kept.candidate].federated
    after = "Stay alone." if stays else f"Keep {title}."
    if np.isnan(gain.mean):
        name = metric.replace("_", " ")
        return f"Not known for {client}: {name} is not defined on its held-out rows. {after}"
    by = with_interval(metric, gain)
    if gain.word == "no difference shown":
        return f"No difference shown for {client}: {by}. {after}"
    if (gain.word == "helps") == stays:  # splits and all rows together do not agree
        after = f"But the choice on all its rows is {title}: keep that."
    return f"Joining {gain.word} {client}: {by}. {after}"


def with_interval(metric: str, found: Difference) -> str:
    """A difference in a sentence, with its interval."""
    unit = " points" if metric in _AS_PERCENT else ""
    low, high = signed(metric, found.low), signed(metric, found.high)
    return f"{signed(metric, found.mean)}{unit} (95 % interval {low} to {high})"


def signed(metric: str, value: float) -> str:
    """A difference in a table: percentage points, or the metric's own unit; never -0."""
    scale, digits = (100, 1) if metric in _AS_PERCENT else (1, 3)
    return f"{round(scale * value, digits) + 0.0:+.{digits}f}"


def as_text(metric: str, value: float) -> str:
    """A score as people read it."""
    return f"{100 * value:.1f} %" if metric in _AS_PERCENT else f"{value:.3f}"
