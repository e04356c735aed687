"""Every variant of FLIC runs, stays finite, and is not the variant beside it."""

import math

import pytest
import torch
from small_federation import TINY

import flic
from flic.config import resolve
from flic.networks.sharing import RULES
from flic.settings import merge

VARIANTS = {
    "diagonal": {"anchors": {"covariance": "diagonal"}},
    "full": {"anchors": {"covariance": "full"}},
    "equidistant": {"anchors": {"layout": "equidistant"}},
    "samples": {"alignment": {"target": "samples"}},
    "samples-full": {"alignment": {"target": "samples"}, "anchors": {"covariance": "full"}},
    "participants": {"anchors": {"average_over": "participants"}},
    "barycentre": {"anchors": {"covariance": "full", "average_covariance": "barycentre"}},
    "variance": {"anchors": {"variance": 4.0}},
    "no-alignment": {"alignment": {"weight": 0.0}},
    "no-calibration": {"alignment": {"calibration_weight": 0.0}},
    "realign": {"alignment": {"realign_epochs": 1}},
    "last": {"training": {"shared_schedule": "last", "local": "3 epochs"}},
    "shared-later": {"training": {"shared_from_round": 1}},
    "steps": {"training": {"local": "3 steps", "shared": "1 steps"}},
    "decay": {"training": {"model_weight_decay": 0.1}},
    "sgd": {"training": {"optimiser": {"kind": "sgd", "learning_rate": 0.01}}},
}


def difference(a, b):
    """Largest difference of two runs in what clients keep."""
    return max(
        (a.states[name][n] - b.states[name][n]).abs().max().item()
        for name in a.states
        for n in a.states[name]
    )


def assert_finite(ran):
    terms = [value for record in ran.records for value in record.get("losses", {}).values()]
    assert terms
    assert all(math.isfinite(value) for value in terms)
    assert all(value.isfinite().all() for value in ran.server.shared.values())


@pytest.mark.slow
@pytest.mark.parametrize("method", ["flic-class", "flic-hl"])
@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
def test_variant_is_finite_and_makes_a_difference(run, method, variant):
    ran = run(method, **variant)
    assert_finite(ran)
    assert difference(ran, run(method)) > 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("method", ["flic-class", "flic-hl"])
@pytest.mark.parametrize("rule", sorted(RULES))
def test_personalisation_rules_are_finite_and_differ(run, method, rule):
    ran = run(method, training={"personalisation": rule})
    assert_finite(ran)
    for other in sorted(set(RULES) - {rule}):
        gap = difference_of_common(ran, run(method, training={"personalisation": other}))
        # Without a hidden layer FedRep shares nothing of θ: it is training alone.
        same = method == "flic-class" and {rule, other} == {"alone", "fedrep"}
        assert (gap == 0) == same


def difference_of_common(a, b):
    """As `difference`, in φ: every rule keeps it private."""
    return max(
        (a.states[name][n] - b.states[name][n]).abs().max().item()
        for name in a.states
        for n in a.states[name]
        if n.startswith("embedding.")
    )


@pytest.mark.slow
@pytest.mark.parametrize("covariance", ["identity", "diagonal", "full"])
def test_prediction_by_the_nearest_anchor_is_another_reading_of_the_same_run(run, covariance):
    changes = {"anchors": {"covariance": covariance, "scale": 3.0}}
    by_head = run("flic-class", **changes)
    by_anchor = run("flic-class", **changes, model={"predict_by": "nearest-anchor"})
    assert difference(by_head, by_anchor) == 0
    assert [r["scores"] for r in by_head.records] != [r["scores"] for r in by_anchor.records]


@pytest.mark.parametrize("covariance", ["diagonal", "full"])
def test_covariances_are_learnt(run, covariance):
    shared = run("flic-hl", anchors={"covariance": covariance}).server.shared
    start = torch.ones(8) if covariance == "diagonal" else torch.eye(8)
    assert not torch.equal(shared["anchor.1.factor"], start)
    assert torch.equal(shared["anchor.7.factor"], start)  # nobody holds class 7


@pytest.mark.parametrize("method", ["flic-class", "flic-class-authors"])
def test_anchors_are_learnt_either_way(run, visit, method):
    initial = visit(method).server.shared
    shared = run(method).server.shared
    assert not torch.equal(shared["anchor.1.mean"], initial["anchor.1.mean"])


def test_an_anchor_that_nobody_holds_stays(run, visit):
    initial = visit("flic-hl").server.shared
    moved = {n for n, v in run("flic-hl").server.shared.items() if not torch.equal(v, initial[n])}
    assert "anchor.7.mean" not in moved
    assert {"anchor.1.mean", "hidden.weight"} <= moved


def test_shared_phase_starts_late(run, visit):
    initial = visit("flic-hl").server.shared
    late = run("flic-hl", rounds=1, training={"shared_from_round": 1}).server.shared
    assert all(torch.equal(late[n], initial[n]) for n in initial)


@pytest.mark.parametrize("local", ["3 epochs", "3 steps"])
def test_a_shared_phase_at_the_end_leaves_the_local_work_before_it(visit, local):
    shared = local.replace("3", "1")
    changes = {"shared_schedule": "last", "local": local, "shared": shared}
    place = visit("flic-hl", training=changes)
    trained = place.do("update").stack.private["embedding.0.bias"]
    assert not torch.equal(trained, place.stack.private["embedding.0.bias"])


@pytest.mark.parametrize("preset", ["paper", "authors", "recommended"])
def test_presets_run(federation, preset):
    quick = {"training": {"rounds": 2, "participation": 0.6, "local": "2 epochs"}}
    data = {"problem": "noisy-features", "num_clients": 5}
    variant = "-authors" if preset == "authors" else ""
    raw = {"preset": preset, "data": data, "method": f"flic-hl{variant}"}
    outcome = flic.simulate(resolve(merge(merge(TINY, quick), raw)), federation())
    assert 0 < outcome.last.mean <= 1
    assert outcome.last.round == 3
