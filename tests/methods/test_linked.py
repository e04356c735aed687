"""Linked features: what is shared pays where it is shared, and costs nothing where it is not."""

from dataclasses import replace
from functools import cache

import pytest
import torch

from flic.data.client_data import ClientData, FederatedData, Split
from flic.data.schema import FeatureSchema, SharedFeatures
from flic.data.task import Classification, Regression
from flic.engine.engine import Engine, Job
from flic.method_settings import MethodSettings
from flic.methods.baselines.estimators import Ridge
from flic.methods.linked import peers
from flic.methods.linked.agreement import Agreement
from flic.methods.linked.client_sums import ClientSums, sent_sums
from flic.methods.linked.disclosure import DisclosedRows
from flic.methods.linked.link_checks import shares_unlike, unlike
from flic.methods.linked.linked import Linked
from flic.methods.linked.linked_client import LinkedClient, best_of
from flic.methods.linked.peers import PeerSide, others_at
from flic.methods.protocol import ServerState, Stack

pytestmark = pytest.mark.federation

CLASSES, FEATURES = 3, 12
QUESTION = Classification(CLASSES)
RESPONSE = Regression(30.0, 70.0)
SETTINGS = MethodSettings.model_validate({"linked": {"random_features": 32}})
NAMES = tuple(f"f{i}" for i in range(FEATURES))
CENTRES = torch.randn(CLASSES, FEATURES, generator=torch.Generator().manual_seed(0)) * 0.7


def make_client(i, names=NAMES, rows=18, space="ward"):
    rng = torch.Generator().manual_seed(i)
    parts = []
    for count in (rows, 200):
        y = torch.arange(count) % CLASSES
        x = CENTRES[y] + torch.randn(count, FEATURES, generator=rng)
        parts.append(Split(x, y))
    train, test = parts
    nothing = test.take(torch.zeros(len(test), dtype=torch.bool))
    return ClientData(f"client-{i}", FeatureSchema(space, names), train, nothing, test)


def engine_of(clients, settings=SETTINGS, task=QUESTION):
    data = FederatedData("linked", task, tuple(clients))
    return Engine.of("linked", settings, data, seed=0)


def learn(clients, absent=(), settings=SETTINGS, task=QUESTION):
    """Engine and server after all uploads, of which those of absent clients never arrive."""
    engine = engine_of(clients, settings, task)
    server, names = engine.method.init_server(), tuple(engine.clients.names)
    uploads = [step for step in engine.method.programme(0, final_round=False) if step.sends]
    for step in uploads:
        server = ServerState(step.round, server.shared)
        answer = engine.do(Job(step.stages[0].name, server, names, [{}] * len(names)))
        arrived = [update for update in answer.updates if update.client not in absent]
        server = step.stages[0].server_half(server, arrived)
    return engine, server


def nothing(engine):
    """The private state of clients that have none."""
    return Stack(engine.clients.architecture(engine.clients.names[0]), {})


def accuracy(clients):
    return accuracy_of(*learn(clients))


def accuracy_of(engine, server):
    """Share of all test rows that clients predict right."""
    names = tuple(engine.clients.names)
    scores = engine.do(Job("evaluate", server, names, [{}] * len(names))).scores
    return sum(s.test.right for s in scores.values()) / sum(s.test.rows for s in scores.values())


def alone(clients):
    data = FederatedData("alone", QUESTION, tuple(clients))
    engine = Engine.of("lda", SETTINGS, data, seed=0)
    names, server = tuple(engine.clients.names), engine.method.init_server()
    scores = engine.do(Job("evaluate", server, names, [{}] * len(names))).scores
    return sum(s.test.right for s in scores.values()) / sum(s.test.rows for s in scores.values())


@pytest.fixture(scope="module")
def ward():
    return [make_client(i) for i in range(8)]


@pytest.fixture(scope="module")
def learnt(ward):
    """learnt(scatter): engine and server of the ward after all uploads, for reading only."""
    return cache(lambda scatter="full": learn(ward, settings=with_scatter(scatter)))


def with_scatter(scatter):
    linked = {"random_features": 32, "scatter": scatter}
    return MethodSettings.model_validate({"linked": linked})


@pytest.mark.slow
def test_linked_features_pay(ward, learnt):
    assert accuracy_of(*learnt()) > alone(ward) + 0.05


def test_features_of_other_names_neither_pay_nor_cost(ward):
    apart = [
        replace(c, schema=FeatureSchema("ward", tuple(f"{c.name} {n}" for n in NAMES)))
        for c in ward
    ]
    assert accuracy(apart) == pytest.approx(alone(apart), abs=0.03)


@pytest.mark.slow
def test_wrong_links_are_noticed_by_cross_validation(ward):
    def shuffled(c, i):
        order = torch.randperm(FEATURES, generator=torch.Generator().manual_seed(i)).tolist()
        return replace(c, schema=FeatureSchema("ward", tuple(NAMES[j] for j in order)))

    wrong = [shuffled(c, i) for i, c in enumerate(ward)]
    assert accuracy(wrong) > alone(wrong) - 0.03


@pytest.mark.slow
def test_units_that_are_not_the_others_cost_nothing(ward):
    """A name for all features, and a unit of each client's own."""

    def in_own_units(c, i):
        rng = torch.Generator().manual_seed(i)
        factor = 10 ** (4 * torch.rand(FEATURES, generator=rng) - 2)
        parts = {
            name: replace(getattr(c, name), x=getattr(c, name).x * factor)
            for name in ("train", "test", "validation")
        }
        return replace(c, **parts)

    wrong = [in_own_units(c, i) for i, c in enumerate(ward)]
    assert accuracy(wrong) == pytest.approx(alone(wrong), abs=0.01)


@pytest.mark.slow
@pytest.mark.parametrize("factor", [1e3, 1e9])
def test_one_wrong_unit_leaves_everyone_s_own_expert_as_it_was(ward, factor):
    times = torch.ones(FEATURES)
    times[3] = factor
    parts = {n: replace(s, x=s.x * times) for n in ("train", "test") for s in [getattr(ward[0], n)]}
    wrong = [replace(ward[0], **parts), *ward[1:]]
    found = []
    for clients in (ward[:4], wrong[:4]):
        engine, server = learn(clients)
        known = LinkedClient(engine.method.agreed, server.shared, ward[1])
        found.append(known.fold_scores("own").log_softmax(-1))
    torch.testing.assert_close(*found, rtol=0, atol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("scatter", ["full", "off"])
def test_what_is_one_value_at_each_client_changes_nothing(ward, learnt, scatter):
    """A year, or the number of a site: no unit would suit it."""

    def of_year(c, year):
        names = (*NAMES, "year")
        parts = {
            n: replace(s, x=torch.cat([s.x, torch.full((len(s), 1), year)], 1))
            for n in ("train", "test", "validation")
            for s in [getattr(c, n)]
        }
        return replace(c, schema=FeatureSchema("ward", names), **parts)

    dated = [of_year(c, 2010.0 + i) for i, c in enumerate(ward)]
    engine, server = learn(dated, settings=with_scatter(scatter))
    found = accuracy_of(engine, server)
    assert found == pytest.approx(accuracy_of(*learnt(scatter)), abs=0.02)
    assert not unlike(LinkedClient(engine.method.agreed, server.shared, dated[0]))


def few_features(i):
    """A client of another space: two features that tell much, and are much alike."""
    rng = torch.Generator().manual_seed(100 + i)
    turn = torch.tensor([[1.0, 0.98], [0.0, 0.2]])

    def rows(count):
        y = torch.arange(count) % CLASSES
        return Split((torch.randn(count, 2, generator=rng) + y[:, None] * 1.5) @ turn, y)

    return ClientData(
        f"small-{i}", FeatureSchema("small", ("a", "b")), rows(18), rows(18).take([]), rows(200)
    )


@pytest.mark.slow
def test_every_space_has_settings_of_its_own(ward, learnt):
    small = [few_features(i) for i in range(8)]
    engine, server = learn([*ward, *small])
    own = [best_of(server.shared[f"scores.own.{space}"])[0] for space in ("ward", "small")]
    assert own[0] != own[1]
    assert {line.split("space ")[1].split(",")[0] for line in engine.method.explain(server)} == {
        "'ward'",
        "'small'",
    }
    for _, apart in (learnt(), learn(small)):
        for name, value in apart.shared.items():
            if name.startswith("moments."):
                torch.testing.assert_close(server.shared[name], value, rtol=0, atol=1e-12)


@pytest.mark.slow
def test_a_tuning_group_leans_on_everyone_by_one_client(ward):
    engine, server = learn([*ward[:4], few_features(0), few_features(1)])
    cv_scores = {}
    groups = {"ward": [c.name for c in ward[:4]], "small": ["small-0", "small-1"]}
    for space, names in groups.items():
        task = Job("prepare", ServerState(-1, server.shared), tuple(names), [{}] * len(names))
        updates = engine.do(task).updates
        cv_scores[space] = torch.stack([u.entries[f"scores.own.{space}"].value for u in updates])
    every = torch.cat([*cv_scores.values()]).mean(0)
    for space, own in cv_scores.items():
        expected = (own.sum(0) + every) / (len(own) + 1)
        torch.testing.assert_close(server.shared[f"scores.own.{space}"], expected)


def test_those_who_share_nothing_choose_together(ward):
    alone = [replace(c, schema=FeatureSchema(f"space {i}", NAMES)) for i, c in enumerate(ward[:4])]
    _, server = learn(alone)
    groups = {name for name in server.shared if name.startswith("scores.own")}
    assert groups == {"scores.own.private"}


@pytest.mark.slow
def test_half_linked_is_not_below_alone(ward):
    half = [
        replace(
            c,
            schema=FeatureSchema("ward", (*NAMES[:6], *(f"{c.name} {name}" for name in NAMES[6:]))),
        )
        for c in ward
    ]
    assert accuracy(half) > alone(half)


@pytest.mark.slow
def test_sums_do_not_depend_on_who_works_beside_whom(ward, learnt):
    _, together = learnt()
    _, turned = learn(ward[::-1])
    for name, value in together.shared.items():
        torch.testing.assert_close(value, turned.shared[name], rtol=0, atol=1e-8)


@pytest.mark.slow
def test_a_client_that_never_answers_is_as_if_it_had_never_been(ward):
    _, without = learn(ward[:3])
    _, silent = learn(ward[:4], absent={ward[3].name})
    for name, value in without.shared.items():
        torch.testing.assert_close(value, silent.shared[name], rtol=0, atol=1e-12)


def test_a_class_of_few_rows_is_in_no_sum(ward):
    settings = MethodSettings.model_validate({"linked": {"random_features": 8, "min_rows": 5}})
    few = ward[0].train.take((ward[0].train.y != 1) | (torch.arange(18) < 6))
    client = replace(ward[0], train=few)
    assert client.class_counts[1] == 2
    engine = engine_of((client, *ward[1:]), settings)
    server = ServerState(-3, engine.method.init_server().shared)
    [update] = engine.do(Job("prepare", server, (client.name,), [{}])).updates
    count = update.entries["moments.ward.linear.count"].value
    assert (count[1] == 0).all()
    assert (count[0] == client.class_counts[0]).all()


def test_what_leaves_are_sums_and_likelihoods(ward, learnt):
    engine, server = learnt()
    rows = {len(c.train) for c in ward}
    for round in (-3, -2, -1, 0):
        state = ServerState(round, server.shared)
        [update] = engine.do(Job("prepare", state, ("client-1",), [{}])).updates
        assert {name.split(".")[0] for name in update.entries} <= {"moments", "scores"}
        for entry in update.entries.values():
            assert not set(entry.value.shape) & rows


SUMS = {"count", "total"}
SQUARES = SUMS | {"variance", "dof"}
PRODUCTS = SQUARES | {"cross", "pairs"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scatter", "as_they_are", "mapped"),
    [
        ("off", SUMS, SUMS),
        ("diagonal", SQUARES, SQUARES),
        ("projected", SQUARES, PRODUCTS),
        ("full", PRODUCTS, PRODUCTS),
    ],
)
def test_what_a_client_does_not_send_of_its_scatter_never_leaves(
    ward, learnt, scatter, as_they_are, mapped
):
    engine, server = learnt(scatter)
    for round, kept in ((-3, as_they_are), (-2, mapped)):
        task = Job("prepare", ServerState(round, server.shared), ("client-1",), [{}])
        [update] = engine.do(task).updates
        sums = {n.split(".")[-1] for n in update.entries if n.startswith("moments.")}
        assert sums == kept
    assert accuracy_of(engine, server) > alone(ward) + 0.03


def test_private_features_are_in_no_sum(ward):
    own = (*NAMES[:6], *(f"own {name}" for name in NAMES[6:]))
    clients = [replace(ward[0], schema=FeatureSchema("ward", own)), *ward[1:]]
    engine = engine_of(clients)
    assert set(engine.method.agreed.shared["ward"].names) == set(NAMES)
    clients = [replace(c, schema=FeatureSchema("ward", own)) for c in ward[:1]] + [
        replace(c, schema=FeatureSchema("ward", (*NAMES[:6], *(f"{i} {n}" for n in NAMES[6:]))))
        for i, c in enumerate(ward[1:4])
    ]
    engine, server = learn(clients)
    assert engine.method.agreed.shared["ward"].names == tuple(sorted(NAMES[:6]))
    assert server.shared["moments.ward.linear.total"].shape == (CLASSES, 6)


def in_other_units(client):
    """The same rows with features of which one is a million times another."""
    factor = torch.logspace(-5, 5, FEATURES)
    parts = {
        name: replace(split, x=split.x * factor)
        for name in ("train", "test", "validation")
        for split in [getattr(client, name)]
    }
    return replace(client, **parts)


@pytest.mark.slow
def test_units_change_nothing(ward, learnt):
    found = accuracy([in_other_units(c) for c in ward])
    assert found == pytest.approx(accuracy_of(*learnt()), abs=0.003)


def test_large_values_are_no_reason_to_stop(ward):
    large = [replace(c, train=replace(c.train, x=c.train.x * 1e15)) for c in ward[:4]]
    _, server = learn(large)
    assert all(torch.isfinite(value).all() for value in server.shared.values())


def test_one_row_of_each_class_is_no_reason_to_stop(ward):
    y = ward[0].train.y
    first = torch.tensor([int((y == c).nonzero()[0]) for c in y.unique()])
    few = replace(ward[0], train=ward[0].train.take(first))
    _, server = learn([few, *ward[1:4]])
    assert all(value.isfinite().all() for value in server.shared.values())


@pytest.mark.slow
def test_constant_features_change_nothing(ward, learnt):
    def with_constant(c):
        names = (*c.schema.features, "constant")
        parts = {
            name: Split(torch.cat([split.x, torch.full((len(split), 1), 7.0)], 1), split.y)
            for name in ("train", "test", "validation")
            for split in [getattr(c, name)]
        }
        return replace(c, schema=FeatureSchema("ward", names), **parts)

    found = accuracy([with_constant(c) for c in ward])
    assert found == pytest.approx(accuracy_of(*learnt()), abs=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("most_rows", [0.0, 1e9])
def test_one_basis_for_all_gives_what_each_client_s_own_gives(ward, monkeypatch, most_rows):
    few = [replace(c, train=c.train.take(torch.arange(9))) for c in ward[:4]]
    _, usual = learn(few)
    monkeypatch.setattr(peers, "MOST_ROWS_PER_FEATURE", most_rows)
    _, other = learn(few)
    for name, value in usual.shared.items():
        torch.testing.assert_close(value, other.shared[name], rtol=0, atol=1e-8)


@pytest.mark.parametrize("scatter", ["off", "diagonal"])
def test_one_basis_takes_off_only_what_was_told(ward, monkeypatch, scatter):
    """A client that tells less than the others is among what the others told, and no more."""
    few = [replace(c, train=c.train.take(torch.arange(9))) for c in ward[:4]]
    full = engine_of(few).method.agreed
    agreed = replace(full, settings=with_scatter(scatter).linked)
    sent = [sent_sums(full, DisclosedRows.of(full, c), "full") for c in few[:3]]
    sent.append(sent_sums(agreed, DisclosedRows.of(agreed, few[3]), scatter))
    state = {}
    for own in sent:
        for name, value in own.items():
            place = f"moments.ward.linear.{name}"
            state[place] = state.get(place, 0) + value
    found = []
    for most_rows in (0.0, 1e9):
        monkeypatch.setattr(peers, "MOST_ROWS_PER_FEATURE", most_rows)
        pool = ClientSums(agreed, state, few[3])
        others = others_at(pool, PeerSide.linear(pool), torch.arange(FEATURES))
        base = others.base
        wide = base.basis if others.basis is None else others.basis
        less = 0 if base.less is None else base.less.mT @ base.less
        found.append(wide @ (torch.diag(base.variances) - less) @ wide.mT)
    torch.testing.assert_close(*found, rtol=0, atol=1e-8)


# ---- responses ----------------------------------------------------------------------------------


def with_response(client, seed):
    """The client with responses in place of classes."""
    rng = torch.Generator().manual_seed(seed)
    slope = torch.linspace(-1, 1, FEATURES)

    def answered(split):
        return Split(split.x, 50 + 4 * (split.x @ slope + torch.randn(len(split), generator=rng)))

    parts = {name: answered(getattr(client, name)) for name in ("train", "test", "validation")}
    return replace(client, **parts)


def r2(clients, method, settings=SETTINGS):
    task = RESPONSE
    data = FederatedData("responses", task, tuple(clients))
    if method is Linked:
        engine, server = learn(clients, task=task)
    else:
        engine = Engine.of(method.name, settings, data, seed=0)
        server = engine.method.init_server()
    stacked = engine.clients.stacked_data(tuple(engine.clients.names))
    found = engine.method.predict(server, nothing(engine), stacked, [c.test for c in clients])
    left = sum(
        float((p[:, 0] - c.test.y).square().sum()) for p, c in zip(found, clients, strict=True)
    )
    spread = sum(float((c.test.y - c.test.y.mean()).square().sum()) for c in clients)
    return 1 - left / spread


@pytest.fixture(scope="module")
def answered(ward):
    return [with_response(c, i) for i, c in enumerate(ward)]


@pytest.mark.slow
def test_linked_responses_pay(answered):
    assert r2(answered, Linked) > r2(answered, Ridge) + 0.05


def test_responses_with_nothing_linked_are_no_worse_than_a_ridge_alone(answered):
    apart = [
        replace(c, schema=FeatureSchema("ward", tuple(f"{c.name} {n}" for n in NAMES)))
        for c in answered
    ]
    assert r2(apart, Linked) > r2(apart, Ridge) - 0.02


def test_what_came_of_it_is_told(ward, learnt):
    engine, server = learnt()
    [line] = engine.method.explain(server)
    found = LinkedClient(engine.method.agreed, server.shared, ward[0]).best_scores()
    assert list(found) == ["own", "linked", "mapped", "mix"]
    everyone = [
        LinkedClient(engine.method.agreed, server.shared, c).best_scores()["mix"] for c in ward
    ]
    assert f"{sum(everyone) / len(everyone):.3f} mix." in line
    assert "Cross-validated log-likelihood" in line


@pytest.mark.slow
def test_right_links_are_worth_something_and_wrong_ones_less_than_nothing(ward):
    """One client calls two features by each other's names."""
    first, second = (int(place) for place in (CENTRES[0] - CENTRES[1]).argsort()[[0, -1]])
    names = list(NAMES)
    names[first], names[second] = names[second], names[first]
    clients = [replace(ward[0], schema=FeatureSchema("ward", tuple(names))), *ward[1:]]
    engine, server = learn(clients)
    known = LinkedClient(engine.method.agreed, server.shared, clients[0])
    wrong = {NAMES[first], NAMES[second]}
    assert known.worth_of_links(wrong) < -0.02
    assert known.worth_of_links({*NAMES} - wrong) > 0.02
    assert known.worth_of_links(()) == 0


@pytest.mark.slow
def test_links_are_worth_the_same_however_their_sums_travel(ward):
    """Together, where the same clients hold them, or each by itself."""
    others = (*NAMES[:6], *(f"own {name}" for name in NAMES[6:]))
    some = [replace(c, schema=FeatureSchema("ward", others)) for c in ward[:1]]
    engine, server = learn([*some, *ward[1:4]])
    agreed = engine.method.agreed
    names = agreed.shared["ward"].names
    shared = {"ward": SharedFeatures(names, tuple(range(len(names))))}
    apart = Agreement(agreed.settings, shared, agreed.task, agreed.seed)
    prefix = "moments.ward.linear."
    sums = {n.removeprefix(prefix): v for n, v in server.shared.items() if n.startswith(prefix)}
    packed = apart.layout("ward", "linear").pack(
        agreed.layout("ward", "linear").unpack(sums), "full"
    )
    state = {**server.shared, **{prefix + n: v for n, v in packed.items()}}
    for feature in NAMES:
        together = LinkedClient(agreed, server.shared, ward[1]).worth_of_links({feature})
        each = LinkedClient(apart, state, ward[1]).worth_of_links({feature})
        assert together == pytest.approx(each, abs=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("row", [0, 2], ids=["a value that stands alone", "a class of two rows"])
def test_what_few_rows_have_does_not_make_a_feature_unlike(row):
    settings = MethodSettings.model_validate({"linked": {"random_features": 32, "min_rows": 5}})
    whole = make_client(0)
    of_two = (whole.train.y < 2) | (torch.arange(18) < 6)
    client = replace(whole, train=whole.train.take(of_two))
    engine, server = learn([client, make_client(1), make_client(2)], settings=settings)

    def shares(value):
        x = client.train.x.clone()
        x[row, :] = value
        moved = replace(client, train=Split(x, client.train.y))
        return shares_unlike(LinkedClient(engine.method.agreed, server.shared, moved))

    assert shares(40.0).sum() > 0
    assert torch.equal(shares(40.0), shares(90.0))
