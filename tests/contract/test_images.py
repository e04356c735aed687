"""Images of two sizes and a vector in one federation: the same laws as for vectors alone."""

from functools import partial

import pytest
import torch
from small_federation import DOUBLE, DOUBLE_TOL, NETWORKS

from flic.data.client_data import ClientData, FederatedData, Split
from flic.data.schema import FeatureSchema
from flic.data.task import Classification
from flic.engine.runners import open_jobs
from flic.seeding import generator

SHAPES = [(9, 8), (9, 8), (17, 16), (17, 16), None]
ROWS = [14, 23, 19, 11, 21]


def make_client(i: int) -> ClientData:
    rng = generator(2, "images", i)
    shape = SHAPES[i]
    schema = FeatureSchema("table", tuple("abcdef"))
    if shape is not None:
        schema = FeatureSchema.of_images(f"images-{shape[0]}", *shape)
    y = torch.tensor([i, i + 1])[torch.arange(ROWS[i] + 4) % 2]
    x = torch.randn(len(y), schema.dim, generator=rng) + 0.3 * y[:, None]
    train, test = Split(x[4:], y[4:]), Split(x[:4], y[:4])
    return ClientData(f"client-{i}", schema, train, Split.empty(schema.dim), test)


@pytest.fixture
def images() -> FederatedData:
    clients = tuple(make_client(i) for i in range(len(ROWS)))
    return FederatedData("images", Classification(6), clients).with_validation(0.2, seed=0)


@pytest.mark.slow
@pytest.mark.parametrize("method", NETWORKS)
def test_stack_width_does_not_matter(run, images, method):
    narrow = run(method, images, stack_width=1, **DOUBLE)
    run(method, images, **DOUBLE).assert_agrees(narrow, rtol=DOUBLE_TOL)


@pytest.mark.slow
@pytest.mark.parametrize("method", NETWORKS)
def test_order_of_the_clients_does_not_matter(run, images, method):
    turned = FederatedData("images", images.task, images.clients[::-1])
    run(method, images).assert_equals(run(method, turned))


@pytest.mark.slow
@pytest.mark.process
def test_worker_processes_do_not_matter(run, images):
    shared = run("flic-hl", images, jobs=partial(open_jobs, workers=2), **DOUBLE)
    run("flic-hl", images, **DOUBLE).assert_agrees(shared, rtol=DOUBLE_TOL)


@pytest.mark.slow
@pytest.mark.parametrize("method", NETWORKS)
def test_training_moves_every_private_parameter(run, images, method):
    """Convolutions included: a gradient that never arrives would leave one as it started."""
    before = run(method, images, rounds=0, final=False).states
    after = run(method, images, rounds=3).states
    assert len(before) == len(ROWS)
    for name, start in before.items():
        for parameter, value in start.items():
            assert not torch.equal(value, after[name][parameter]), (name, parameter)


@pytest.mark.slow
def test_within_a_space_the_convolutions_are_shared_and_of_each_space_its_own(run, images):
    shared = run("within-space", images).server.shared
    for space in ("images-9", "images-17"):
        assert shared[f"space.{space}.embedding.conv1.weight"].shape == (32, 1, 5, 5)
    assert "space.table.feature.a" in shared
    assert "space.table.embedding.0.weight" not in shared
