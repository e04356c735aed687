"""FLIC on real responses: its variants, its control, and what it refuses."""

import math

import pytest
import torch
from small_federation import ON_RESPONSES, RESPONSES

from flic.errors import ConfigError

VARIANTS = {
    "equidistant": {"anchors": {"layout": "equidistant"}},
    "variance": {"anchors": {"variance": 4.0}},
    "no-alignment": {"alignment": {"weight": 0.0}},
    "no-calibration": {"alignment": {"calibration_weight": 0.0}},
    "realign": {"alignment": {"realign_epochs": 1}},
    "last": {"training": {"shared_schedule": "last", "local": "3 epochs"}},
    "fedavg-ft": {"training": {"personalisation": "fedavg-ft"}},
}


def weights(ran):
    return torch.cat([v.flatten() for state in ran.states.values() for v in state.values()])


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
def test_variant_is_finite_and_makes_a_difference(run, variant):
    ran, plain = run("flic-hl" + ON_RESPONSES, **variant), run("flic-hl" + ON_RESPONSES)
    terms = [value for record in ran.records for value in record.get("losses", {}).values()]
    assert terms
    assert all(map(math.isfinite, terms))
    assert all(value.isfinite().all() for value in ran.server.shared.values())
    assert weights(ran).shape != weights(plain).shape or not weights(ran).equal(weights(plain))


def test_both_ends_are_learnt(run, visit):
    initial = visit("flic-class" + ON_RESPONSES).server.shared
    assert initial.keys() == {"anchor.0.mean", "anchor.1.mean"}
    shared = run("flic-class" + ON_RESPONSES).server.shared
    assert all(not torch.equal(shared[name], initial[name]) for name in initial)


def test_holders_and_participants_are_the_same(run):
    participants = run("flic-hl" + ON_RESPONSES, anchors={"average_over": "participants"})
    run("flic-hl" + ON_RESPONSES).assert_equals(participants)


def test_prediction_by_the_nearest_anchor_is_another_reading_of_the_same_run(run):
    by_head = run("flic-class" + ON_RESPONSES)
    by_anchor = run("flic-class" + ON_RESPONSES, model={"predict_by": "nearest-anchor"})
    assert weights(by_head).equal(weights(by_anchor))
    assert [r["scores"] for r in by_head.records] != [r["scores"] for r in by_anchor.records]


@pytest.mark.parametrize("predict_by", ["head", "nearest-anchor"])
def test_predictions_are_in_the_units_of_the_responses(visit, predict_by):
    """Embedded at an anchor's mean, with a head that reads the line, a row has its response."""
    place = visit("flic-class" + ON_RESPONSES, model={"predict_by": predict_by})
    low, high = (place.server.shared[f"anchor.{end}.mean"] for end in (0, 1))
    private = {name: torch.zeros_like(value) for name, value in place.stack.private.items()}
    private["embedding.1.bias"][:] = 0.25 * high + 0.75 * low
    private["head.bias"][:] = 0.25
    stack = type(place.stack)(place.stack.embedding, private)
    splits = [client.test for client in place.data.clients]
    for own in place.method.predict(place.server, stack, place.data, splits):
        expected = RESPONSES.low + 0.25 * RESPONSES.width
        torch.testing.assert_close(own, torch.full_like(own, expected), atol=1e-4, rtol=0)


def test_the_control_swaps_the_ends_at_some_clients(visit):
    place = visit("permuted-anchors" + ON_RESPONSES)
    found = place.method.anchor_of(place.data)
    assert {tuple(order) for order in found.tolist()} == {(0, 1), (1, 0)}
    idle = {"local": "0 epochs", "shared": "0 epochs"}
    place = visit("permuted-anchors" + ON_RESPONSES, training=idle)
    for update in place.do("update").updates:
        for name in ("anchor.0.mean", "anchor.1.mean"):
            assert torch.equal(update.entries[name].value, place.server.shared[name])


REFUSED = {
    "anchors.covariance": {"anchors": {"covariance": "full"}},
    "alignment.target": {"alignment": {"target": "samples"}},
}


@pytest.mark.parametrize("key", REFUSED)
@pytest.mark.parametrize("method", ["flic-class", "permuted-anchors"])
def test_settings_for_classes_alone_are_refused(make_engine, method, key):
    with pytest.raises(ConfigError, match=f"{key} is .* on data with real responses; expected"):
        make_engine(method + ON_RESPONSES, **REFUSED[key])


def test_methods_without_anchors_do_not_mind(make_engine):
    for key in REFUSED:
        make_engine("local" + ON_RESPONSES, **REFUSED[key])
