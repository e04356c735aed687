"""Pooled statistics against plain computations on the rows themselves."""

import math

import pytest
import torch

from flic.methods.linked.discriminants import (
    Base,
    Own,
    Shrinkage,
    discriminants,
    regressions,
    scores,
)
from flic.methods.linked.sums import ColumnIndex, Moments

CLASSES = 3


def client(seed, rows=40, width=6, offset=0.0):
    rng = torch.Generator().manual_seed(seed)
    y = torch.randint(0, CLASSES, (rows,), generator=rng)
    x = torch.randn(rows, width, generator=rng, dtype=torch.float64) * 3 + y[:, None] + offset
    return x, y


def moments(x, y, places=None, width=None):
    places = torch.arange(x.shape[1]) if places is None else places
    width = width or x.shape[1]
    return Moments.of_parts([(x, y)], ColumnIndex(CLASSES, places, width))


def class_scores(own, base, others, rows, settings):
    """Scores of rows under several settings."""
    found = discriminants(own, base, others, torch.arange(CLASSES), settings)
    return scores(found, base.turned(rows))


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
    [got] = class_scores(own, base, others, rows, [s])
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
    assert torch.isfinite(class_scores(own, base, scaled, h, list(SETTINGS.values()))).all()


def test_a_covariance_pooled_in_pieces_is_made_positive():
    pieces = torch.tensor([[1.0, 0.9, -0.9], [0.9, 1.0, 0.9], [-0.9, 0.9, 1.0]]).double()
    assert torch.linalg.eigvalsh(pieces).min() < 0
    assert (Base.of(pieces).variances >= 0).all()


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("width", [4, 60])
def test_a_client_s_rows_are_taken_off_in_the_basis_of_all(name, width):
    x, y = client(5, rows=12, width=width)
    others, mine = moments(*client(6, rows=200, width=width)), moments(x, y)
    everyone = others + mine
    variances, basis = torch.linalg.eigh(everyone.scatter)
    own, left = Own.of(x, y, CLASSES), float(others.dof[0, 0])
    residuals = torch.stack([row - x[y == c].mean(0) for row, c in zip(x, y, strict=True)])
    quick = Base(variances / left, basis, less=residuals @ basis / left**0.5)
    rows = client(7, rows=9, width=width)[0]
    found = [
        class_scores(own, base, others, rows, [SETTINGS[name]])[0]
        for base in (quick, Base.of(others.covariance))
    ]
    torch.testing.assert_close(*found, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("name", ["both", "others alone", "hardly shrunk"])
@pytest.mark.parametrize("width", [4, 60])
def test_a_part_of_low_rank_is_a_covariance_like_any_other(name, width):
    x, y = client(5, rows=12, width=width)
    others, rows = moments(*client(6, rows=200, width=width)), client(7, rows=9, width=width)[0]
    factor = torch.randn(3, width, generator=torch.Generator().manual_seed(8)).double()
    rest = torch.linspace(0.1, 2.0, width).double()
    own = Own.of(x, y, CLASSES)
    whole = Base.of(torch.diag(rest) + factor.mT @ factor)
    found = [
        class_scores(own, base, others, rows, [SETTINGS[name]])[0]
        for base in (Base(rest, more=factor), whole)
    ]
    torch.testing.assert_close(*found, rtol=1e-7, atol=1e-7)


def plain_ridge(own_rows, others, rows, s):
    """The same responses with the matrix written out and solved."""
    n, total = others.count[0], others.total[0]
    t = n if math.isinf(s.mean_weight) else n * s.mean_weight / (n + s.mean_weight)
    m = (own_rows.sum(0) + t * total / n) / (len(own_rows) + t)
    spread, dof = within(own_rows, torch.zeros(len(own_rows))), len(own_rows) - 1
    a = others.covariance
    if not math.isinf(s.scatter_weight):
        a = (spread + s.scatter_weight * a) / (dof + s.scatter_weight)
    features, p = a[:-1, :-1], len(a) - 1
    # (1 − γ) A + γ I tr(A) / p, of which a ridge regression divides (1 − γ) out
    ridge = s.ridge / (1 - s.ridge) * features.trace() / p * torch.eye(p).double()
    slope = torch.linalg.solve(features + ridge, a[:-1, -1])
    return m[-1] + (rows - m[:-1]) @ slope


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("width", [4, 60])
def test_responses_are_those_of_the_matrix_written_out(name, width):
    def with_response(seed, rows):
        x, _ = client(seed, rows=rows, width=width)
        noise = torch.randn(rows, generator=torch.Generator().manual_seed(seed)).double()
        return torch.cat([x, (x[:, :2].sum(1) + noise)[:, None]], 1)

    mine, theirs = with_response(5, 30), with_response(6, 200)
    none = torch.zeros(200, dtype=torch.int64)
    others = Moments.of_parts([(theirs, none)], ColumnIndex(1, torch.arange(width + 1), width + 1))
    own = Own.of(mine, none[:30], 1)
    base = Base.of(others.covariance[:-1, :-1])
    rows = client(7, rows=9, width=width)[0]
    [got] = scores(regressions(own, base, others, [SETTINGS[name]]), base.turned(rows))
    expected = plain_ridge(mine, others, rows, SETTINGS[name])
    torch.testing.assert_close(got[:, 0], expected, rtol=1e-7, atol=1e-7)


def test_rows_at_the_end_of_single_precision_do_not_overflow():
    x, y = client(9, rows=40, width=4)
    x[:, 1] *= 1e37
    sums = moments(x, y)
    assert all(torch.isfinite(part).all() for part in (*sums.parts, sums.deviation))
    h = (x - sums.mean) / sums.deviation
    scaled = sums.scaled(sums.mean, sums.deviation)
    torch.testing.assert_close(scaled.covariance.diagonal(), torch.ones(4).double())
    own, base = Own.of(h, y, CLASSES), Base.of(scaled.covariance)
    assert torch.isfinite(class_scores(own, base, scaled, h, [SETTINGS["both"]])).all()


def test_private_features_are_a_block_of_their_own_where_others_decide_alone():
    """At ν = ∞, where others know of no covariance with them: κ = 1 of a sum of two blocks."""
    x, y = client(0)
    theirs, _ = client(1)
    covariance = torch.eye(6).double()
    covariance[:4, :4] = torch.corrcoef(theirs[:, :4].mT)
    held, shrinkage = torch.arange(CLASSES), [Shrinkage(0.0, math.inf, 0.3)]

    def scored(places):
        own = Own.of(x[:, places], y, CLASSES)
        nothing = moments(x[:0, places], y[:0])
        base = Base.of(covariance[places][:, places])
        found = discriminants(own, base, nothing, held, shrinkage)
        return scores(found, base.turned(x[:, places]))[0]

    linked, private = torch.arange(4), torch.arange(4, 6)
    counts = torch.bincount(y, minlength=CLASSES) + 1
    prior = (counts.double() / counts.sum()).log()  # is in both blocks, and counts once
    both = scored(linked) + scored(private) - prior
    torch.testing.assert_close(scored(torch.arange(6)), both, rtol=0, atol=1e-10)
