"""The choice of a model: the federation's experience, and the client's own where it can tell."""

import numpy as np
import pytest

from flic.silos.choice import CandidatePrior, Estimate, choose, estimates, experience

LONG = 4000


def scores(**by_candidate):
    """candidate → client → rows, from lists of arrays; the first candidate is the reference."""
    return {
        name: {f"c{i}": np.asarray(rows, float) for i, rows in enumerate(own)}
        for name, own in by_candidate.items()
    }


def expected(found, client, reference="alone"):
    return estimates(found, experience(found, reference), reference, client)


def test_without_real_differences_the_federation_decides_for_all():
    """Clients differ by less than their noise: τ² = 0, and everyone's estimate is the mean."""
    noise = np.tile([-2.0, 2.0], 10)
    joint = [noise + shift for shift in (0.2, 0.3, 0.4, -0.1)]
    found = scores(alone=[np.zeros(20)] * 4, joint=joint)
    known = experience(found, "alone")
    assert known["joint"].spread == 0
    mean = np.mean([rows.mean() for rows in found["joint"].values()])
    for client in found["joint"]:
        found_here = expected(found, client)["joint"]
        assert (found_here.advantage, found_here.own_weight) == (pytest.approx(mean), 0)


def test_a_client_that_can_tell_follows_its_own_rows():
    rng = np.random.default_rng(0)
    shifts = [0.2, 0.2, 0.2, -0.5]
    joint = [rng.normal(shift, 0.3, LONG) for shift in shifts]
    found = scores(alone=[np.zeros(LONG)] * 4, joint=joint)
    estimate = expected(found, "c3")["joint"]
    assert estimate.own_weight > 0.95
    assert estimate.advantage == pytest.approx(-0.5, abs=0.05)
    chosen = {c: choose(expected(found, c), ["alone", "joint"]).candidate for c in found["joint"]}
    assert chosen == {"c0": "joint", "c1": "joint", "c2": "joint", "c3": "alone"}


def test_few_rows_have_less_of_a_say_than_many():
    rng = np.random.default_rng(0)
    joint = [rng.normal(s, 0.3, n) for s, n in [(0.4, LONG), (-0.4, LONG), (-0.4, 8)]]
    found = scores(alone=[np.zeros(len(rows)) for rows in joint], joint=joint)
    weights = [expected(found, f"c{i}")["joint"].own_weight for i in range(3)]
    assert weights[2] < weights[1]
    mean = experience(found, "alone")["joint"].mean
    low = joint[2].mean()
    assert low < expected(found, "c2")["joint"].advantage < mean


def test_the_reference_has_no_advantage_over_itself():
    found = scores(alone=[[0.0, 1.0, 1.0]] * 2, joint=[[1.0, 1.0, 1.0]] * 2)
    assert expected(found, "c0")["alone"] == Estimate(0.0, 0.0, 0.0)


def test_equal_scores_on_few_rows_prove_little():
    """Differences that are all 0 have a variance all the same."""
    found = scores(alone=[np.ones(5)] * 3, joint=[np.ones(5)] * 3)
    known = {"alone": CandidatePrior(0, 0), "joint": CandidatePrior(0.1, 0.01)}
    estimate = estimates(found, known, "alone", "c0")["joint"]
    assert 0 < estimate.own_weight < 1
    assert estimate.advantage > 0


def test_a_candidate_that_serves_some_is_judged_by_those():
    found = scores(alone=[np.zeros(10)] * 3, joint=[np.ones(10)] * 3)
    del found["joint"]["c2"]
    assert experience(found, "alone")["joint"].mean == 1
    assert "joint" not in expected(found, "c2")
    assert choose(expected(found, "c2"), ["joint"]) is None
    only = choose(expected(found, "c2"), ["alone", "joint"])
    assert (only.candidate, only.runner_up, only.lead) == ("alone", None, 0)


@pytest.mark.parametrize("among", [["a", "b", "c"], ["b", "c", "a"]])
def test_ties_go_to_the_first(among):
    equal = dict.fromkeys("cab", Estimate(0.5, 0.2, 0.1))
    choice = choose(equal, among)
    assert [choice.candidate, choice.runner_up] == among[:2]
    assert (choice.lead, choice.usual, choice.own_weight) == (0, among[0], 0.2)


def test_a_choice_knows_what_the_federation_alone_would_choose():
    """The weight is that of the rows that turned it round, not the winner's own."""
    expected = {"alone": Estimate(0.0, 0.0, 0.0), "joint": Estimate(-0.1, 0.7, 0.2)}
    choice = choose(expected, ["alone", "joint"])
    assert (choice.candidate, choice.usual, choice.own_weight) == ("alone", "joint", 0.7)


@pytest.mark.slow
def test_choosing_together_beats_choosing_alone():
    """Clients with few rows, whose true advantages lie close together."""
    rng = np.random.default_rng(1)
    gain = []
    for _ in range(60):
        truth = {m: rng.normal(s, 0.03, 12) for m, s in [("alone", 0), ("x", 0.06), ("y", -0.06)]}
        found = scores(**{m: [rng.normal(t, 0.5, 25) for t in own] for m, own in truth.items()})
        for i in range(12):
            together = choose(expected(found, f"c{i}"), [*found]).candidate
            own = max(found, key=lambda m, i=i, found=found: found[m][f"c{i}"].mean())
            gain.append(truth[together][i] - truth[own][i])
    assert np.mean(gain) > 4 * np.std(gain) / np.sqrt(len(gain))
