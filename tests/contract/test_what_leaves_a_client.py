"""Nothing private leaves a client, and the server holds nothing private."""

import pytest
import torch
from small_federation import DIMS, NETWORKS_ON_BOTH, ON_RESPONSES

from flic.methods import METHODS
from flic.methods.protocol import VisitContext, check_update
from flic.networks.sharing import RULES

FLIC = ["flic-class", "flic-hl", "permuted-anchors"]
PRIVATE_EMBEDDING = [name for name in METHODS if METHODS[name].between_machines] + ["local"]
STAGES = ["prepare", "update", "realign", "adapt"]


def is_part_of(parameter: str, name: str) -> bool:
    return name == parameter or name.endswith("." + parameter)


@pytest.mark.parametrize("method", PRIVATE_EMBEDDING)
def test_the_server_never_holds_an_embedding(run, method):
    shared = run(method).server.shared
    assert not [name for name in shared if "embedding." in name]


@pytest.mark.parametrize("method", [*FLIC, "hetfedrep", "within-space"])
def test_the_server_never_holds_a_head_under_fedrep(run, method):
    shared = run(method, training={"personalisation": "fedrep"}).server.shared
    assert not [name for name in shared if "head." in name]


@pytest.mark.parametrize("method", ["local", "flic-class", "within-space", "fedhenn"])
def test_private_and_shared_names_are_apart(run, method):
    ran = run(method)
    private = {name for state in ran.states.values() for name in state}
    assert private
    assert not [(p, s) for p in private for s in ran.server.shared if is_part_of(p, s)]


@pytest.mark.parametrize("method", NETWORKS_ON_BOTH)
def test_updates_hold_only_what_the_server_holds(visit, method):
    place = visit(method)
    updates = place.do("update").updates
    assert [update.client for update in updates] == list(place.data.names)
    for update in updates:
        check_update(place.server, update)
        for name, entry in update.entries.items():
            assert entry.value.shape == place.server.shared[name].shape
            assert entry.value.dtype == place.server.shared[name].dtype


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("method", NETWORKS_ON_BOTH)
def test_no_number_of_a_client_s_rows_is_in_its_update(visit, method, stage):
    place = visit(method, alignment={"realign_epochs": 1}, anchors={"average_over": "participants"})
    updates = {update.client: update for update in place.do(stage).updates}
    for client in place.data.clients:
        rows = torch.cat([s.x.flatten() for s in (client.train, client.validation, client.test)])
        for entry in updates[client.name].entries.values() if client.name in updates else ():
            assert not torch.isin(entry.value, rows).any()


@pytest.mark.parametrize("method", NETWORKS_ON_BOTH)
def test_a_method_says_which_of_its_tensors_rest_on_a_part_of_the_rows(visit, method):
    place = visit(method)
    context = VisitContext(place.server, place.stack, place.data, ())
    for i, update in enumerate(place.do("update").updates):
        behind = place.method.rows_behind(context, i)
        assert {*behind} == {name for name in update.entries if name.startswith("anchor.")}
        client = place.data.clients[i]
        counts = [*client.class_counts.values()]
        if ON_RESPONSES in method:
            counts = [len(client.train)] * 2
        assert sorted(behind.values()) == sorted(counts if behind else [])


@pytest.mark.parametrize("client_weight", ["equal", "rows"])
@pytest.mark.parametrize("method", FLIC)
def test_of_a_regression_s_anchors_the_two_ends_leave(visit, method, client_weight):
    place = visit(method + ON_RESPONSES, training={"client_weight": client_weight})
    for update, client in zip(place.do("update").updates, place.data.clients, strict=True):
        sent = {n: e.weight for n, e in update.entries.items() if n.startswith("anchor.")}
        weight = float(len(client.train)) if client_weight == "rows" else 1.0
        assert sent == {"anchor.0.mean": weight, "anchor.1.mean": weight}
        rows = torch.cat([client.train.y, place.data.task.encode(client.train.y)])
        assert not any(torch.isin(e.value, rows).any() for e in update.entries.values())


@pytest.mark.parametrize("covariance", ["identity", "diagonal", "full"])
@pytest.mark.parametrize("method", FLIC)
def test_no_dimension_of_an_update_tells_a_client_s_size(visit, method, covariance):
    place = visit(method, anchors={"covariance": covariance})
    sizes = {len(client.train) for client in place.data.clients} | set(DIMS)
    for update in place.do("update").updates:
        shapes = {name: set(entry.value.shape) for name, entry in update.entries.items()}
        assert shapes
        assert not [name for name, shape in shapes.items() if shape & sizes]


@pytest.mark.parametrize("method", ["local", "adapt"])
def test_local_training_and_the_last_round_send_nothing(visit, method):
    stage = "adapt" if method == "adapt" else "update"
    place = visit("flic-hl" if method == "adapt" else method)
    assert not any(update.entries for update in place.do(stage).updates)


@pytest.mark.parametrize("method", ["flic-hl", "flic-class"])
@pytest.mark.parametrize("rule", sorted(RULES))
def test_what_each_personalisation_rule_shares(run, method, rule):
    shared = run(method, training={"personalisation": rule}).server.shared
    theta = {name for name in shared if not name.startswith("anchor.")}
    hidden = {"hidden.weight", "hidden.bias"} if method == "flic-hl" else set()
    head = {"head.weight", "head.bias"}
    expected = {
        "alone": set(),
        "fedrep": hidden,
        "fedavg-ft": hidden | head,
        "l2gd": hidden | head,
        "offsets": hidden | {"head.weight"},
    }
    assert theta == expected[rule]
