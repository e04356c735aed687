"""The baselines do what their own papers say.  Paper: Baselines paragraph."""

from dataclasses import replace

import pytest
import torch

from flic.methods.baselines.fedhenn import KERNEL, PROBES, cka
from flic.methods.protocol import ServerState

IDLE = {"local": "0 epochs", "shared": "0 epochs"}
HENN = {"weight": 0.7, "probe_rows": 11}

ONE_STEP = {"local": "1 steps", "shared": "0 steps"}


def normal(seed, *shape):
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=rng, dtype=torch.float64)


def kernel(seed, rows=9, dim=4):
    features = normal(seed, rows, dim)
    return features @ features.mT


def cka_by_definition(a, b):
    """HSIC(A, B)/√(HSIC(A, A) HSIC(B, B)) with the centring matrix H."""
    n = len(a)
    h = torch.eye(n, dtype=a.dtype) - torch.ones(n, n, dtype=a.dtype) / n

    def hsic(p, q):
        return torch.trace(p @ h @ q @ h)

    return hsic(a, b) / (hsic(a, a) * hsic(b, b)).sqrt()


@pytest.mark.parametrize("seed", range(3))
def test_cka_is_its_definition(seed):
    a, b = kernel(seed), kernel(seed + 10)
    torch.testing.assert_close(cka(a, b), cka_by_definition(a, b))
    assert 0 < cka(a, b) < 1


@pytest.mark.parametrize("seed", range(3))
def test_cka_of_equal_kernels_is_one(seed):
    a = kernel(seed)
    torch.testing.assert_close(cka(a, a), torch.ones((), dtype=torch.float64))


@pytest.mark.parametrize("seed", range(3))
def test_cka_ignores_rotation_scale_and_shift_of_features(seed):
    features = normal(seed, 9, 4)
    turn = torch.linalg.qr(normal(seed + 1, 4, 4)).Q
    moved = 3.7 * features @ turn + normal(seed + 2, 4)
    a, b = features @ features.mT, moved @ moved.mT
    torch.testing.assert_close(cka(a, b), torch.ones((), dtype=torch.float64))
    other = kernel(seed + 5)
    torch.testing.assert_close(cka(b, other), cka(a, other))


def test_cka_with_nothing_is_nothing():
    empty = torch.zeros(9, 9, dtype=torch.float64, requires_grad=True)
    value = cka(empty, kernel(0))
    value.backward()
    assert value == 0
    assert empty.grad.isfinite().all()


def with_kernel(start, average):
    shared = {**start.server.shared, KERNEL: average}
    return replace(start, server=ServerState(1, shared))


def kernels(start):
    """Each client's kernel of the probe inputs, by name."""
    return {u.client: u.entries[KERNEL].value for u in start.do("update").updates}


def test_fedhenn_s_loss(place):
    """Loss + η (1 − CKA(K_i, K̄))."""
    idle = place("fedhenn", fedhenn=HENN, training=IDLE)
    own, average = kernels(idle), kernel(3, rows=11)
    start = with_kernel(place("fedhenn", fedhenn=HENN, training=ONE_STEP), average)
    losses = start.do("update").losses
    assert set(losses) == {"data", "cka"}
    for i, client in enumerate(start.data.clients):
        expected = 0.7 * (1 - cka_by_definition(own[client.name], average))
        torch.testing.assert_close(losses["cka"][i], expected)
        theta = {n: v[i : i + 1] for n, v in start.stack.private.items()}
        scores = start.method.model.apply(theta, start.latent(i)[None])[0]
        data = torch.nn.functional.cross_entropy(scores, client.train.y)
        torch.testing.assert_close(losses["data"][i], data)


def test_the_server_averages_kernels(place):
    start = place("fedhenn", fedhenn=HENN, training=IDLE)
    average = start.after(start.do("update")).server.shared[KERNEL]
    torch.testing.assert_close(average, sum(kernels(start).values()) / 3)


def test_a_client_s_kernel_is_pruned_to_its_own_features(place):
    start = place("fedhenn", fedhenn=HENN, training=IDLE)
    assert start.server.shared[PROBES].shape == (11, 20)
    before = kernels(start)
    for name, own, same in (("a", 5, True), ("a", 4, False), ("b", 9, True), ("c", 19, False)):
        probes = start.server.shared[PROBES].clone()
        probes[:, own:] += 5.0
        shared = {**start.server.shared, PROBES: probes}
        after = kernels(replace(start, server=ServerState(1, shared)))
        assert torch.equal(before[name], after[name]) == same


@pytest.fixture
def ward(client):
    """Two clients of one space that share the features 'age' and 'bmi', in different places."""
    return [
        client("a", features=("age", "bmi", "smoker"), space="ward"),
        client("b", features=("pulse", "bmi", "age"), space="ward"),
    ]


def test_within_space_averages_feature_by_feature(place, ward):
    start = place("within-space", ward)
    visit = start.do("update")
    sent = {update.client: update.entries for update in visit.updates}
    found = start.after(visit).server.shared
    holders = {"age": "ab", "bmi": "ab", "smoker": "a", "pulse": "b"}
    for feature, who in holders.items():
        name = f"space.ward.feature.{feature}"
        assert {client for client in sent if name in sent[client]} == set(who)
        mean = sum(sent[client][name].value for client in who) / len(who)
        torch.testing.assert_close(found[name], mean)
        assert not torch.equal(found[name], start.server.shared[name])


def test_within_space_untouched_features_come_back_under_their_names(place, ward):
    start = place("within-space", ward, training=IDLE)
    for update in start.do("update").updates:
        for name, entry in update.entries.items():
            assert torch.equal(entry.value, start.server.shared[name])


def test_spaces_share_nothing_with_each_other(place, ward, client):
    clients = [*ward, client("c", features=("age", "bmi"), space="clinic")]
    start = place("within-space", clients)
    for update in start.do("update").updates:
        prefix = "space.clinic." if update.client == "c" else "space.ward."
        assert all(name.startswith(prefix) for name in update.entries)


def test_hetfedrep_shares_the_hidden_layer_alone(place):
    for update in place("hetfedrep").do("update").updates:
        assert set(update.entries) == {"hidden.weight", "hidden.bias"}
