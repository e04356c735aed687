"""Clients side by side and apart again."""

from dataclasses import replace

import pytest
import torch

from flic.data.client_data import Split
from flic.data.task import Regression
from flic.engine.clients import Clients, stack_widths
from flic.errors import DataError
from flic.method_settings import EmbeddingConfig

EMBEDDING = EmbeddingConfig(latent_dim=4, hidden=(6,))


@pytest.fixture
def make_clients(federation):
    def make(num_clients=6, **sizes):
        return Clients(federation(num_clients, **sizes), EMBEDDING, dtype=torch.float32)

    return make


def state(clients, name):
    rng = torch.Generator().manual_seed(len(name) + int(name[-5:]))
    phi = clients.architecture(name).init(clients[name].schema.dim, rng=rng, dtype=torch.float32)
    return phi | {"head.bias": torch.rand(2, generator=rng)}


def test_unstack_undoes_stack(make_clients):
    clients = make_clients(dims=(3, 17, 9))
    [names] = clients.split(clients.names, stack_width=10)
    states = [state(clients, name) for name in names]
    apart = clients.unstack(names, clients.stack(names, states))
    for name, before in zip(names, states, strict=True):
        assert apart[name].keys() == before.keys()
        assert all(torch.equal(apart[name][n], before[n]) for n in before)


def test_unstacked_states_have_memory_of_their_own(make_clients):
    """Otherwise one client's state would keep the whole stack alive, or change with it."""
    clients = make_clients(dims=(3,))
    names = tuple(clients.names[:2])
    stack = clients.stack(names, [state(clients, n) for n in names])
    apart = clients.unstack(names, stack)
    for value in apart[names[0]].values():
        assert value.untyped_storage().nbytes() == value.numel() * value.element_size()


def test_padded_weights_are_zero(make_clients):
    clients = make_clients(2, dims=(3, 17))
    [names] = clients.split(clients.names, stack_width=10)
    first = clients.stack(names, [state(clients, n) for n in names]).private["embedding.0.weight"]
    narrow = names.index("client-00000")
    assert first.shape == (2, 32, 6)
    assert first[narrow, 3:].abs().max() == 0
    assert first[narrow, :3].abs().min() > 0


@pytest.mark.parametrize("stack_width", [1, 2, 4, 100])
def test_stacks_hold_everyone_once_and_no_more_than_allowed(make_clients, stack_width):
    clients = make_clients(7, dims=(3, 5, 300), rows=(6, 12, 9))
    stacks = clients.split(clients.names, stack_width=stack_width)
    assert sorted(name for stack in stacks for name in stack) == sorted(clients.names)
    assert max(len(stack) for stack in stacks) <= stack_width
    for stack in stacks:
        sizes = [len(clients[name].train) for name in stack]
        assert sizes == sorted(sizes, reverse=True)
        assert len({clients.architecture(name).dim for name in stack}) == 1


def test_a_split_does_not_depend_on_the_order_of_names(make_clients):
    clients = make_clients(6)
    assert clients.split(clients.names, stack_width=2) == clients.split(
        clients.names[::-1], stack_width=2
    )


def test_stacks_are_even(make_clients):
    """Seven clients at a width of six are four and three, not six and one."""
    clients = make_clients(7)
    assert [len(s) for s in clients.split(clients.names, stack_width=6)] == [4, 3]


def test_padding_belongs_to_the_federation_not_to_the_cohort(make_clients):
    clients = make_clients(4, dims=(3, 17), rows=(6, 12))
    small = clients.stacked_data(("client-00000",))
    assert (small.width, small.longest) == (32, 12)
    assert clients.architecture("client-00000").dim == 32


def test_widths_cover_every_client_with_little_padding(federation):
    schemas = [client.schema for client in federation(5, dims=(3, 60, 64, 200, 784)).clients]
    widths = stack_widths(schemas)
    assert widths == {784: 784, 200: 208, 64: 64, 60: 64, 3: 64}


def labelled(which, change):
    """A change of a client: that of the labels of one of its splits."""

    def apply(client):
        split = getattr(client, which)
        return replace(client, **{which: Split(split.x, change(split.y))})

    return apply


CLASSES_WRONG = {
    "empty": (lambda c: replace(c, train=Split.empty(c.schema.dim)), "has no training rows"),
    "name": (lambda c: replace(c, name="client-00001"), "is there twice"),
    "training": (labelled("train", lambda y: y + 7), "has training labels 7, 8; expected 0 to 1"),
    "below": (labelled("train", lambda y: y - 1), "has training labels -1; expected 0 to 1"),
    "validation": (
        lambda c: replace(c, validation=Split(c.test.x, 2 * c.test.y)),
        "has validation labels 2; expected 0 to 1",
    ),
    "test": (labelled("test", lambda y: y + 1), "has test labels 2; expected 0 to 1"),
    "floats": (labelled("train", torch.Tensor.float), "labels of type torch.float32; expected int"),
    "test floats": (labelled("test", torch.Tensor.double), "has test labels of type torch.float64"),
}


@pytest.mark.parametrize(("wrong", "reason"), CLASSES_WRONG.values(), ids=CLASSES_WRONG)
def test_clients_that_cannot_be_stacked_are_refused(federation, wrong, reason):
    data = federation(3)
    data = replace(data, clients=(wrong(data.clients[0]), *data.clients[1:]))
    with pytest.raises(DataError, match=reason):
        Clients(data, EMBEDDING, dtype=torch.float32)


RESPONSES_WRONG = {
    "nan": (labelled("train", lambda y: y.log() * 0), "NaN or infinite responses in its training"),
    "infinite": (labelled("test", lambda y: 1 / y), "3 NaN or infinite responses in its test rows"),
    "classes": (labelled("train", torch.Tensor.long), "type torch.int64; expected float, since"),
}


@pytest.fixture
def responses(federation):
    """Clients whose labels are numbers, 0.0 and 1.0; their validation splits are empty."""
    data = federation(3)
    train, test = (labelled(which, torch.Tensor.float) for which in ("train", "test"))
    clients = tuple(test(train(client)) for client in data.clients)
    return replace(data, task=Regression(0.0, 1.0), clients=clients)


@pytest.mark.parametrize(("wrong", "reason"), RESPONSES_WRONG.values(), ids=RESPONSES_WRONG)
def test_responses_that_no_loss_can_take_are_refused(responses, wrong, reason):
    Clients(responses, EMBEDDING, dtype=torch.float32)
    data = replace(responses, clients=(wrong(responses.clients[0]), *responses.clients[1:]))
    with pytest.raises(DataError, match=f"client 'client-00000' .*{reason}"):
        Clients(data, EMBEDDING, dtype=torch.float32)


def test_data_without_clients_are_refused(federation):
    with pytest.raises(DataError, match="data 'tiny' has no clients; expected at least one"):
        Clients(federation(0), EMBEDDING, dtype=torch.float32)
