"""The warm-up before round 1: once for most, cut into averages where whole networks are."""

import pytest

from flic.methods.protocol import ServerState, VisitContext


def prepared(run, method, epochs):
    records = run(method, rounds=1, pretraining={"epochs": epochs}).records
    return [record["round"] for record in records if record["stage"] == "prepare"]


@pytest.mark.parametrize("method", ["flic-class", "local", "fedhenn", "within-space"])
def test_most_methods_prepare_once(run, method):
    assert prepared(run, method, epochs=3) == [0]


@pytest.mark.slow
def test_fedavg_averages_networks_during_the_warm_up(run):
    assert prepared(run, "fedavg", epochs=23) == list(range(-9, 1))
    assert prepared(run, "fedavg", epochs=3) == [-2, -1, 0]


@pytest.mark.parametrize("epochs", [10, 23, 7])
def test_the_parts_of_a_warm_up_have_its_epochs(make_engine, monkeypatch, epochs):
    method = make_engine("fedavg", pretraining={"epochs": epochs}).method
    asked = []
    monkeypatch.setattr(method, "warm_up", lambda place, epochs: asked.append(epochs))
    for step in method.steps_before():
        server = ServerState(step.round, method.init_server().shared)
        step.stages[0].client_half(VisitContext(server, None, None, ()))
    assert sum(asked) == epochs
    assert max(asked) - min(asked) <= 1
