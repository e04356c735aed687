"""How a run is carried out changes no bit of what it finds."""

import pytest
import torch
from telling import METHODS_ON_BOTH, NETWORKS_ON_BOTH, ON_RESPONSES

UNEVEN = {
    "embedding": {"latent_dim": 5, "hidden": [7]},
    "model": {"hidden_dim": 3},
}


@pytest.mark.parametrize("method", METHODS_ON_BOTH)
def test_same_seed_same_result(run, method):
    run(method).assert_equals(run(method))


@pytest.mark.parametrize("method", NETWORKS_ON_BOTH)
def test_other_seed_other_result(run, method):
    with pytest.raises(AssertionError):
        run(method).assert_equals(run(method, seed=1))


@pytest.mark.parametrize("stack_width", [1, 2])
@pytest.mark.parametrize("method", NETWORKS_ON_BOTH)
def test_stack_width_changes_no_bit(run, method, stack_width):
    run(method).assert_equals(run(method, stack_width=stack_width))


@pytest.mark.parametrize("method", NETWORKS_ON_BOTH)
def test_stack_width_changes_no_bit_of_uneven_layers(run, method):
    """Fused Adam rounds the last elements of a tensor in its own way."""
    run(method, **UNEVEN).assert_equals(run(method, stack_width=1, **UNEVEN))


@pytest.mark.parametrize("method", ["local" + ON_RESPONSES, "flic-hl" + ON_RESPONSES])
def test_stack_width_changes_no_bit_of_a_single_output(run, method):
    """At full width, a batched product with one column rounds by the number of clients."""
    wide = {"embedding": {"latent_dim": 64, "hidden": [64]}, "model": {"hidden_dim": 64}}
    run(method, **wide).assert_equals(run(method, stack_width=1, **wide))


@pytest.mark.parametrize("method", NETWORKS_ON_BOTH)
def test_stack_width_in_double_precision(run, method):
    double = {"dtype": torch.float64, **UNEVEN}
    run(method, **double).assert_equals(run(method, stack_width=1, **double), atol=1e-10)


@pytest.mark.parametrize("method", METHODS_ON_BOTH)
def test_order_of_the_clients_does_not_matter(run, federation, method):
    turned = federation(order=[3, 2, 4, 0, 1], responses=method.endswith(ON_RESPONSES))
    run(method).assert_equals(run(method, turned))


@pytest.mark.slow
@pytest.mark.parametrize("method", ["within-space", "flic-hl" + ON_RESPONSES])
def test_worker_processes_change_no_bit(run, method):
    run(method).assert_equals(run(method, workers=2))


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
