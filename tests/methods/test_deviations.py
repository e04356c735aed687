"""Wrong links are noticed, and hospitals that merely differ are not."""

import pytest
import torch

from flic.methods.linked.deviations import (
    FAR,
    KINDS,
    USUAL,
    Marginals,
    deviations,
    shares_beyond,
    usual_deviations,
)
from flic.methods.linked.sums import ColumnIndex, Moments

CLASSES, FEATURES, SITES = 2, 8, 5
MEANS = torch.tensor([54.0, 131.0, 245.0, 150.0, 1.0, 27.0, 5.5, 70.0]).double()
DEVIATIONS = torch.tensor([9.0, 17.0, 57.0, 25.0, 1.1, 4.0, 1.2, 11.0]).double()


def site(seed, number, rows, apart=0.4):
    """Rows of a hospital whose patients differ from those of the others."""
    rng = torch.Generator().manual_seed(1000 * seed + number)

    def draw(*shape):
        return torch.randn(*shape, generator=rng).double()

    y = (torch.arange(rows) * 7 % 10 < 3 + number).long()
    effect = torch.linspace(-1, 1, FEATURES).double() * y[:, None]
    x = draw(rows, FEATURES) * (0.2 * draw(FEATURES)).exp() + effect
    x = x + apart * draw(FEATURES) + 0.3 * draw(CLASSES, FEATURES)[y]
    return MEANS + DEVIATIONS * x, y


def marginals(x, y):
    """Marginals of a site's rows, in their own units."""
    width = x.shape[1]
    place = ColumnIndex(CLASSES, torch.arange(width), width)
    return Marginals.of(
        Moments.of_parts([(x, y)], place), torch.zeros(width).double(), torch.ones(width).double()
    )


def judged(sites):
    """Deviations of every site from the others, as the federation finds usual."""
    parts = [marginals(x, y) for x, y in sites]
    pairs = []
    for i, own in enumerate(parts):
        rest = [p for j, p in enumerate(parts) if j != i]
        sums = {
            name: sum(getattr(p, name) for p in rest)
            for name in ("count", "total", "squares", "dof")
        }
        pairs.append((own, Marginals(**sums)))
    shares = torch.stack([shares_beyond(*pair) for pair in pairs]).mean(0)
    usual = usual_deviations(shares)
    return torch.stack([deviations(*pair, usual) for pair in pairs])


@pytest.mark.slow
@pytest.mark.parametrize("rows", [14, 40, 400])
def test_hospitals_that_differ_raise_no_alarm(rows):
    alarms = 0
    for seed in range(40):
        alarms += int((judged([site(seed, i, rows) for i in range(SITES)]).abs() > FAR).sum())
    assert alarms == 0  # of 40 federations with 120 comparisons each


def spoilt(seed, rows, change):
    sites = [site(seed, i, rows) for i in range(SITES)]
    x, y = sites[1]
    sites[1] = (change(x.clone()), y)
    return judged(sites)


def in_another_unit(x):
    x[:, 2] /= 38.67  # mmol/l in place of mg/dl
    return x


def swapped(x):
    return x[:, [3, 1, 2, 0, 4, 5, 6, 7]]


@pytest.mark.slow
@pytest.mark.parametrize("rows", [14, 40, 400])
def test_a_wrong_unit_is_found_where_it_is(rows):
    for seed in range(20):
        far = spoilt(seed, rows, in_another_unit).abs().amax(1)  # site, feature
        assert far[1, 2] > FAR
        assert far[:, 2].argmax() == 1
        assert (far[:, [0, 1, 3, 4, 5, 6, 7]] <= FAR).all()


@pytest.mark.slow
@pytest.mark.parametrize("rows", [40, 400])
def test_a_swapped_pair_is_found_where_it_is(rows):
    found = 0
    for seed in range(20):
        far = spoilt(seed, rows, swapped).abs().amax(1)
        named = (far > FAR).nonzero().tolist()
        assert all(feature in (0, 3) for _, feature in named)
        if named:
            assert far[:, [0, 3]].amax(1).argmax() == 1
        found += bool((far[1, [0, 3]] > FAR).any())
    assert found >= 16  # hospitals that happen to differ much hide some


def test_a_factor_of_a_feature_around_zero_is_seen_in_how_it_varies():
    def a_hundredfold(x):
        x[:, 4] = 100 * (x[:, 4] - 1.0)
        return x

    far = spoilt(0, 60, a_hundredfold)
    assert far[1, KINDS.index("scale"), 4] > FAR


def test_without_a_scatter_of_the_others_where_it_lies_is_still_compared():
    (x, y), (other, z) = site(0, 0, 50), site(0, 1, 50)
    own, others = marginals(in_another_unit(x), y), marginals(other, z)
    nothing = torch.zeros(FEATURES).double()
    silent = Marginals(others.count, others.total, nothing, nothing)
    far = deviations(own, silent, USUAL[:, 0])
    assert far[0, 2].abs() > FAR
    assert (far[2] == 0).all()


def test_constants_and_classes_that_one_side_lacks_are_no_alarm():
    (x, y), (other, z) = site(0, 0, 50), site(0, 1, 50)
    x[:, 0], other[:, 0] = 3.0, 3.0
    own = marginals(x[y == 0], y[y == 0])
    far = deviations(own, marginals(other[z == 1], z[z == 1]), USUAL[:, 0])
    assert (far == 0).all()
    far = deviations(marginals(x, y), marginals(other, z), USUAL[:, 0])
    assert torch.isfinite(far).all()
    assert (far[:, 0] == 0).all()
