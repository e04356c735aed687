"""Limits of a client's uploads: no more numbers than its rows can hide in, and why that matters."""

from dataclasses import replace

import pytest
import torch

from flic.data.client_data import ClientData, FederatedData, Split
from flic.data.schema import FeatureSchema, SharedFeatures
from flic.data.task import Classification
from flic.engine.engine import Engine, Job
from flic.method_settings import MethodSettings
from flic.methods.linked.agreement import DETAILS, Agreement, columns_of
from flic.methods.linked.client_sums import ClientSums, apply_map, sent_sums
from flic.methods.linked.disclosure import (
    DisclosedRows,
    ValuesOfMap,
    numbers_told,
    told_detail,
    told_of_map,
    within,
)
from flic.methods.linked.hiding import Usual
from flic.methods.linked.sums import SENT, ColumnIndex, Layout, Moments
from flic.methods.linked.told_along import RowsInSums, along_as_sent
from flic.methods.linked.tuning import tuning_of
from flic.methods.protocol import ServerState

CLASSES, SPACE = 2, "ward"


def silo(rows, columns, seed=0):
    """A table of columns that vary together, in units of everyone."""
    rng = torch.Generator().manual_seed(seed)
    y = torch.arange(rows) % CLASSES
    mixing = torch.eye(columns) + 0.4 * torch.randn(columns, columns, generator=rng)
    x = torch.randn(rows, columns, generator=rng) @ mixing + 0.8 * y[:, None]
    x = (x - x.mean(0)) / x.std(0)
    names = tuple(f"f{i}" for i in range(columns))
    nothing = Split(x[:0], y[:0])
    return ClientData(f"silo-{seed}", FeatureSchema(SPACE, names), Split(x, y), nothing, nothing)


def agreed_among(columns, **linked):
    names = tuple(f"f{i}" for i in range(columns))
    settings = MethodSettings.model_validate({"linked": linked}).linked
    shared = {SPACE: SharedFeatures(names, (0,) * columns)}
    return Agreement(settings, shared, Classification(CLASSES), 0)


@pytest.mark.parametrize("detail", SENT)
@pytest.mark.parametrize("width", [1, 5])
def test_numbers_are_those_that_are_packed(detail, width):
    y = torch.arange(12) % CLASSES
    x = torch.randn(12, width, generator=torch.Generator().manual_seed(0))
    sums = Moments.of_parts([(x, y)], ColumnIndex(CLASSES, torch.arange(width), width))
    layout, numbers = Layout((0,) * width, CLASSES), ("total", "variance", "cross", "along")
    packed = layout.pack(sums, detail)
    if detail == "directions":
        rows = RowsInSums(lambda: [(x, y)], range(width), Usual.of(x))
        m, held = torch.ones(width, CLASSES - 1).double(), torch.ones(width)
        along = along_as_sent(rows, m, held, num_classes=CLASSES, least=1)
        packed |= layout.pack_along(along)
    assert {*packed} == {*SENT[detail]}
    told = sum(v.numel() for n, v in packed.items() if n in numbers)
    assert told == numbers_told(detail, width=width, classes=CLASSES, directions=CLASSES - 1)


@pytest.mark.parametrize("wanted", SENT)
def test_the_most_that_a_budget_allows_is_told(wanted):
    order = [*SENT]
    for budget in range(60):
        many = {"width": 6, "classes": CLASSES, "directions": CLASSES - 1}
        found = within(float(budget), wanted, **many)
        allowed = order[: order.index(wanted) + 1]
        if wanted == "full":  # what is sent in another round is added to nothing of this one
            allowed.remove("directions")
        told = [d for d in allowed if numbers_told(d, **many) <= budget]
        assert found == (told[-1] if told else None)


def values_of(agreed, client, linked):
    """Values of the first columns, in the client's own units."""
    return ValuesOfMap.of(agreed, client, range(linked), columns_of(agreed, client.train))


@pytest.mark.parametrize("scatter", DETAILS)
@pytest.mark.parametrize(("rows", "columns"), [(10, 30), (40, 12), (300, 6)])
@pytest.mark.parametrize("limit", [0.3, 0.5, 2.0])
def test_all_kinds_of_sums_together_are_within_the_limit(rows, columns, scatter, limit):
    agreed = agreed_among(columns, scatter=scatter, random_features=16, max_numbers_per_value=limit)
    client = silo(rows, columns)
    for linked in range(1, columns + 1):
        mapped = told_of_map(agreed, client, values_of(agreed, client, linked))
        many = {"classes": CLASSES, "directions": CLASSES - 1}
        told = numbers_told(told_detail(agreed, client), width=columns, **many)
        told += numbers_told(mapped, width=16, **many) if mapped else 0
        assert told <= limit * rows * columns
        order = [None, *SENT]
        assert order.index(mapped) <= order.index(DETAILS[scatter]["mapped"])


def test_with_no_limit_everything_that_is_wanted_is_told():
    agreed, client = agreed_among(30), silo(10, 30)
    values = values_of(agreed, client, 1)
    assert (told_detail(agreed, client), told_of_map(agreed, client, values)) == ("full", "full")


def flags(rows, columns, seed=0):
    """A client whose columns are 0 or 1."""
    client = silo(rows, columns, seed)
    rows = Split((client.train.x > 0).float(), client.train.y)
    return replace(client, train=rows)


def test_equal_rows_and_flags_are_less_than_a_value():
    agreed = agreed_among(4, max_numbers_per_value=0.5)
    found = values_of(agreed, flags(3000, 4), 4).by_class
    assert set(found.values()) == {16 * 4 / 8}  # sixteen different rows of four bits
    found = values_of(agreed, silo(3000, 4), 4).by_class
    assert set(found.values()) == {3000 / CLASSES * 4}


def levels(rows, count, seed=0):
    """A client with a column for each of so many levels of one category."""
    client = silo(rows, count, seed)
    own = torch.nn.functional.one_hot(client.train.x.argmax(1), count).float()
    schema = replace(client.schema, sources=(0,) * count)
    return replace(client, train=Split(own, client.train.y), schema=schema)


def test_levels_of_a_category_are_one_column():
    """As columns of their own, 16 levels would be 16 eighths of a value, of half a value in all."""
    agreed = agreed_among(16, max_numbers_per_value=0.5)
    found = values_of(agreed, levels(3000, 16), 16).by_class
    assert set(found.values()) == {16 * 4 / 8}  # sixteen different rows of four bits


def test_values_are_counted_in_units_that_the_map_sees():
    """A unit in which all is cut off makes a flag of a number."""
    agreed, client = agreed_among(4, max_numbers_per_value=0.5), silo(3000, 4)
    rows = columns_of(agreed, client.train).sign()
    found = ValuesOfMap.of(agreed, client, range(4), rows).by_class
    assert set(found.values()) == {16 * 4 / 8}


@pytest.mark.parametrize("made", [silo, flags, levels])
def test_of_columns_that_are_not_known_yet_the_most_values_are_announced(made):
    agreed, client = agreed_among(5, max_numbers_per_value=0.5), made(90, 5)
    for linked, most in enumerate(ValuesOfMap.most(agreed, client), start=1):
        own = values_of(agreed, client, linked)
        assert most.width == own.width == linked
        assert all(most.by_class[c] >= value for c, value in own.by_class.items())


@pytest.mark.slow
def test_likelihoods_are_told_in_steps_of_what_a_row_can_add():
    wide = [silo(30, 6, seed=i) for i in range(3)]
    for least, exact in ((1, True), (5, False)):
        settings = MethodSettings.model_validate(
            {"linked": {"random_features": 8, "min_rows": least}}
        )
        data = FederatedData("wards", Classification(CLASSES), tuple(wide))
        engine = Engine.of("linked", settings, data, seed=0)
        server, names = engine.method.init_server(), tuple(engine.clients.names)
        for round in (-3, -2, -1, 0):
            state = ServerState(round, server.shared)
            updates = engine.do(Job("prepare", state, names, [{}] * 3)).updates
            server = engine.method.aggregate(state, updates)
            cv_scores = [
                entry.value
                for update in updates
                for name, entry in update.entries.items()
                if name.startswith(("scores.own", "scores.linked", "scores.mix"))
            ]
            if round > -2:
                assert cv_scores
            steps = [
                own * 30 / tuning_of(Classification(CLASSES), hides_rows=True).worst
                for own in cv_scores
            ]  # of 30 rows
            is_short = all(torch.allclose(own, own.round(), atol=1e-9) for own in steps)
            assert is_short != exact or not cv_scores


@pytest.mark.parametrize(("rows", "tells"), [(4, False), (12, True)])
def test_likelihoods_of_few_rows_are_not_told(rows, tells):
    settings = MethodSettings.model_validate({"linked": {"random_features": 8, "min_rows": 5}})
    clients = (silo(40, 3, seed=1), silo(rows, 3, seed=2))
    data = FederatedData("wards", Classification(CLASSES), clients)
    engine = Engine.of("linked", settings, data, seed=0)
    server, names = engine.method.init_server(), tuple(engine.clients.names)
    told: set[str] = set()
    for round in (-3, -2, -1, 0):
        state = ServerState(round, server.shared)
        updates = engine.do(Job("prepare", state, names, [{}] * 2)).updates
        server = engine.method.aggregate(state, updates)
        told |= {u.client for u in updates if u.entries}
    assert told == ({"silo-1", "silo-2"} if tells else {"silo-1"})


def test_without_squares_none_are_told_of_unlike_features_either():
    for scatter, told in (("off", False), ("diagonal", True)):
        agreed, client = agreed_among(3, scatter=scatter), silo(40, 3)
        sums = sent_sums(agreed, DisclosedRows.of(agreed, client), told_detail(agreed, client))
        state = {f"moments.{SPACE}.linear.{name}": value for name, value in sums.items()}
        found = ClientSums(agreed, state, client).told_squares(torch.arange(3))
        assert bool(found.scatter.any()) == bool(found.dof.any()) == told


# ---- what a curious operator can do ---------------------------------------------------------


def told_by(agreed, client):
    """Numbers that a client sends beside one other with all of its columns: (linear, mapped)."""
    other = silo(200, client.schema.dim, seed=1)
    layout = agreed.layout(SPACE, "linear")
    both = [
        layout.unpack(sent_sums(agreed, DisclosedRows.of(agreed, c), told_detail(agreed, c)))
        for c in (client, other)
    ]
    sums = layout.pack(both[0] + both[1], "full")
    state = {f"moments.{SPACE}.linear.{n}": v for n, v in sums.items()}
    pools = [ClientSums(agreed, state, c) for c in (client, other)]
    mapped = [pool.sent_at_first("mapped") for pool in pools]
    added = {n: v + mapped[1][n] for n, v in mapped[0].items() if n in mapped[1]}
    pool = ClientSums(
        agreed, {**state, **{f"moments.{SPACE}.mapped.{n}": v for n, v in added.items()}}, client
    )
    return pool.sent("linear"), pool.sent("mapped"), pool


def attacked(client, agreed):
    """Rows of the right labels whose sums are as near as possible to those that were told."""
    linear, mapped, pool = told_by(agreed, client)
    y, directions, offsets = client.train.y, *pool.random_map

    def off(rows, told, kind):
        if not told:
            return torch.zeros(()).double()
        onto = torch.nn.functional.one_hot(y, CLASSES).double().mT
        total = onto @ rows
        residuals = rows - (total / onto.sum(1, keepdim=True))[y]
        scatter, upper = residuals.mT @ residuals, torch.triu_indices(*[rows.shape[1]] * 2, 1)
        made = {"total": total, "variance": scatter.diagonal(), "cross": scatter[*upper]}
        weight = {"total": 1.0, "variance": 1 / rows.shape[1], "cross": 2 / rows.shape[1]}
        if "along" in told:
            everyone = agreed.everyone(pool.state, SPACE, kind)
            made["along"] = residuals.mT @ (residuals @ everyone.directions)
            weight["along"] = float(everyone.sums.dof.max()) / rows.shape[1]
        misses = [weight[n] * (made[n] - v).square().sum() for n, v in told.items() if n in made]
        return torch.stack(misses).sum() / len(rows) ** 2

    best = (float("inf"), None)
    for start in range(3):
        rng = torch.Generator().manual_seed(start)
        x = torch.randn(client.train.x.shape, generator=rng).double().requires_grad_()
        descent = torch.optim.LBFGS(
            [x], max_iter=300, history_size=30, line_search_fn="strong_wolfe",
            tolerance_grad=1e-12, tolerance_change=1e-14,
        )  # fmt: skip

        def miss(x=x, descent=descent):
            descent.zero_grad()
            z = pool.scaled(x)
            missed = off(x, linear, "linear")
            missed = missed + off(apply_map(z, directions, offsets), mapped, "mapped")
            missed.backward()
            return missed

        descent.step(miss)
        best = min(best, (miss().item(), x.detach()), key=lambda pair: pair[0])
    return best[1]


def error(client, rows):
    """Median distance of true rows to the nearest guess of their class, in deviations."""
    distance = torch.cdist(client.train.x.double(), rows) / client.schema.dim**0.5
    return float(distance.min(1).values.median())


@pytest.mark.slow
def test_rows_can_be_solved_for_from_more_numbers_than_they_have_values():
    client = silo(16, 5)
    assert error(client, attacked(client, agreed_among(5, random_features=512))) < 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("random_features", [8, 128])
@pytest.mark.parametrize("scatter", ["full", "directions"])
def test_rows_cannot_be_solved_for_within_the_usual_limit(random_features, scatter):
    client = silo(24, 5)
    agreed = agreed_among(
        5, random_features=random_features, scatter=scatter, max_numbers_per_value=0.5
    )
    chance = error(client, silo(24, 5, seed=7).train.x.double())
    assert error(client, attacked(client, agreed)) > 0.7 * chance > 0.2


@pytest.mark.slow
def test_from_sums_along_directions_rows_follow_only_beyond_the_limit():
    client = silo(16, 5)
    chance = error(client, silo(16, 5, seed=7).train.x.double())
    errors = {}
    for limit in (0.25, 0.5, 1.0, None):
        agreed = agreed_among(
            5, random_features=256, scatter="directions", max_numbers_per_value=limit
        )
        errors[limit] = error(client, attacked(client, agreed))
    assert errors.pop(None) < 0.02
    assert min(errors.values()) > 0.7 * chance > 0.2
