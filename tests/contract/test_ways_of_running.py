"""Stacks and the order of clients change only roundings; the same run gives the same bits."""

import pytest
import torch
from small_federation import (
    DOUBLE,
    DOUBLE_TOL,
    METHODS_ON_BOTH,
    NETWORKS_ON_BOTH,
    ON_RESPONSES,
    PLAIN_DESCENT,
    SINGLE_TOL,
    run_of,
)

UNEVEN = {"embedding": {"latent_dim": 5, "hidden": [7]}, "model": {"hidden_dim": 3}}
WIDE = {"embedding": {"latent_dim": 64, "hidden": [64]}, "model": {"hidden_dim": 64}}


@pytest.mark.parametrize("method", METHODS_ON_BOTH)
def test_same_seed_same_result(run, method):
    run(method).assert_equals(run_of(method))


@pytest.mark.parametrize("method", NETWORKS_ON_BOTH)
def test_other_seed_other_result(run, method):
    with pytest.raises(AssertionError):
        run(method).assert_equals(run(method, seed=1))


@pytest.mark.parametrize("stack_width", [1, 2])
@pytest.mark.parametrize("method", NETWORKS_ON_BOTH)
def test_stack_width_does_not_matter(run, method, stack_width):
    narrow = run(method, stack_width=stack_width, **DOUBLE)
    run(method, **DOUBLE).assert_agrees(narrow, rtol=DOUBLE_TOL)


@pytest.mark.parametrize("method", NETWORKS_ON_BOTH)
def test_stack_width_does_not_matter_to_uneven_layers(run, method):
    narrow = run(method, stack_width=1, **DOUBLE, **UNEVEN)
    run(method, **DOUBLE, **UNEVEN).assert_agrees(narrow, rtol=DOUBLE_TOL)


@pytest.mark.parametrize("sizes", [UNEVEN, WIDE], ids=["uneven", "wide"])
@pytest.mark.parametrize("method", NETWORKS_ON_BOTH)
def test_stack_width_in_single_precision(run, method, sizes):
    settings = {**sizes, **PLAIN_DESCENT, "rounds": 1}
    run(method, **settings).assert_agrees(run(method, stack_width=1, **settings), rtol=SINGLE_TOL)


@pytest.mark.parametrize("method", METHODS_ON_BOTH)
def test_order_of_the_clients_does_not_matter(run, federation, method):
    turned = federation(order=[3, 2, 4, 0, 1], responses=method.endswith(ON_RESPONSES))
    run(method).assert_equals(run(method, turned))


@pytest.mark.parametrize("method", NETWORKS_ON_BOTH)
def test_a_client_that_was_not_sampled_is_unchanged(run, method):
    before = run(method, rounds=0, final=False)
    after = run(method, rounds=1, final=False)
    active = after.records[1]["active"]
    assert len(active) == 3
    for name, state in after.states.items():
        same = all(torch.equal(state[n], before.states[name][n]) for n in state)
        assert same == (name not in active)


@pytest.mark.parametrize("method", NETWORKS_ON_BOTH)
def test_realignment_reaches_clients_that_were_not_sampled(run, method):
    before = run(method, rounds=0, final=False)
    after = run(method, rounds=1, final=False, alignment={"realign_epochs": 1})
    for name, state in after.states.items():
        assert not all(torch.equal(state[n], before.states[name][n]) for n in state)
