"""The paper's claims on FLIC, as equations between runs.  Paper: algo:FLIC-FEDREP."""

from dataclasses import replace

import pytest
import torch

from flic.gaussians import Gaussian, bures_sq, wasserstein2_sq
from flic.methods import METHODS
from flic.methods.flic.covariance import stretch

NO_TERMS = {"weight": 0.0, "calibration_weight": 0.0}
ONLY_ALIGNMENT = {"weight": 0.5, "calibration_weight": 0.0}
PRETRAINING = {"epochs": 50, "batch_size": 1000}
ADAM = {"optimiser": {"kind": "adam", "learning_rate": 0.02}}
ONE_FULL_BATCH = {"local": "0 epochs", "shared": "1 epoch"}
MEANS = [f"anchor.{c}.mean" for c in range(3)]

ONE_STEP = {"local": "1 steps", "shared": "0 steps"}


def test_without_terms_and_without_sharing_flic_is_local(place):
    """λ₁ = λ₂ = 0 and θ_i = β_i."""
    flic = place("flic-class", alignment=NO_TERMS, training={"personalisation": "alone"})
    local = place("local", model={"hidden_layer": False})
    for _ in range(2):
        flic, local = flic.after(flic.do("update")), local.after(local.do("update"))
    assert flic.stack.private.keys() == local.stack.private.keys()
    for name, value in local.stack.private.items():
        assert torch.equal(flic.stack.private[name], value)


def test_with_terms_flic_is_not_local(place):
    flic = place("flic-class", training={"personalisation": "alone"}).do("update").stack
    local = place("local", model={"hidden_layer": False}).do("update").stack
    assert not torch.equal(flic.private["embedding.0.bias"], local.private["embedding.0.bias"])


def test_with_an_empty_alpha_only_anchors_are_sent(place):
    start = place("flic-class")
    sent = {update.client: set(update.entries) for update in start.do("update").updates}
    assert sent == {
        "a": {"anchor.0.mean", "anchor.1.mean"},
        "b": {"anchor.1.mean", "anchor.2.mean"},
        "c": {"anchor.0.mean", "anchor.2.mean"},
    }


def objective(start, anchors, *, is_learnt=False):
    """Σ_c Σ_i ω_i W2²(μ_c, ν_i^(c)) with ω_i = 1/(holders of c).

    For learnt covariances the cross term of W2² is stretched.
    """
    total = torch.zeros((), dtype=torch.float64)
    for i, client in enumerate(start.data.clients):
        for c in client.classes:
            rows = start.latent(i)[client.train.y == c]
            nu, anchor = Gaussian.from_samples(rows), anchors[c]
            total = total + wasserstein2_sq(anchor, nu) / 2
            if is_learnt:
                common = bures_sq(anchor.covariance, nu.covariance) - anchor.trace() - nu.trace()
                total = total + (stretch(rows, anchor) - 1) * common / 2
    return total


@pytest.mark.parametrize("covariance", ["identity", "diagonal", "full"])
def test_a_round_is_a_gradient_step_on_the_barycentre_objective(place, covariance):
    """Steps 14 and 20 with λ₂ = 0, plain gradient descent and all clients active."""
    start = place(
        "flic-class",
        alignment=ONLY_ALIGNMENT,
        training=ONE_FULL_BATCH,
        anchors={"covariance": covariance, "eps": 0.0},
    )
    shared = start.server.shared
    means = torch.stack([shared[n] for n in MEANS]).requires_grad_()
    factors = [shared[f"anchor.{c}.factor"] for c in range(3)] if covariance != "identity" else None
    factors = torch.ones(3, 4).double() if factors is None else torch.stack(factors)
    factors.requires_grad_()
    is_learnt = covariance != "identity"
    objective(start, Gaussian(means, factors), is_learnt=is_learnt).backward()
    found = start.after(start.do("update")).server.shared
    expected = means - 0.1 * 0.5 * means.grad
    torch.testing.assert_close(torch.stack([found[n] for n in MEANS]), expected)
    if covariance != "identity":
        expected = factors - 0.1 * 0.5 * factors.grad
        moved = torch.stack([found[f"anchor.{c}.factor"] for c in range(3)])
        torch.testing.assert_close(moved, expected, atol=1e-6, rtol=1e-6)


def test_pretraining_brings_classes_to_their_anchors(place):
    start = place("flic-class", pretraining=PRETRAINING, training=ADAM)
    anchors = Gaussian.isotropic(torch.stack([start.server.shared[n] for n in MEANS]))
    after = start.after(start.do("prepare", round=0))
    assert objective(after, anchors) < 0.5 * objective(start, anchors)
    heads = start.stack.private["head.weight"]
    assert torch.equal(after.stack.private["head.weight"], heads)


@pytest.mark.parametrize("rows", [60, 6, 2], ids="{} rows".format)
def test_the_alignment_loss_is_the_distance(place, client, rows):
    """One full batch: the reported term is λ₁ Σ_c W2²(μ_c, ν_i^(c)) of eq:W2_Gauss.

    Also where the rows of a class span less than the latent space, down to a single row.
    """
    clients = [client("a", (0, 1), rows=rows), client("b", (1, 2), dim=9, rows=rows)]
    start = place("flic-class", clients, alignment=ONLY_ALIGNMENT, training=ONE_STEP)
    losses = start.do("update", round=0).losses["alignment"]
    anchors = Gaussian.isotropic(torch.stack([start.server.shared[n] for n in MEANS]))
    for i, own in enumerate(start.data.clients):
        nus = {c: Gaussian.from_samples(start.latent(i)[own.train.y == c]) for c in own.classes}
        expected = sum(wasserstein2_sq(anchors[c], nu) for c, nu in nus.items())
        torch.testing.assert_close(losses[i], 0.5 * expected)


def test_nearest_anchor_is_the_least_distance(place):
    changes = {"predict_by": "nearest-anchor"}
    start = place("flic-class", model=changes, pretraining=PRETRAINING, training=ADAM)
    start = start.after(start.do("prepare", round=0))
    splits = [client.test for client in start.data.clients]
    scores = start.method.predict(start.server, start.stack, start.data, splits)
    means = torch.stack([start.server.shared[n] for n in MEANS])
    for i, client in enumerate(start.data.clients):
        held = torch.tensor(client.classes)
        nearest = held[torch.cdist(start.latent(i), means[held]).argmin(1)]
        assert torch.equal(scores[i].argmax(1), nearest)
        assert len(nearest.unique()) == 2


@pytest.mark.parametrize("method", [n for n, m in METHODS.items() if "classification" in m.tasks])
def test_nobody_predicts_a_class_it_does_not_hold(place, method):
    start = place(method)
    splits = [client.test for client in start.data.clients]
    scores = start.method.predict(start.server, start.stack, start.data, splits)
    for client, own in zip(start.data.clients, scores, strict=True):
        lacked = sorted({0, 1, 2} - set(client.classes))
        assert (own[:, lacked] == -torch.inf).all()
        assert own[:, list(client.classes)].isfinite().all()


@pytest.mark.parametrize("method", ["local", "flic-class", "flic-hl"])
def test_all_classes_compete_where_a_setting_says_so(place, method):
    """As in the authors' program; among the held ones the order stays."""
    held = place(method)
    splits = [client.test for client in held.data.clients]
    every = place(method, model={"predict_among": "all"})
    among_held = held.method.predict(held.server, held.stack, held.data, splits)
    among_all = every.method.predict(every.server, every.stack, every.data, splits)
    for client, few, more in zip(held.data.clients, among_held, among_all, strict=True):
        assert more.isfinite().all()
        own = list(client.classes)
        torch.testing.assert_close(more[:, own], few[:, own])


@pytest.mark.slow
@pytest.mark.parametrize("covariance", ["diagonal", "full"])
@pytest.mark.parametrize(("k", "clients"), [(8, "a"), (16, "abcd"), (64, "a"), (64, "abcd")])
def test_learnt_covariances_do_not_shrink(place, client, k, clients, covariance):
    """Not by batches of few rows, nor by the noise that 500 rows of a class still have."""
    at_rest = {"local": "0 epochs", "shared": "1 epoch", "batch_size": 100}
    start = place(
        "flic-class",
        [client(name, (0, 1), dim=k, rows=1000) for name in clients],
        num_classes=2,
        training=at_rest | {"optimiser": {"kind": "sgd", "learning_rate": 0.2}},
        anchors={"covariance": covariance, "variance": 2.0},
        alignment={"weight": 1.0, "calibration_weight": 0.0},
        embedding={"latent_dim": k, "hidden": []},
    )
    weight = start.stack.private["embedding.0.weight"]
    own = {  # φ(x) = x; features are padded
        "embedding.0.weight": torch.eye(*weight.shape[1:]).to(weight).expand_as(weight),
        "embedding.0.bias": torch.zeros(len(clients), k).to(weight),
    }
    start = replace(start, stack=replace(start.stack, private={**start.stack.private, **own}))
    for _ in range(5):
        start = start.after(start.do("update"))
    for c in range(2):
        traces = [
            start.latent(i)[own.train.y == c].var(0, correction=0).sum()
            for i, own in enumerate(start.data.clients)
        ]
        found = start.server.shared[f"anchor.{c}.factor"].square().sum()
        torch.testing.assert_close(found, torch.stack(traces).mean(), rtol=0.01, atol=0)
