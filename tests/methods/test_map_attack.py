"""Sums of random features beside sums of the features themselves: no row follows from the two.

A random feature 2 relu(w·z + b) is linear in the rows where it is above zero. Where it is so for
all rows of a class but one, its sum less the linear part is that row's, and as many such sums as
there are columns have one solution.
"""

import torch

from flic.data.client_data import ClientData, Split
from flic.data.schema import FeatureSchema, SharedFeatures
from flic.data.task import Classification
from flic.method_settings import MethodSettings
from flic.methods.linked.agreement import Agreement
from flic.methods.linked.client_sums import ClientSums, sent_sums
from flic.methods.linked.disclosure import DisclosedRows, told_detail

COLUMNS, RARE, COMMON, SPACE = 3, 10, 1200, "ward"
NAMES = tuple(f"f{i}" for i in range(COLUMNS))


def silo(seed):
    """Many rows of one class, and few of another."""
    rng = torch.Generator().manual_seed(seed)
    y = (torch.arange(COMMON + RARE) >= COMMON).long()
    x = torch.randn(len(y), COLUMNS, generator=rng) + 0.5 * y[:, None]
    nothing = Split(x[:0], y[:0])
    return ClientData(f"silo-{seed}", FeatureSchema(SPACE, NAMES), Split(x, y), nothing, nothing)


def told(client, **limits):
    """Class sums of the features and of random ones, as far as they leave, and the map."""
    settings = MethodSettings.model_validate({"linked": limits}).linked
    shared = {SPACE: SharedFeatures(NAMES, (0,) * COLUMNS)}
    agreed = Agreement(settings, shared, Classification(2), 0)
    pooled = {}
    for own in (client, silo(1)):
        sums = sent_sums(agreed, DisclosedRows.of(agreed, own), told_detail(agreed, own))
        for name, value in sums.items():
            place = f"moments.{SPACE}.linear.{name}"
            pooled[place] = pooled.get(place, 0) + value
    pool = ClientSums(agreed, pooled, client)
    return pool.sent_totals("linear"), pool.sent_totals("mapped"), pool


def solved(client, **limits):
    """Rows of the rare class that are solutions of more equations than they have values."""
    linear, mapped, pool = told(client, **limits)
    if not mapped:
        return torch.zeros(0, COLUMNS)
    (directions, offsets), count = pool.random_map, linear["count"][1, 0]
    total = (linear["total"][1] - count * pool.shift) / pool.scale
    left = (total @ directions + count * offsets) - mapped["total"][1] / 2  # of rows below zero
    known = ((left < -1e-6) & (mapped["total"][1] > 0)).nonzero().flatten()
    if len(known) <= COLUMNS + 2:
        return torch.zeros(0, COLUMNS)
    # A sum over few rows below zero is small: try those first.
    known = known[left[known].argsort(descending=True)][:60]
    rng = torch.Generator().manual_seed(0)
    choice = torch.rand(20_000, len(known), generator=rng).argsort(1)[:, :COLUMNS]
    a, b = directions.mT[known], left[known] - offsets[known]
    rows = torch.linalg.lstsq(a[choice], b[choice][..., None]).solution[..., 0]
    fits = ((rows @ a.mT - b).abs() < 1e-6).sum(1) >= COLUMNS + 2
    return rows[fits] * pool.scale + pool.shift


def read(client, guesses):
    """Rows of the rare class that are among the guesses."""
    rare = client.train.x[client.train.y == 1].double()
    if not len(guesses):
        return 0
    return int((torch.cdist(rare, guesses.double()).min(1).values < 1e-3).sum())


def test_without_limits_rows_of_a_small_class_are_read():
    client = silo(0)
    assert read(client, solved(client)) >= 1


def test_within_the_usual_limits_none_is_read():
    client = silo(0)
    assert read(client, solved(client, min_rows=5, max_numbers_per_value=0.5)) == 0


def test_each_limit_holds_by_itself():
    client = silo(0)
    _, mapped, _ = told(client, max_numbers_per_value=0.5)
    assert (mapped["count"][1] == 0).all()  # a class with fewer values than numbers
    assert (mapped["count"][0] == COMMON).all()
    assert read(client, solved(client, min_rows=5)) == 0
