"""Sums along directions: what they give is the pooled covariance where it matters, and no row."""

from dataclasses import replace
from itertools import combinations

import pytest
import torch

from flic.data.client_data import ClientData, FederatedData, Split
from flic.data.schema import FeatureSchema
from flic.data.task import Classification
from flic.engine.engine import Engine, Job
from flic.method_settings import MethodSettings
from flic.methods.linked.agreement import DETAILS, KEPT, least_of
from flic.methods.linked.along import Along, directions_between
from flic.methods.linked.hiding import Usual
from flic.methods.linked.linked_client import LinkedClient
from flic.methods.linked.sums import CHUNK_ROWS, ColumnIndex, Moments
from flic.methods.linked.told_along import RowsInSums, along_as_sent
from flic.methods.protocol import ServerState

CLASSES = 4


def rows_of(seed, rows=60, columns=9, classes=CLASSES):
    """Rows that vary together, in units of about one."""
    rng = torch.Generator().manual_seed(seed)
    y = torch.arange(rows) % classes
    mixing = torch.eye(columns) + 0.5 * torch.randn(columns, columns, generator=rng)
    centres = torch.randn(classes, columns, generator=torch.Generator().manual_seed(99))
    return torch.randn(rows, columns, generator=rng).double() @ mixing.double() + centres[y], y


def moments_of(x, y, classes=CLASSES):
    return Moments.of_parts([(x, y)], ColumnIndex(classes, torch.arange(x.shape[1]), x.shape[1]))


def along_of(x, y, m, least=1, pooled=None, sources=None):
    rows = RowsInSums(lambda: [(x, y)], sources or range(x.shape[1]), Usual.of(x))
    held = torch.ones(len(m)).double() if pooled is None else pooled
    return along_as_sent(rows, m, held, num_classes=CLASSES, least=least)


def added(parts):
    return Along(*(sum(own) for own in zip(*(p.parts for p in parts), strict=True)))


def directions_of(sums):
    return directions_between(
        sums.total / sums.count.clamp_min(1), sums.deviation, sums.dof.diagonal()
    )


# ---- laws ------------------------------------------------------------------------------------


def test_sums_along_directions_are_products_with_the_scatter():
    x, y = rows_of(0, rows=2 * CHUNK_ROWS + 5, columns=3)
    sums = moments_of(x, y)
    m = directions_of(sums)
    found = along_of(x, y, m)
    torch.testing.assert_close(found.along, sums.scatter @ m)
    torch.testing.assert_close(found.core, m.mT @ sums.scatter @ m)
    assert (found.behind == len(x) - CLASSES).all()


def test_the_covariance_is_exact_along_the_directions_and_in_its_diagonal():
    clients = [rows_of(seed) for seed in range(4)]
    sums = [moments_of(*own) for own in clients]
    whole = sums[0] + sums[1] + sums[2] + sums[3]
    m = directions_of(whole)
    pooled = whole.dof.diagonal()
    along = added([along_of(*own, m, pooled=pooled) for own in clients])
    assert along.together == pytest.approx(1.0)
    covariance, ones = whole.covariance, torch.ones(9).double()
    factor = along.factor(covariance.diagonal(), ones)
    assert factor.shape == (CLASSES - 1, 9)
    torch.testing.assert_close(factor.mT @ factor @ m, covariance @ m)
    rest = covariance - factor.mT @ factor
    assert float(torch.linalg.eigvalsh(rest).min()) > -1e-9  # nothing is counted twice


def test_with_as_many_directions_as_columns_it_is_the_whole_covariance():
    x, y = rows_of(3, columns=3)
    sums = moments_of(x, y)
    factor = along_of(x, y, directions_of(sums)).factor(
        sums.covariance.diagonal(), torch.ones(3).double()
    )
    torch.testing.assert_close(factor.mT @ factor, sums.covariance)


def test_the_factor_is_in_any_units():
    x, y = rows_of(4)
    sums, scale = moments_of(x, y), torch.logspace(-6, 6, 9).double()
    own, other = moments_of(x, y), moments_of(x * scale, y)
    usual = along_of(x, y, directions_of(own)).factor(sums.covariance.diagonal(), torch.ones(9))
    found = along_of(x * scale, y, directions_of(other)).factor(sums.covariance.diagonal(), scale)
    torch.testing.assert_close(found.mT @ found, usual.mT @ usual)


def test_clients_without_some_columns_are_allowed_for():
    """Entries of zero-filled sums are too small by the share of rows that have both columns."""
    x, y = rows_of(5, rows=8000, columns=6)
    halves = [*combinations(range(6), 3)]
    held, y = [torch.tensor(own) for own in halves], torch.arange(8000) // 20 % CLASSES
    parts = [(x[i::20], y[i::20]) for i in range(20)]
    spread = [
        moments_of(own[:, at], c).spread(at, 6) for (own, c), at in zip(parts, held, strict=True)
    ]
    whole = sum(spread[1:], start=spread[0])
    m, pooled = directions_of(whole), whole.dof.diagonal()
    along = added(
        [
            along_of(own[:, at], c, m[at], pooled=pooled[at]).spread(at, 6)
            for (own, c), at in zip(parts, held, strict=True)
        ]
    )
    both = whole.dof / (pooled[:, None] * pooled).sqrt()
    off = ~torch.eye(6, dtype=torch.bool)
    assert along.together == pytest.approx(float(both[off].mean()))
    assert along.together == pytest.approx(0.4)
    factor = along.factor(whole.covariance.diagonal(), torch.ones(6))
    exact, usual = moments_of(x, y).covariance @ m, torch.diag(whole.covariance.diagonal()) @ m
    diagonal = (whole.covariance.diagonal() - factor.square().sum(0)).diag()
    found = (factor.mT @ factor + diagonal) @ m
    assert float((found - exact).norm()) < 0.5 * float((usual - exact).norm())


def test_a_class_without_rows_and_equal_means_give_no_direction():
    scale, rows = torch.ones(3).double(), torch.tensor([5.0, 5.0, 0.0]).double()
    found = directions_between(torch.ones(CLASSES, 3).double(), scale, rows)
    assert not found.any()
    nothing = Along(*(torch.zeros(s).double() for s in ((3, 3), (3,), (3, 3), (2,))))
    assert nothing.factor(scale, scale).shape == (0, 3)
    means = torch.arange(12.0).view(4, 3).double()
    assert not directions_between(means, scale, rows)[2].any()  # a column that nobody told


# ---- hiding ----------------------------------------------------------------------------------


def test_a_row_that_stands_out_along_the_directions_is_left_out():
    x, y = rows_of(6, rows=200)
    m = directions_of(moments_of(x, y))
    lone = x.clone()
    lone[0] += 1e3 * m[:, 0] / m.abs().max()
    found, without = along_of(lone, y, m, least=5), along_of(lone[1:], y[1:], m, least=5)
    assert float(found.behind[0]) == len(x) - 1 - CLASSES
    assert torch.equal(found.along, without.along)


def test_of_few_rows_nothing_is_told_along_directions():
    for rows in (8, 16):  # 4 rows of a class are 1/4 of it each
        x, y = rows_of(7, rows=rows)
        assert along_of(x, y, directions_of(moments_of(x, y)), least=5) is None


def test_no_row_moves_a_sum_by_more_than_a_step():
    x, y = rows_of(8, rows=400)
    m = directions_of(moments_of(x, y))
    found, exact = along_of(x, y, m, least=5), along_of(x, y, m)
    off = (found.along - exact.along).abs()
    largest = torch.stack(
        [
            ((x - moments_of(x, y).total[y] / 100) * w[:, None]).abs().amax(0)
            for w in ((x - moments_of(x, y).total[y] / 100) @ m).mT
        ]
    ).mT
    assert bool((off > 0).any())
    steps = (found.along / largest.log2().ceil().exp2() * 2).round(decimals=9)
    assert bool((steps == steps.round()).all())


def test_a_column_that_is_rarely_unusual_together_with_a_direction_has_no_products():
    x, y = rows_of(9, rows=400, columns=3)
    x = torch.cat([x, torch.zeros(400, 2).double()], 1)
    x[:100, 3] = 1.0  # a level, and another one that three of its rows have
    x[97:200, 4] = 1.0
    m = torch.zeros(5, CLASSES - 1).double()
    m[3, 0], m[0, 1], m[1, 2] = 1.0, 1.0, 1.0
    assert not along_of(x, y, m, least=5).along[4].any()
    assert along_of(x, y, m, least=3).along[4].any()
    both = along_of(x, y, m, least=5, sources=(0, 1, 2, 3, 3))
    assert not both.along[3:].any()  # levels of one column go together


# ---- clients ---------------------------------------------------------------------------------


def federation(scatter, least=1, seed=0, count=6):
    clients = []
    for i in range(count):
        x, y = rows_of(10 * seed + i, rows=40)
        own = Split(x.float(), y)
        names = tuple(f"f{j}" for j in range(9))
        clients.append(ClientData(f"c{i}", FeatureSchema("ward", names), own, own.take(y < 0), own))
    settings = {"linked": {"random_features": 8, "scatter": scatter, "min_rows": least}}
    data = FederatedData("wards", Classification(CLASSES), tuple(clients))
    engine = Engine.of("linked", MethodSettings.model_validate(settings), data, seed=0)
    return engine, clients


def learnt(engine):
    server, names = engine.method.init_server(), tuple(engine.clients.names)
    for round in (-3, -2, -1, 0):
        server = replace(server, round=round)
        updates = engine.do(Job("prepare", server, names, [{}] * len(names))).updates
        server = engine.method.aggregate(server, updates)
    return server


def test_a_client_takes_its_own_part_out_of_both_kinds_of_sums():
    engine, clients = federation("directions")
    server = learnt(engine)
    own = LinkedClient(engine.method.agreed, server.shared, clients[0])
    others, _ = federation("directions")
    names = [c.name for c in clients[1:]]
    for kind, round in (("linear", -2), ("mapped", -1)):
        state = ServerState(round, server.shared)
        told = others.do(Job("prepare", state, tuple(names), [{}] * len(names))).updates
        key = f"moments.ward.{kind}.along"
        rest = sum(update.entries[key].value for update in told)
        taken = server.shared[key] - own.pool.sent(kind)["along"]
        torch.testing.assert_close(taken, rest)


def test_sums_that_a_client_keeps_do_not_turn_the_directions():
    """What it alone adds is a class that the others know nothing of."""
    engine, _ = federation("directions")
    agreed, shared = engine.method.agreed, dict(learnt(engine).shared)
    usual = agreed.everyone(shared, "ward", "linear").directions
    kept = {f"moments.ward.linear.{n}": shared[f"moments.ward.linear.{n}"] for n in ("count",)}
    kept |= {"moments.ward.linear.total": 3 * shared["moments.ward.linear.total"] + 1}
    whole = {**shared, **{n: shared[n] + v for n, v in kept.items()}}
    whole |= {KEPT + n: v for n, v in kept.items()}
    found = agreed.everyone(whole, "ward", "linear").directions
    torch.testing.assert_close(found, usual)


@pytest.mark.parametrize("own", DETAILS)
@pytest.mark.parametrize("agreed", DETAILS)
def test_nobody_sends_more_than_it_wants_or_than_was_agreed(agreed, own):
    found, order = least_of(agreed, own), {"off": 0, "diagonal": 1}
    assert order.get(found, 2) <= min(order.get(agreed, 2), order.get(own, 2))
    assert found in {"off", "diagonal", agreed, own}
    if "directions" in (agreed, own):  # products of other kinds do not add up
        assert found not in {"projected", "full"}
    if agreed == own:
        assert found == agreed
