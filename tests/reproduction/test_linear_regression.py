"""theorem2 and theorem:1: φ̂ = Qφ*, and dist(A, QA*) falls geometrically to rounding errors."""

from itertools import pairwise

import pytest
import torch

from flic.errors import FederationError, IncompatibleUpdate
from flic.methods.protocol import Entry, Update
from flic.seeding import generator
from flic_paper.linear import flic_fedrep as linreg
from flic_paper.linear.flic_fedrep import EmbeddedRows, principal_angle_distance
from flic_paper.linear.oracle import LinearOracleConfig, make_linear_oracle
from flic_paper.studies.linear_regression import unrotated

F64 = torch.float64
ROWS = 200
ROUNDS = 200
RANK = 2


@pytest.fixture(scope="module")
def oracle():
    return make_linear_oracle(LinearOracleConfig(), seed=0)


def embedded(oracle, maps, purpose="train"):
    drawn = [oracle.draw(c, ROWS, rng=generator(0, purpose, c.name)) for c in oracle.clients]
    return EmbeddedRows(
        names=[c.name for c in oracle.clients],
        features=torch.stack([phi(rows.x) for phi, rows in zip(maps, drawn, strict=True)]),
        y=torch.stack([rows.y for rows in drawn]),
    )


def ours(oracle):
    return [linreg.estimated_embedding(c.moments, oracle.latent_dim) for c in oracle.clients]


def oracles(oracle):
    return [client.embedding for client in oracle.clients]


def all_heads(oracle):
    return oracle.heads_of([client.name for client in oracle.clients])


def train(oracle, maps, *, step_factor=1.0):
    """States of the server with all clients active at the largest step allowed."""
    rows = embedded(oracle, maps)
    step = step_factor * linreg.largest_step(all_heads(oracle))
    return linreg.run(rows, rank=RANK, step_size=step, active=[rows.names] * ROUNDS)


def distances(states, target):
    return [principal_angle_distance(linreg.representation(s), target) for s in states]


def turned(oracle):
    """QA*, Q of theorem2: Ĩ_k is I for φ̂ and diag(signs) for φ*."""
    return oracle.signs[:, None] * oracle.representation


def error(oracle, maps, state):
    rows, test = embedded(oracle, maps), embedded(oracle, maps, "test")
    predicted = linreg.predict(state, linreg.fit_heads(state, rows), test.features)
    return (predicted - test.y).abs().mean()


def test_estimated_features_are_those_of_the_oracle_up_to_signs(oracle):
    # signs of both kinds, else Q = I and nothing is shown
    assert oracle.signs.unique().tolist() == [-1, 1]
    found, truth = (embedded(oracle, maps(oracle)).features for maps in (ours, oracles))
    torch.testing.assert_close(found, oracle.signs * truth, atol=1e-12, rtol=0)


@pytest.mark.slow
def test_distance_falls_geometrically_to_rounding_errors(oracle):
    found = distances(train(oracle, ours(oracle)), turned(oracle))
    assert found[-1] < 1e-12
    above = torch.tensor([d for d in found if d > 1e-12], dtype=F64).log()
    t = torch.arange(len(above), dtype=F64)
    # a straight line in the logarithm: correlation with the round all but −1
    assert torch.corrcoef(torch.stack([t, above]))[0, 1] < -0.999


@pytest.mark.slow
def test_every_round_contracts_at_least_as_the_theorem_says(oracle):
    found = distances(train(oracle, ours(oracle)), turned(oracle))
    heads = all_heads(oracle)
    step = linreg.largest_step(heads)
    bound = linreg.contraction_bound(heads, step_size=step, start_distance=found[0])
    assert 0.9 < bound < 1
    assert all(after <= bound * before for before, after in pairwise(found) if after > 1e-12)


@pytest.mark.slow
def test_printed_kappa_promises_too_much(oracle):
    found = distances(train(oracle, ours(oracle)), turned(oracle))
    step = linreg.largest_step(all_heads(oracle))
    least = torch.linalg.svdvals(all_heads(oracle))[-1] ** 2 / len(oracle.clients)
    printed = (step * found[0] * least / 2) ** 0.5
    assert all(after > 2 * printed * before for before, after in pairwise(found[:100]))


@pytest.mark.slow
def test_fedrep_on_oracle_features_does_the_same(oracle):
    with_ours, with_theirs = train(oracle, ours(oracle)), train(oracle, oracles(oracle))
    torch.testing.assert_close(
        distances(with_ours, turned(oracle))[:100],
        distances(with_theirs, oracle.representation)[:100],
        rtol=1e-6,
        atol=1e-12,
    )
    errors = [
        error(oracle, maps(oracle), run[-1])
        for maps, run in ((ours, with_ours), (oracles, with_theirs))
    ]
    assert max(errors) < 1e-12  # fig:conv_Q has 4.98e-5 for both


@pytest.mark.slow
def test_without_the_rotation_it_fails(oracle):
    maps = unrotated(oracle, 0)
    state = train(oracle, maps)[-1]
    assert principal_angle_distance(linreg.representation(state), turned(oracle)) > 0.3
    assert error(oracle, maps, state) > 0.3


@pytest.mark.slow
def test_without_dividing_by_the_rows_it_fails(oracle):
    found = distances(train(oracle, ours(oracle), step_factor=2.0 * ROWS), turned(oracle))
    assert min(found) == found[0]
    assert found[-1] > 0.3


def test_client_step_is_the_gradient_of_the_mean_squared_error(oracle):
    rows = embedded(oracle, ours(oracle))
    waiting = linreg.initial_server(oracle.latent_dim)
    server = linreg.start(waiting, linreg.send_second_moments(rows), rank=RANK)
    heads = linreg.fit_heads(server, rows)
    A = linreg.representation(server).clone().requires_grad_()
    loss = (rows.y[4] - rows.features[4] @ A @ heads[4]).square().mean() / 2
    loss.backward()
    sent = linreg.client_update(server, rows, step_size=0.3)[4]
    torch.testing.assert_close(
        sent.entries["representation"].value, A.detach() - 0.3 * A.grad, atol=1e-12, rtol=0
    )


def test_a_stack_does_what_its_clients_do_alone(oracle):
    rows = embedded(oracle, ours(oracle))
    waiting = linreg.initial_server(oracle.latent_dim)
    server = linreg.start(waiting, linreg.send_second_moments(rows), rank=RANK)
    together = linreg.client_update(server, rows, step_size=0.2)[7]
    alone = linreg.client_update(server, rows.of(["client-007"]), step_size=0.2)[0]
    assert alone.client == together.client == "client-007"
    torch.testing.assert_close(
        alone.entries["representation"].value, together.entries["representation"].value
    )


def test_only_second_moment_and_representation_leave_a_client(oracle):
    rows = embedded(oracle, ours(oracle))
    sent = linreg.send_second_moments(rows)
    assert all(update.entries.keys() == {"second_moment"} for update in sent)
    server = linreg.start(linreg.initial_server(oracle.latent_dim), sent, rank=RANK)
    for update in linreg.client_update(server, rows, step_size=0.1):
        assert update.entries.keys() == {"representation"}
        assert update.num_bytes == oracle.latent_dim * RANK * 8


def test_server_refuses_what_it_did_not_ask_for(oracle):
    waiting = linreg.initial_server(oracle.latent_dim)
    stray = Update("a", {"head": Entry(torch.zeros(2, dtype=F64), 1.0)})
    with pytest.raises(IncompatibleUpdate, match="'head', which the server does not share"):
        linreg.start(waiting, [stray], rank=RANK)


def test_a_round_without_clients_is_named(oracle):
    with pytest.raises(FederationError, match=r"no 'second_moment' from any client"):
        linreg.start(linreg.initial_server(oracle.latent_dim), [], rank=RANK)


def test_distance_of_subspaces_by_hand():
    eye = torch.eye(3, dtype=F64)
    tilted = torch.tensor([[0.6], [0.8], [0.0]], dtype=F64)
    assert principal_angle_distance(eye[:, :1], eye[:, 1:2]) == 1
    assert principal_angle_distance(eye[:, :1], tilted) == pytest.approx(0.8)
    assert principal_angle_distance(eye[:, :2], eye[:, :2].flip(1)) == 0
