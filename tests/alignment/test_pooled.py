"""Pooled statistics against plain computations on the rows themselves."""

import math

import pytest
import torch

from flic.alignment.pooled import Base, Moments, Own, Shrinkage, discriminants

CLASSES = 3


def client(seed, rows=40, width=6, offset=0.0):
    rng = torch.Generator().manual_seed(seed)
    y = torch.randint(0, CLASSES, (rows,), generator=rng)
    x = torch.randn(rows, width, generator=rng, dtype=torch.float64) * 3 + y[:, None] + offset
    return x, y


def moments(x, y, places=None, width=None):
    places = torch.arange(x.shape[1]) if places is None else places
    width = width or x.shape[1]
    return Moments.of(x, y, num_classes=CLASSES, places=places, width=width)


def within(x, y):
    """Scatter around class means, class by class."""
    parts = [x[y == c] - x[y == c].mean(0) for c in y.unique()]
    return sum(part.mT @ part for part in parts)


def test_sums_of_clients_are_the_plain_pooled_ones():
    clients = [client(seed, rows=20 + seed) for seed in range(4)]
    pooled = sum((moments(*c) for c in clients[1:]), moments(*clients[0]))
    x, y = (torch.cat(parts) for parts in zip(*clients, strict=True))
    for c in range(CLASSES):
        torch.testing.assert_close(pooled.total[c], x[y == c].sum(0), rtol=0, atol=1e-8)
        assert (pooled.count[c] == (y == c).sum()).all()
    scatter = sum(within(*c) for c in clients)
    torch.testing.assert_close(pooled.scatter, scatter, rtol=0, atol=1e-8)
    dof = sum(len(y) - len(y.unique()) for _, y in clients)
    assert (pooled.dof == dof).all()


def test_what_a_client_sent_can_be_taken_out_again():
    mine, others = moments(*client(0)), moments(*client(1))
    back = (mine + others) - mine
    for got, expected in zip(back.parts, others.parts, strict=True):
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-9)


def test_features_that_a_client_lacks_are_pooled_among_their_holders():
    (x1, y1), (x2, y2) = client(1, width=2), client(2, width=2)
    places = [torch.tensor([0, 1]), torch.tensor([1, 2])]
    pooled = moments(x1, y1, places[0], 3) + moments(x2, y2, places[1], 3)
    assert (pooled.count.sum(0) == torch.tensor([40.0, 80.0, 40.0])).all()
    middle = within(x1, y1)[1, 1] + within(x2, y2)[0, 0]
    assert pooled.scatter[1, 1].item() == pytest.approx(middle.item(), abs=1e-8)
    assert pooled.covariance[0, 2] == 0  # no one has both


def test_scaled_sums_are_the_sums_of_scaled_rows():
    x, y = client(3, offset=1e6)
    sums = moments(x, y)
    shift, scale = sums.mean, sums.deviation
    direct = moments((x - shift) / scale, y)
    for got, expected in zip(sums.scaled(shift, scale).parts, direct.parts, strict=True):
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-6)


SETTINGS = {
    "both": Shrinkage(8.0, 30.0, 0.1),
    "others alone": Shrinkage(math.inf, math.inf, 0.3),
    "own alone": Shrinkage(0.0, 0.0, 0.5),
    "hardly shrunk": Shrinkage(2.0, 1e6, 1e-6),
}


def plain(own_rows, slot, others, rows, s, covariance):
    """The same scores with the matrix written out and solved."""
    counts = torch.bincount(slot, minlength=CLASSES).double()
    own = torch.stack([own_rows[slot == c].mean(0) for c in range(CLASSES)])
    t = others.count * s.mean_weight / (others.count + s.mean_weight)
    t = others.count if math.isinf(s.mean_weight) else t
    mean = others.total / others.count
    m = (counts[:, None] * own + t * mean) / (counts[:, None] + t)
    spread, dof = within(own_rows, slot), len(slot) - CLASSES
    if math.isinf(s.scatter_weight):
        a = covariance
    else:
        a = (spread + s.scatter_weight * covariance) / (dof + s.scatter_weight)
    p = len(a)
    a = (1 - s.ridge) * a + s.ridge * a.trace() / p * torch.eye(p, dtype=torch.float64)
    solved = torch.linalg.solve(a, m.mT)
    prior = ((counts + 1) / (len(slot) + CLASSES)).log()
    return rows @ solved - (m * solved.mT).sum(1) / 2 + prior


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("width", [4, 60])  # below and above the number of rows
def test_scores_are_those_of_the_matrix_written_out(name, width):
    x, y = client(5, rows=30, width=width)
    others = moments(*client(6, rows=200, width=width))
    rows = client(7, rows=9, width=width)[0]
    own, s = Own.of(x, y, CLASSES), SETTINGS[name]
    base = Base.of(others.covariance)
    [got] = discriminants(own, base, others, torch.arange(CLASSES), rows, [s])
    expected = plain(x, y, others, rows, s, others.covariance)
    torch.testing.assert_close(got, expected, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("spoil", ["constant", "repeated", "huge", "tiny"])
def test_hard_features_give_finite_scores(spoil):
    x, y = client(8, rows=25, width=5)
    x[:, 0] = {
        "constant": 7.0,
        "repeated": x[:, 1],
        "huge": x[:, 0] * 1e12,
        "tiny": x[:, 0] * 1e-12,
    }[spoil]
    sums = moments(x, y)
    scaled, h = sums.scaled(sums.mean, sums.deviation), (x - sums.mean) / sums.deviation
    own, base = Own.of(h, y, CLASSES), Base.of(scaled.covariance)
    for scores in discriminants(
        own, base, scaled, torch.arange(CLASSES), h, list(SETTINGS.values())
    ):
        assert torch.isfinite(scores).all()


def test_a_covariance_pooled_in_pieces_is_made_positive():
    pieces = torch.tensor([[1.0, 0.9, -0.9], [0.9, 1.0, 0.9], [-0.9, 0.9, 1.0]]).double()
    assert torch.linalg.eigvalsh(pieces).min() < 0
    assert (Base.of(pieces).variances >= 0).all()
