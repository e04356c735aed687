"""The server's averages of updates, on numbers that can be checked by hand.

Paper: algo:FLIC-FEDREP, steps 19-20; points 2-4 of the departures.
"""

import math

import pytest
import torch
from small_federation import CLASSES, NETWORKS_ON_BOTH

from flic.errors import ConfigError, IncompatibleUpdate
from flic.methods.protocol import Entry, Update, check_update

MEAN, FACTOR = "anchor.0.mean", "anchor.0.factor"


def send(name, *values, weights=None):
    weights = weights or [1.0] * len(values)
    pairs = enumerate(zip(values, weights, strict=True))
    return [Update(f"client-{i}", {name: Entry(torch.as_tensor(v), w)}) for i, (v, w) in pairs]


def full(value):
    return torch.full((8,), float(value))


@pytest.mark.parametrize("method", NETWORKS_ON_BOTH)
def test_a_name_that_nobody_sends_stays(visit, method):
    place = visit(method)
    server = place.method.aggregate(place.server, [Update("client-0", {})])
    assert server.shared.keys() == place.server.shared.keys()
    assert all(server.shared[n] is value for n, value in place.server.shared.items())


def test_a_name_is_averaged_over_its_holders_only(visit):
    place = visit("flic-class")
    updates = send(MEAN, full(2), full(8)) + send("anchor.1.mean", full(5))
    shared = place.method.aggregate(place.server, updates).shared
    assert torch.equal(shared[MEAN], full(5))
    assert torch.equal(shared["anchor.1.mean"], full(5))
    assert torch.equal(shared["anchor.2.mean"], place.server.shared["anchor.2.mean"])


@pytest.mark.parametrize("normalise", ["active", "literal"])
def test_weights_by_rows(visit, normalise):
    """(3·2 + 1·8)/4 over the active; (b/|A|) Σ ω_i v_i with ω_i = n_i/N, literally."""
    place = visit("hetfedrep", training={"client_weight": "rows", "normalise": normalise})
    values = [torch.full((24,), 2.0), torch.full((24,), 8.0)]
    updates = send("hidden.bias", *values, weights=[3.0, 1.0])
    found = place.method.aggregate(place.server, updates).shared["hidden.bias"]
    literal = 5 / 2 * 14 / place.method.population.total_rows
    expected = 14 / 4 if normalise == "active" else literal
    torch.testing.assert_close(found, torch.full((24,), expected))


def test_equal_weights_are_a_mean_either_way(visit):
    values = [torch.full((24,), 2.0), torch.full((24,), 8.0)]
    for normalise in ("active", "literal"):
        place = visit("hetfedrep", training={"normalise": normalise})
        shared = place.method.aggregate(place.server, send("hidden.bias", *values)).shared
        torch.testing.assert_close(shared["hidden.bias"], torch.full((24,), 5.0))


def test_holders_of_an_anchor_are_averaged_even_where_the_rest_is_literal(visit):
    place = visit("flic-hl", training={"client_weight": "rows", "normalise": "literal"})
    updates = send(MEAN, full(2), full(8), weights=[3.0, 1.0])
    shared = place.method.aggregate(place.server, updates).shared
    torch.testing.assert_close(shared[MEAN], full(3.5))


def test_participants_divide_literally_too(visit):
    changes = {"client_weight": "rows", "normalise": "literal"}
    place = visit("flic-hl", training=changes, anchors={"average_over": "participants"})
    updates = send(MEAN, full(2), full(8), weights=[3.0, 1.0])
    found = place.method.aggregate(place.server, updates).shared[MEAN]
    torch.testing.assert_close(found, full(5 / 2 * 14 / place.method.population.total_rows))


@pytest.mark.parametrize(
    ("average", "values", "expected"),
    [
        ("mean", [1, 2, 9], 4.0),
        ("auto", [1, 2, 3, 10], 4.0),
        ("auto", [-1e6, 1, 2, 6, 1e6], 3.0),
        ("trimmed", [1, 2, 1e6], 2.0),
        ("trimmed", [-1e6, 1, 5, 6], 3.0),
        ("trimmed", [4, 6], 5.0),
        ("trimmed", [1e6, 7, 3, 4, 5, 6, 1e6, -1e6], 5.5),
    ],
    ids=str,
)
@pytest.mark.parametrize("name", [MEAN, "hidden.bias"])
def test_extremes_are_left_out_number_by_number(visit, name, average, values, expected):
    place = visit("flic-hl", training={"average": average})
    known = place.server.shared[name]
    updates = send(name, *(torch.full_like(known, float(value)) for value in values))
    found = place.method.aggregate(place.server, updates).shared[name]
    torch.testing.assert_close(found, torch.full_like(known, expected))


def test_what_is_left_counts_by_its_weight(visit):
    place = visit("flic-class", training={"average": "trimmed"})
    updates = send(MEAN, full(0), full(2), full(8), full(9), weights=[9.0, 3.0, 1.0, 9.0])
    torch.testing.assert_close(
        place.method.aggregate(place.server, updates).shared[MEAN], full(14 / 4)
    )


def test_every_client_may_be_an_extreme_in_one_number_and_not_in_another(visit):
    place = visit("flic-class", training={"average": "trimmed"})
    values = torch.tensor([[0.0, 5.0, 9.0], [1.0, 2.0, 3.0], [4.0, 9.0, 1.0]])
    updates = send(MEAN, *(full(0).index_copy(0, torch.arange(3), v) for v in values))
    found = place.method.aggregate(place.server, updates).shared[MEAN]
    assert found[:3].tolist() == [1.0, 5.0, 3.0]


@pytest.mark.parametrize(
    "changes",
    [
        {"training": {"average": "trimmed", "normalise": "literal"}},
        {
            "training": {"average": "trimmed"},
            "anchors": {"covariance": "full", "average_covariance": "barycentre"},
        },
    ],
    ids=["literal", "barycentre"],
)
def test_what_cannot_be_trimmed_is_refused(visit, changes):
    with pytest.raises((ConfigError, ValueError), match="trimmed"):
        visit("flic-hl", **changes)


@pytest.mark.parametrize("method", ["flic-class", "flic-hl"])
@pytest.mark.parametrize("client_weight", ["equal", "rows"])
def test_holders_send_their_own_classes_by_their_rows(visit, method, client_weight):
    place = visit(method, training={"client_weight": client_weight})
    for update, client in zip(place.do("update").updates, place.data.clients, strict=True):
        sent = {n: e.weight for n, e in update.entries.items() if n.startswith("anchor.")}
        counts = client.class_counts
        by_rows = client_weight == "rows"
        assert sent == {f"anchor.{c}.mean": float(n) if by_rows else 1.0 for c, n in counts.items()}
        theta = {e.weight for n, e in update.entries.items() if n.startswith("hidden.")}
        assert theta <= {float(len(client.train)) if by_rows else 1.0}


def test_participants_send_all_anchors(visit):
    place = visit("flic-class", anchors={"average_over": "participants"})
    for update in place.do("update").updates:
        assert set(update.entries) == {f"anchor.{c}.mean" for c in range(CLASSES)}


def test_participants_pull_a_single_holder_back(visit):
    """The literal average mixes in the unchanged copies of clients without the class."""
    holders = visit("flic-class", ("client-0", "client-2"))
    everyone = visit(
        "flic-class", ("client-0", "client-2"), anchors={"average_over": "participants"}
    )
    moves = []
    for place in (holders, everyone):
        server = place.method.aggregate(place.server, place.do("update").updates)
        moves.append(server.shared[MEAN] - place.server.shared[MEAN])
    assert moves[0].abs().min() > 0
    torch.testing.assert_close(moves[1], moves[0] / 2, atol=1e-6, rtol=1e-5)


def rotation(angle):
    turn = torch.eye(8)
    turn[:2, :2] = torch.tensor(
        [[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]]
    )
    return turn


def test_averaged_factors_depend_on_their_rotation_and_the_barycentre_does_not(visit):
    factor = torch.diag(torch.arange(1.0, 9.0))
    turned = send(FACTOR, factor, factor @ rotation(2.0))
    found = {}
    for how in ("factors", "barycentre"):
        anchors = {"covariance": "full", "average_covariance": how}
        place = visit("flic-class", anchors=anchors)
        root = place.method.aggregate(place.server, turned).shared[FACTOR]
        found[how] = root @ root.mT
    torch.testing.assert_close(found["barycentre"], factor @ factor.mT, atol=1e-4, rtol=1e-4)
    assert (found["factors"] - factor @ factor.mT).abs().max() > 0.5


def test_the_barycentre_of_commuting_covariances_averages_deviations(visit):
    place = visit("flic-class", anchors={"covariance": "full", "average_covariance": "barycentre"})
    a, b = torch.diag(full(1)), torch.diag(full(4))
    updates = send(FACTOR, a, b, weights=[2.0, 1.0])
    root = place.method.aggregate(place.server, updates).shared[FACTOR]
    torch.testing.assert_close(root @ root.mT, torch.diag(full(4)), atol=1e-4, rtol=1e-4)


def test_the_sign_of_a_diagonal_factor_means_nothing_to_the_barycentre(visit):
    own = {"covariance": "diagonal", "average_covariance": "barycentre"}
    place = visit("flic-class", anchors=own)
    updates = send(FACTOR, full(1), full(-1))
    root = place.method.aggregate(place.server, updates).shared[FACTOR]
    torch.testing.assert_close(root.abs(), full(1))


BAD = {
    "name": ("embedding.0.bias", torch.zeros(16), 1.0, "which the server does not share"),
    "shape": (MEAN, torch.zeros(9), 1.0, r"is float32\[9\], expected float32\[8\]"),
    "dtype": (MEAN, torch.zeros(8).double(), 1.0, r"is float64\[8\], expected float32\[8\]"),
    "nan": (MEAN, full(math.nan), 1.0, "NaN or infinite"),
    "infinite": (MEAN, full(-math.inf), 1.0, "NaN or infinite"),
    "zero weight": (MEAN, full(1), 0.0, r"has weight 0.0; expected > 0"),
    "negative weight": (MEAN, full(1), -1.0, r"has weight -1.0; expected > 0"),
    "nan weight": (MEAN, full(1), math.nan, r"has weight nan; expected > 0"),
}


@pytest.mark.parametrize(("name", "value", "weight", "message"), BAD.values(), ids=BAD)
def test_an_update_that_does_not_count_is_refused(visit, name, value, weight, message):
    place = visit("flic-class")
    update = Update("ward-7", {name: Entry(value, weight)})
    with pytest.raises(IncompatibleUpdate, match=message) as refusal:
        check_update(place.server, update)
    assert "client 'ward-7'" in str(refusal.value)
    with pytest.raises(IncompatibleUpdate, match=message):
        place.method.aggregate(place.server, [Update("client-0", {}), update])
