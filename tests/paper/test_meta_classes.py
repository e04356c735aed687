"""Many classes, few anchors.  Paper: "Scalability"."""

import pytest
import torch

from flic.data.client_data import Split
from flic.gaussians import Gaussian, wasserstein2_sq
from flic.method_settings import AnchorConfig
from flic.methods.flic.meta import (
    DISTANCES,
    MAP,
    TOGETHER,
    class_distances,
    cluster,
    meta_scores,
    pairs_to_send,
)
from flic.seeding import generator

GENTLE = {"optimiser": {"learning_rate": 0.002}}
VARIANTS = {
    "flic-hl": ("flic-hl", {}),
    "permuted": ("permuted-anchors", {}),
    "rows": ("flic-class", {"training": {"client_weight": "rows", **GENTLE}}),
    "participants": ("flic-class", {"anchors": {"average_over": "participants"}}),
    "full": ("flic-class", {"anchors": {"covariance": "full"}}),
    "every-batch": ("flic-class-authors", {}),
    "samples": ("flic-class", {"alignment": {"target": "samples"}}),
    "nearest": ("flic-class", {"model": {"predict_by": "nearest-anchor"}}),
}
ONLY_ALIGNMENT = {"weight": 0.5, "calibration_weight": 0.0}


def with_map(changes, meta_classes):
    return {**changes, "anchors": {**changes.get("anchors", {}), "meta_classes": meta_classes}}


def two_rounds(start):
    """Pre-training and two rounds."""
    start = start.after(start.do("prepare", round=0))
    for t in (1, 2):
        start = start.after(start.do("update", round=t))
    return start


def scores(end):
    splits = [client.test for client in end.data.clients]
    return torch.cat(end.method.predict(end.server, end.stack, end.data, splits))


@pytest.mark.parametrize(("method", "changes"), VARIANTS.values(), ids=VARIANTS)
def test_a_meta_class_for_each_class_changes_no_bit(place, method, changes):
    work = {"pretraining": {"epochs": 2}, "training": GENTLE} | changes
    plain = two_rounds(place(method, **work))
    mapped = two_rounds(place(method, **with_map(work, [0, 1, 2])))
    shared = dict(mapped.server.shared)
    assert shared.pop(MAP).tolist() == [0, 1, 2]
    assert shared.keys() == plain.server.shared.keys()
    assert all(torch.equal(shared[n], value) for n, value in plain.server.shared.items())
    for name, value in plain.stack.private.items():
        assert torch.equal(mapped.stack.private[name], value)
    assert torch.equal(scores(mapped), scores(plain))


@pytest.mark.parametrize("predict_by", ["head", "nearest-anchor"])
def test_a_permutation_relabels_the_anchors_and_nothing_else(place, predict_by):
    order = [2, 0, 1]
    changes = {
        "alignment": ONLY_ALIGNMENT,
        "model": {"predict_by": predict_by},
        "training": GENTLE,
        "pretraining": {"epochs": 2},
    }
    mapped = place("flic-class", **changes, anchors={"meta_classes": order})
    plain = place("flic-class", **changes)
    for c, m in enumerate(order):
        plain.server.shared[f"anchor.{c}.mean"] = mapped.server.shared[f"anchor.{m}.mean"]
    mapped, plain = two_rounds(mapped), two_rounds(plain)
    for c, m in enumerate(order):
        torch.testing.assert_close(
            mapped.server.shared[f"anchor.{m}.mean"], plain.server.shared[f"anchor.{c}.mean"]
        )
    torch.testing.assert_close(scores(mapped), scores(plain))


@pytest.fixture
def shared_anchors(place, client):
    """shared_anchors(...): three clients of 4 classes, of which 0 and 3, 1 and 2 belong together.

    One of the clients holds both meta-classes in full, one a part of either, one a single one.
    """

    def make(**changes):
        clients = [client("a", (0, 1, 2, 3), rows=60), client("b", (0, 2)), client("c", (0, 3))]
        anchors = {"meta_classes": [0, 1, 1, 0]} | changes.pop("anchors", {})
        return place("flic-class", clients, num_classes=4, anchors=anchors, **changes)

    return make


def pooled(start, means):
    """Σ_m W2²(μ_m, ν_i^(m)) of each client, ν of all its rows of the meta-class."""
    meta_of = start.server.shared[MAP]
    anchors = Gaussian.isotropic(means)
    totals = []
    for i, client in enumerate(start.data.clients):
        meta = meta_of[client.train.y]
        nus = {m: Gaussian.from_samples(start.latent(i)[meta == m]) for m in set(meta.tolist())}
        totals.append(sum(wasserstein2_sq(anchors[m], nu) for m, nu in nus.items()))
    return torch.stack(totals)


def means_of(server):
    return torch.stack([server.shared[f"anchor.{m}.mean"] for m in (0, 1)])


def test_the_rows_of_a_meta_class_are_aligned_as_one_distribution(shared_anchors):
    step = {"local": "1 steps", "shared": "0 steps"}
    start = shared_anchors(alignment=ONLY_ALIGNMENT, training=step)
    losses = start.do("update", round=0).losses["alignment"]
    torch.testing.assert_close(losses, 0.5 * pooled(start, means_of(start.server)))


def test_a_round_is_a_gradient_step_on_the_pooled_objective(shared_anchors):
    step = {"local": "0 epochs", "shared": "1 epoch"}
    start = shared_anchors(alignment=ONLY_ALIGNMENT, training=step)
    means = means_of(start.server).requires_grad_()
    pooled(start, means).sum().backward()
    assert means.grad is not None
    holders = torch.tensor([[3.0], [2.0]])
    found = means_of(start.after(start.do("update")).server)
    torch.testing.assert_close(found, (means - 0.1 * 0.5 * means.grad / holders).detach())


def test_pretraining_brings_meta_classes_to_their_anchors(shared_anchors):
    adam = {"optimiser": {"kind": "adam", "learning_rate": 0.02}}
    start = shared_anchors(pretraining={"epochs": 100, "batch_size": 1000}, training=adam)
    after = start.after(start.do("prepare", round=0))
    means = means_of(start.server)
    assert (pooled(after, means) < 0.5 * pooled(start, means)).all()


@pytest.mark.parametrize("by", ["rows", "equal"])
def test_a_holder_sends_the_anchors_of_its_meta_classes(shared_anchors, by):
    start = shared_anchors(training={"client_weight": by})
    sent = {
        update.client: {n: e.weight for n, e in update.entries.items()}
        for update in start.do("update").updates
    }
    rows = {"a": (30.0, 30.0), "b": (20.0, 20.0), "c": (40.0,)}
    for name, counts in rows.items():
        own = counts if by == "rows" else [1.0] * len(counts)
        assert sent[name] == {f"anchor.{m}.mean": weight for m, weight in enumerate(own)}


def test_a_meta_class_has_the_probability_of_its_classes():
    given = torch.randn(2, 5, 4, generator=generator(0, "scores"), dtype=torch.float64)
    found = meta_scores(given, torch.tensor([0, 1, 1, 0])).softmax(-1)
    p = given.softmax(-1)
    together = torch.stack([p[..., 0] + p[..., 3], p[..., 1] + p[..., 2]], -1)
    torch.testing.assert_close(found, together)


# ---- finding them ----------------------------------------------------------------------------

PLANTED = (0, 1, 2, 0, 1, 2, 0, 0, 1, 2, 2, 1)


def planted(name, classes, *, dim=6, turn=None):
    """Rows of classes that lie close together within the three planted groups."""
    world = generator(0, "planted")
    groups = 6 * torch.randn(3, 6, generator=world)
    centres = groups[torch.tensor(PLANTED)] + torch.randn(12, 6, generator=world)
    rng = generator(0, "planted", name)
    y = torch.tensor(classes).repeat_interleave(15)
    latent = centres[y] + 0.3 * torch.randn(len(y), 6, generator=rng)
    turn = torch.randn(6, dim, generator=rng) if turn is None else turn
    return Split(latent @ turn, y)


def told(splits):
    sent = [pairs_to_send(class_distances(s, 12), dtype=torch.float64) for s in splits]
    return [torch.stack([own[name] for own in sent]).sum(0) for name in (DISTANCES, TOGETHER)]


def test_planted_groups_are_found_by_clients_of_other_features_and_classes():
    """No two clients read the same space; single pairs of classes meet nowhere."""
    rng = generator(0, "holdings")
    held = [sorted(torch.randperm(12, generator=rng)[:6].tolist()) for _ in range(9)]
    splits = [planted(f"c{i}", own, dim=6 + i) for i, own in enumerate(held)]
    distances, together = told(splits)
    assert (together == 0).any()
    assert cluster(distances, together, 3) == PLANTED


def test_distances_do_not_depend_on_units_and_barely_on_linear_maps():
    plain = planted("c", range(12), turn=torch.eye(6))
    distances = class_distances(plain, 12)
    scaled = Split(plain.x * torch.tensor([1e-3, 1.0, 7.0, 1e3, 2.0, 5.0]) + 4, plain.y)
    torch.testing.assert_close(class_distances(scaled, 12), distances, rtol=1e-3, atol=1e-3)
    mixed = planted("c", range(12), turn=torch.randn(6, 6, generator=generator(0, "mix")))
    correlation = torch.corrcoef(
        torch.stack([class_distances(mixed, 12).flatten(), distances.flatten()])
    )
    assert correlation[0, 1] > 0.95
    above = distances[tuple(torch.triu_indices(12, 12, offset=1))]
    torch.testing.assert_close(above.mean(), torch.ones((), dtype=torch.float64))


def test_only_pairs_that_a_client_holds_are_told():
    distances = class_distances(planted("c", (2, 5, 7)), 12)
    held = torch.zeros(12, dtype=torch.bool)
    held[[2, 5, 7]] = True
    assert torch.equal(~distances.isnan(), held[:, None] & held)
    assert class_distances(planted("c", (4,)), 12).isnan().all()
    sent = pairs_to_send(distances, dtype=torch.float32)
    assert {name: value.shape for name, value in sent.items()} == {
        DISTANCES: (66,),
        TOGETHER: (66,),
    }
    assert sent[TOGETHER].sum() == (sent[DISTANCES] > 0).sum() == 3


@pytest.mark.parametrize(
    "x",
    [torch.tensor([[0.0, 1.0], [2.0, 1.0], [9.0, 1.0]]), torch.ones(3, 2)],
    ids=["one row of each and a constant feature", "nothing to tell apart"],
)
def test_distances_of_poor_rows_are_finite(x):
    assert class_distances(Split(x, torch.arange(3)), 3).isfinite().all()


@pytest.mark.parametrize("num_meta", [1, 2, 5, 12])
def test_as_many_meta_classes_as_asked_also_where_nothing_is_known(num_meta):
    for distances, together in ([torch.zeros(66)] * 2, told([planted("c", (2, 5, 7))])):
        found = cluster(distances, together, num_meta)
        assert set(found) == set(range(num_meta))
        assert len(found) == 12


def test_the_server_makes_the_map_and_forgets_the_answers(place):
    start = place(
        "flic-class", anchors={"meta_classes": 2}, pretraining={"epochs": 1}, training=GENTLE
    )
    assert [step.round for step in start.method.steps_before()] == [-1, 0]
    visit = start.do("distances", round=-1)
    after = start.after(visit, "distances")
    assert all(set(update.entries) == {DISTANCES, TOGETHER} for update in visit.updates)
    assert set(after.server.shared) == {MAP, "anchor.0.mean", "anchor.1.mean"}
    assert set(after.server.shared[MAP].tolist()) == {0, 1}
    again = two_rounds(after)
    assert torch.equal(again.server.shared[MAP], after.server.shared[MAP])


# ---- refusals --------------------------------------------------------------------------------


@pytest.mark.parametrize("good", [None, 1, 7, (0, 0), (1, 0, 2, 1)])
def test_maps(good):
    config = AnchorConfig(meta_classes=good)
    assert config.meta_classes == good
    assert AnchorConfig.model_validate_json(config.model_dump_json(), strict=True) == config


@pytest.mark.parametrize("bad", [0, -1, True, 2.0, "two", [], [0, 1.0], [0, True], {"a": 0}])
def test_what_is_no_map_is_refused(bad):
    with pytest.raises(ValueError, match="how many meta-classes to find, at least 1, or a list"):
        AnchorConfig(meta_classes=bad)


@pytest.mark.parametrize("bad", [[0, 2], [1, 2], [-1, 0, 1], [0, 10**12]])
def test_maps_with_gaps_are_refused(bad):
    with pytest.raises(ValueError, match="meta-classes 0, 1, … with no number left out"):
        AnchorConfig(meta_classes=bad)
