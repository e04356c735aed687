"""A client's predictors among peers, with the shapes of all tensors on the way checked."""

from dataclasses import replace

import pytest
import torch
from test_linked import NAMES, QUESTION, RESPONSE, learn, make_client, nothing, with_response

from flic.data.schema import FeatureSchema
from flic.methods.linked import linked_client, peers
from flic.methods.linked.linked_client import LinkedClient, apply_mix


@pytest.fixture(scope="module")
def ward():
    return [make_client(i) for i in range(4)]


@pytest.fixture(scope="module")
def learnt(ward):
    """Clients, engine and server after all uploads, by task, for reading only."""
    answered = [with_response(c, i) for i, c in enumerate(ward)]
    return {
        "classes": (ward, *learn(ward, task=QUESTION)),
        "responses": (answered, *learn(answered, task=RESPONSE)),
    }


def test_the_model_as_tensors_is_the_client_s_prediction(learnt):
    clients, engine, server = learnt["classes"]
    client = clients[2]
    model = LinkedClient(engine.method.agreed, server.shared, client).model()
    [scores] = engine.method.predict(
        server, nothing(engine), engine.clients.stacked_data([client.name]), [client.test]
    )
    torch.testing.assert_close(apply_mix(model, client.test.x).float(), scores, rtol=0, atol=1e-5)


def test_the_model_of_responses_as_tensors_is_the_client_s_prediction(learnt):
    clients, engine, server = learnt["responses"]
    client = clients[2]
    model = LinkedClient(engine.method.agreed, server.shared, client).model()
    [found] = engine.method.predict(
        server, nothing(engine), engine.clients.stacked_data([client.name]), [client.test]
    )
    torch.testing.assert_close(apply_mix(model, client.test.x).float(), found, rtol=0, atol=1e-4)
    assert found.mean().item() == pytest.approx(client.test.y.mean().item(), abs=2)


@pytest.mark.parametrize("task", ["classes", "responses"])
def test_scores_of_rows_in_parts_are_those_of_all_rows(learnt, monkeypatch, task):
    clients, engine, server = learnt[task]
    known = LinkedClient(engine.method.agreed, server.shared, clients[0])
    whole = [known.cv_scores("own"), known.cv_scores("linked"), known.mix_scores()]
    monkeypatch.setattr(linked_client, "ROWS_AT_ONCE", 5)  # of 18, so that the last part is smaller
    parts = [known.cv_scores("own"), known.cv_scores("linked"), known.mix_scores()]
    for one, other in zip(whole, parts, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


@pytest.mark.slow
def test_one_basis_serves_clients_with_private_features_too(ward, monkeypatch):
    few = [
        replace(
            c,
            train=c.train.take(torch.arange(9)),
            schema=FeatureSchema("ward", (*(f"{c.name} {n}" for n in NAMES[:3]), *NAMES[3:])),
        )
        for c in ward
    ]
    found = []
    for most_rows in (0.0, 1e9):
        monkeypatch.setattr(peers, "MOST_ROWS_PER_FEATURE", most_rows)
        engine, server = learn(few)
        model = LinkedClient(engine.method.agreed, server.shared, few[0]).model()
        found.append(apply_mix(model, few[0].test.x))
    torch.testing.assert_close(*found, rtol=0, atol=1e-8)
