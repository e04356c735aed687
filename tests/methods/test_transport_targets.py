"""The alignment term against W2² of eq:W2_Gauss, class by class, in value and gradient."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from flic.data.batches import Batch, BatchPlan
from flic.data.client_data import ClientData, Split
from flic.data.schema import FeatureSchema
from flic.data.stacked import StackedData
from flic.data.task import Classification
from flic.gaussians import Gaussian, wasserstein2_sq
from flic.method_settings import Duration
from flic.methods.flic import targets as transport
from flic.methods.flic.targets import Target, alignment_loss, transport_targets
from flic.seeding import generator

K, SLOTS = 5, 3

# Rows of each class per client. Small: one masked Gram matrix (up to 16 rows). Large: blocks in
# groups, more and fewer rows than dimensions. Both: single rows, unused slots, padded rows.
SMALL = [{0: 4, 2: 7, 3: 1}, {1: 2, 4: 5}, {2: 1}]
LARGE = [{0: 20, 2: 9, 3: 1}, {1: 3, 4: 12}, {2: 1}]


def normal(*shape: int, seed: str = "") -> Tensor:
    return torch.randn(shape, generator=generator(0, seed, *shape), dtype=torch.float64)


def plan_of(holdings: list[dict[int, int]], *, size: int) -> BatchPlan:
    clients = []
    for i, rows in enumerate(holdings):
        y = torch.cat([torch.full((n,), c) for c, n in rows.items()])
        split = Split(torch.ones(len(y), 1), y)
        schema = FeatureSchema("", ("x",))
        clients.append(ClientData(str(i), schema, split, Split.empty(1), split))
    sizes = {"task": Classification(5), "width": 1, "slots": SLOTS, "longest": 99}
    data = StackedData.of(clients, dtype=torch.float64, **sizes)
    rngs = [generator(0, client.name) for client in clients]
    return BatchPlan(data, Duration(epochs=1), batch_size=size, rngs=rngs)


def whole(holdings: list[dict[int, int]], size: int) -> Batch:
    return plan_of(holdings, size=size).batch(0)


def part(size: int) -> Batch:
    """First batch of an epoch that lacks a class of its first client."""
    plan = plan_of(LARGE, size=size)
    batches = (plan.batch(step) for step in range(len(plan)))
    return next(batch for batch in batches if (batch.counts[0] == 0).any())


BATCHES = {
    "small": lambda: whole(SMALL, 15),
    "large": lambda: whole(LARGE, 40),
    "small part": lambda: part(9),
    "large part": lambda: part(20),
}


@pytest.fixture(params=BATCHES)
def batch(request) -> Batch:
    return BATCHES[request.param]()


def latent_of(batch: Batch) -> Tensor:
    """Embedded rows; those of padding are not zero, since φ has biases."""
    return normal(*batch.x.shape[:2], K, seed="latent").requires_grad_()


def factor_of(covariance: str, clients: int) -> Tensor:
    if covariance == "identity":
        return torch.ones(clients, SLOTS, K, dtype=torch.float64)
    if covariance == "diagonal":
        return normal(clients, SLOTS, K, seed="factor").requires_grad_()
    return normal(clients, SLOTS, K, K, seed="factor").requires_grad_()


def textbook(latent: Tensor, batch: Batch, anchors: Gaussian) -> Tensor:
    """Σ_c W2² of each client, one class after another."""
    totals = []
    for i, counts in enumerate(batch.counts):
        total = latent.new_zeros(())
        for s in counts.nonzero().flatten():
            rows = latent[i, batch.member[i, :, s] > 0]
            total = total + wasserstein2_sq(anchors[i, int(s)], Gaussian.from_samples(rows))
        totals.append(total)
    return torch.stack(totals)


def assert_same(got: Tensor, expected: Tensor, *inputs: Tensor, tolerance: float = 1e-9) -> None:
    """Equal values and equal gradients in all inputs."""
    weights = torch.arange(1.0, len(got) + 1).double()  # tells one client's gradient from another's
    values = (got, *torch.autograd.grad((weights * got).sum(), inputs))
    oracle = (expected, *torch.autograd.grad((weights * expected).sum(), inputs))
    for a, b in zip(values, oracle, strict=True):
        torch.testing.assert_close(a, b, atol=tolerance, rtol=tolerance)


def aligned(latent: Tensor, batch: Batch, target: Target) -> Tensor:
    return alignment_loss(latent, batch, transport_targets(latent, batch, target))


@pytest.mark.parametrize("eps", [0.0, 0.1])
@pytest.mark.parametrize("covariance", ["identity", "diagonal", "full"])
def test_alignment_is_the_textbook_distance(batch, covariance, eps):
    latent, clients = latent_of(batch), len(batch.x)
    mean = normal(clients, SLOTS, K, seed="mean").requires_grad_()
    factor = factor_of(covariance, clients)
    anchors = Gaussian(mean, factor, eps)
    inputs = [t for t in (latent, mean, factor) if t.requires_grad]
    got = aligned(latent, batch, Target.of(anchors))
    assert_same(got, textbook(latent, batch, anchors), *inputs)


def test_alignment_with_samples_is_the_distance_between_empirical_gaussians(batch):
    latent, rows = latent_of(batch), batch.x.shape[1]
    samples = normal(len(batch.x), SLOTS, rows, K, seed="samples").requires_grad_()
    used = (torch.arange(rows) < batch.counts[..., None]).double()
    empirical = Gaussian.from_samples(samples, used)  # as many samples as the class has rows
    got = aligned(latent, batch, Target.of_samples(samples, batch.counts))
    assert_same(got, textbook(latent, batch, empirical), latent, samples)


@pytest.mark.parametrize("covariance", ["identity", "diagonal", "full"])
def test_both_ways_to_the_polar_factor_agree(monkeypatch, covariance):
    batch = whole(LARGE, 40)
    latent = latent_of(batch)
    mean = normal(3, SLOTS, K, seed="mean").requires_grad_()
    target = Target.of(Gaussian(mean, factor_of(covariance, 3)))
    grouped = aligned(latent, batch, target)
    monkeypatch.setattr(transport, "polar_gram", None)  # must not be asked again
    at_once = aligned(latent, replace(batch, is_small=True), target)
    assert_same(at_once, grouped, latent, mean)


def test_float32_keeps_to_the_distance(batch):
    latent = latent_of(batch).detach()
    anchors = Gaussian.isotropic(normal(len(batch.x), SLOTS, K, seed="mean"))
    single = Target.of(Gaussian.isotropic(anchors.mean.float()))
    parts = {name: getattr(batch, name).float() for name in ("x", "member", "mass")}
    narrow = replace(batch, **parts)
    got = aligned(latent.float(), narrow, single)
    expected = textbook(latent, batch, anchors).float()
    torch.testing.assert_close(got, expected, atol=0, rtol=1e-5)


def test_images_of_many_rows_have_the_moments_of_the_anchor():
    batch = whole([{0: 30, 1: 20}], 50)
    anchors = Gaussian(normal(1, SLOTS, K), normal(1, SLOTS, K, K))
    targets = transport_targets(latent_of(batch).detach(), batch, Target.of(anchors))
    for s, n in enumerate([30, 20]):
        image = Gaussian.from_samples(targets.rows[0, batch.member[0, :, s] > 0])
        torch.testing.assert_close(image.mean, anchors.mean[0, s])
        torch.testing.assert_close(image.covariance, anchors.covariance[0, s], rtol=1e-9, atol=1e-9)
        assert n > K
    assert targets.unspanned.abs().max() < 1e-9


@pytest.mark.parametrize("size", [1, 30])
def test_single_row_goes_to_the_mean_and_the_trace_is_left(size):
    batch = whole([{1: 1}], size)
    latent, mean = latent_of(batch), normal(1, SLOTS, K)
    got = aligned(latent, batch, Target.of(Gaussian.isotropic(mean, 4.0)))
    expected = (latent[0, 0] - mean[0, 0]).square().sum() + 4 * K
    assert_same(got, expected[None], latent)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rows_that_all_agree_are_as_one_row(batch, dtype):
    # their mean is not exactly theirs: what centring leaves is rounding and has no direction
    parts = {name: getattr(batch, name).to(dtype) for name in ("x", "member", "mass")}
    batch = replace(batch, **parts)
    row = normal(K, seed="row").to(dtype)
    latent = row.expand(*batch.x.shape[:2], K).contiguous().requires_grad_()
    mean = torch.zeros(len(batch.x), SLOTS, K, dtype=dtype)
    got = aligned(latent, batch, Target.of(Gaussian.isotropic(mean)))
    present = (batch.counts > 0).sum(1).to(dtype)
    torch.testing.assert_close(got, present * (row.square().sum() + K))
    (gradient,) = torch.autograd.grad(got.sum(), latent)
    torch.testing.assert_close(gradient, 2 * batch.mass[..., None] * row.expand_as(latent))


def test_padded_rows_and_absent_classes_change_nothing(batch):
    latent = latent_of(batch)
    mean = normal(len(batch.x), SLOTS, K).requires_grad_()
    got = aligned(latent, batch, Target.of(Gaussian.isotropic(mean)))
    rows, means = torch.autograd.grad(got.sum(), [latent, mean])
    is_padding = batch.member.sum(2) == 0
    assert is_padding.any()
    assert not rows[is_padding].any()
    assert not means[batch.counts == 0].any()
    other = latent.detach().masked_fill(is_padding[..., None], 1e3)
    assert torch.equal(aligned(other, batch, Target.of(Gaussian.isotropic(mean))), got)


def test_images_do_not_carry_gradients_of_the_rows():
    batch = whole(SMALL, 15)
    anchors = Gaussian.isotropic(normal(3, SLOTS, K))
    targets = transport_targets(latent_of(batch), batch, Target.of(anchors))
    assert not targets.rows.requires_grad
    assert not targets.unspanned.requires_grad
