"""Choice of the model a client keeps, from the federation's experience and its own.

A client alone chooses badly: its rows are few, and the best of several cross-validated scores is
often luck. So each candidate's advantage d_i over a reference is shrunk towards the federation's
mean advantage: the noisier the client's own figure, the more (a random-effects model):

  e_i = D + τ² / (τ² + v_i) · (d_i − D)

D is the mean of d_i over the clients, v_i the variance of d_i estimated from the client's rows,
and τ² the variance of the true advantage between clients.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

RowScores = Mapping[str, Mapping[str, np.ndarray]]
"""candidate → client → score of each row, out of fold."""


@dataclass(frozen=True)
class CandidatePrior:
    """Mean and spread of one candidate's advantage over the reference, across the federation."""

    mean: float  # D
    spread: float  # τ²


@dataclass(frozen=True)
class Estimate:
    """Expected advantage of one candidate for a client."""

    advantage: float  # e_i
    own_weight: float  # of the client's own rows in it, 0 … 1
    usual: float  # D, the expectation by the federation alone


@dataclass(frozen=True)
class Choice:
    """A client's choice among some candidates."""

    candidate: str
    runner_up: str | None
    lead: float  # expected advantage over the runner-up
    usual: str  # the choice by the federation's experience alone
    own_weight: float  # of the client's own rows in the comparison, 0 … 1


def experience(scores: RowScores, reference: str) -> dict[str, CandidatePrior]:
    """The federation's experience with each candidate, over the clients it serves."""
    found = {}
    for candidate, by_client in scores.items():
        own = [_advantage(scores, candidate, reference, client) for client in by_client]
        means, noise = np.array([m for m, _ in own]), np.array([v for _, v in own])
        spread = means.var(ddof=1) - noise.mean() if len(own) > 1 else 0.0
        found[candidate] = CandidatePrior(float(means.mean()), float(max(0.0, spread)))
    return found


def _advantage(
    scores: RowScores, candidate: str, reference: str, client: str
) -> tuple[float, float]:
    """Mean advantage on a client's rows, and the variance of that mean."""
    difference = scores[candidate][client] - scores[reference][client]
    # Two extra rows, one for each side: equal scores on few rows prove little.
    noise = (difference.var() * len(difference) + 0.5) / (len(difference) + 2)
    return float(difference.mean()), float(noise / len(difference))


def estimates(
    scores: RowScores, known: Mapping[str, CandidatePrior], reference: str, client: str
) -> dict[str, Estimate]:
    """Expected advantage of each candidate for a client."""
    found = {}
    for candidate, by_client in scores.items():
        if client not in by_client:
            continue
        mean, noise = _advantage(scores, candidate, reference, client)
        before = known[candidate]
        weight = before.spread / (before.spread + noise)
        advantage = before.mean + weight * (mean - before.mean)
        found[candidate] = Estimate(advantage, weight, before.mean)
    return found


def choose(expected: Mapping[str, Estimate], among: Sequence[str]) -> Choice | None:
    """The candidate with the best expectation; ties go to the first of `among`."""
    able = [name for name in among if name in expected]
    if not able:
        return None
    best, *rest = sorted(able, key=lambda n: expected[n].advantage, reverse=True)
    usual = max(able, key=lambda n: expected[n].usual)
    second = rest[0] if rest else None
    lead = expected[best].advantage - expected[second].advantage if second else 0.0
    weight = max(expected[n].own_weight for n in (best, second or best, usual))
    return Choice(best, second, lead, usual, weight)
