"""The control experiment: every loss of FLIC, but no shared meaning of the anchors."""

import pytest
import torch

IDLE = {"local": "0 epochs", "shared": "0 epochs"}


def test_every_client_permutes_the_anchors_in_its_own_way(place, client):
    clients = [client(name, (0, 1)) for name in "abcdef"]
    start = place("permuted-anchors", clients, num_classes=7)
    found = start.method.anchor_of(start.data)
    assert torch.equal(found.sort(1).values, torch.arange(7).expand(6, -1))
    assert len(found.unique(dim=0)) > 1


def test_a_permutation_belongs_to_the_client_not_to_its_stack(place, client):
    together = place("permuted-anchors", [client(n) for n in "abc"], num_classes=7)
    alone = place("permuted-anchors", [client("b")], num_classes=7)
    at = together.data.names.index("b")
    assert torch.equal(
        together.method.anchor_of(together.data)[at], alone.method.anchor_of(alone.data)[0]
    )


def test_uploads_go_under_the_permuted_names(place, client):
    start = place("permuted-anchors", [client(n, (0, 2)) for n in "abc"], num_classes=7)
    permutations = start.method.anchor_of(start.data).tolist()
    for own, update in zip(permutations, start.do("update").updates, strict=True):
        sent = {name for name in update.entries if name.startswith("anchor.")}
        assert sent == {f"anchor.{own[c]}.mean" for c in (0, 2)}


def test_an_untouched_anchor_comes_back_as_it_went_out(place, client):
    start = place("permuted-anchors", [client(n) for n in "abc"], num_classes=7, training=IDLE)
    for update in start.do("update").updates:
        for name, entry in update.entries.items():
            assert torch.equal(entry.value, start.server.shared[name])


@pytest.mark.slow
def test_each_class_is_pulled_to_the_permuted_anchor(place, client):
    """Its nearest anchor after pre-training is π_i(c), not c."""
    start = place(
        "permuted-anchors",
        [client(n, (0, 1)) for n in "abc"],
        num_classes=7,
        anchors={"scale": 3.0, "layout": "equidistant"},
        embedding={"latent_dim": 8},
        pretraining={"epochs": 200, "batch_size": 1000},
        training={"optimiser": {"kind": "adam", "learning_rate": 0.02}},
    )
    after = start.after(start.do("prepare", round=0))
    means = torch.stack([start.server.shared[f"anchor.{c}.mean"] for c in range(7)])
    permutations = start.method.anchor_of(start.data)
    for i, client_data in enumerate(start.data.clients):
        for c in (0, 1):
            centre = after.latent(i)[client_data.train.y == c].mean(0)
            assert torch.cdist(centre[None], means).argmin() == permutations[i, c]
