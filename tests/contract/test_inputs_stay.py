"""No stage writes into what it was given."""

import copy

import pytest
import torch
from small_federation import NETWORKS_ON_BOTH, ON_RESPONSES, assert_same

STAGES = ["prepare", "update", "realign", "adapt"]
VARIANTS = {
    "plain": {},
    "joint": {"anchors": {"covariance": "full"}},
    "tuned": {"training": {"personalisation": "fedavg-ft"}},
    "idle": {"training": {"local": "0 epochs", "shared": "0 epochs"}, "pretraining": {"epochs": 0}},
}


def snapshot(place):
    rows = {"x": place.data.train.x, "y": place.data.train.y, "classes": place.data.classes}
    own = {f"{c.name} {n}": t for c in place.data.clients for n, t in vars(c.train).items()}
    return copy.deepcopy([dict(place.server.shared), dict(place.stack.private), rows, own])


CASES = [
    pytest.param(method, changes, id=f"{method}-{name}")
    for method in NETWORKS_ON_BOTH
    for name, changes in VARIANTS.items()
    if not (name == "joint" and method.endswith(ON_RESPONSES))  # which regression refuses
]


@pytest.mark.parametrize(("method", "variant"), CASES)
def test_no_stage_changes_its_inputs(visit, method, variant):
    place = visit(method, alignment={"realign_epochs": 1}, **variant)
    before = snapshot(place)
    updates = [update for stage in STAGES for update in place.do(stage).updates]
    place.method.aggregate(place.server, updates)
    splits = [client.test for client in place.data.clients]
    place.method.predict(place.server, place.stack, place.data, splits)
    for old, new in zip(before, snapshot(place), strict=True):
        assert_same(old, new)


@pytest.mark.parametrize("names", [["client-1"], ["client-1", "client-3"]], ids=len)
@pytest.mark.parametrize("method", NETWORKS_ON_BOTH)
def test_an_answer_shares_no_memory_with_the_server(visit, method, names):
    """The authors' aliasing bug: one client's training moved what another one started from."""
    place = visit(method, names, training={"local": "0 epochs", "shared": "0 epochs"})
    before = snapshot(place)
    done = place.do("update")
    for update in done.updates:
        for entry in update.entries.values():
            entry.value.fill_(torch.nan)
    for old, new in zip(before, snapshot(place), strict=True):
        assert_same(old, new)
