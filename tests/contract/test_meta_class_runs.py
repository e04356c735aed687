"""Runs with meta-classes: the same however they are carried out, with fewer anchors to send."""

from functools import partial

import pytest
import torch
from small_federation import CLASSES, DOUBLE, DOUBLE_TOL, ON_RESPONSES, TINY

import flic
from flic.config import merge, resolve
from flic.engine.runners import open_jobs
from flic.errors import ConfigError, IncompatibleUpdate
from flic.methods.flic.meta import DISTANCES, MAP, TOGETHER
from flic.methods.protocol import Entry, Update
from flic.runs import run_folder

GIVEN = {"anchors": {"meta_classes": [0, 1, 2, 0, 1, 2, 0, 1]}}
FOUND = {"anchors": {"meta_classes": 3}}
PAIRS = CLASSES * (CLASSES - 1) // 2
FLOAT = 4


@pytest.mark.slow
@pytest.mark.parametrize("changes", [GIVEN, FOUND], ids=["given", "found"])
@pytest.mark.parametrize("method", ["flic-class", "flic-hl", "permuted-anchors"])
def test_stack_width_and_order_do_not_matter(run, federation, method, changes):
    ran = run(method, **DOUBLE, **changes)
    ran.assert_agrees(run(method, stack_width=1, **DOUBLE, **changes), rtol=DOUBLE_TOL)
    ran.assert_equals(run(method, federation(order=[3, 2, 4, 0, 1]), **DOUBLE, **changes))
    with pytest.raises(AssertionError):
        ran.assert_agrees(run(method, **DOUBLE), rtol=DOUBLE_TOL)


@pytest.mark.slow
@pytest.mark.process
def test_worker_processes_do_not_matter(run):
    shared = run("flic-hl", jobs=partial(open_jobs, workers=2), **DOUBLE, **FOUND)
    run("flic-hl", **DOUBLE, **FOUND).assert_agrees(shared, rtol=DOUBLE_TOL)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "variant"), [("flic-hl", {"covariance": "full"}), ("flic-hl-authors", {})]
)
def test_variants_of_the_anchors(run, method, variant):
    shared = run(method, **merge(GIVEN, {"anchors": variant})).server.shared
    assert all(value.isfinite().all() for value in shared.values())
    assert len([name for name in shared if name.endswith(".mean")]) == 3


@pytest.mark.slow
@pytest.mark.parametrize("changes", [GIVEN, FOUND], ids=["given", "found"])
def test_anchors_and_their_traffic_are_those_of_the_meta_classes(run, changes):
    """All participants send all anchors: bytes of a round shrink by C_meta/C."""
    everyone = {"anchors": {"average_over": "participants"}}
    ran, plain = run("flic-class", **merge(changes, everyone)), run("flic-class", **everyone)
    assert set(ran.server.shared) == {MAP, *(f"anchor.{m}.mean" for m in range(3))}
    sent, before = (
        [r["bytes_sent"] for r in records if r["stage"] == "update"]
        for records in (ran.records, plain.records)
    )
    assert sent == [bytes * 3 // CLASSES for bytes in before]
    assert all(sent)


@pytest.mark.slow
def test_finding_them_costs_one_preparation(run):
    ran, plain = run("flic-class", **FOUND), run("flic-class", **GIVEN)
    asked, pretrained, *_ = ran.records
    assert (asked["stage"], asked["round"], asked["losses"]) == ("prepare", -1, {})
    assert asked["bytes_sent"] == 5 * 2 * PAIRS * FLOAT
    assert (pretrained["round"], pretrained["bytes_sent"]) == (0, 0)
    assert len(ran.records) == len(plain.records) + 1
    assert not {DISTANCES, TOGETHER} & ran.server.shared.keys()


def test_found_without_pretraining(run):
    ran = run("flic-class", pretraining={"epochs": 0}, **FOUND)
    assert [r["round"] for r in ran.records] == [-1, 0, 1, 2, 3]
    assert "scores" in ran.records[1]


def test_nothing_of_the_rows_is_in_the_answers(visit):
    place = visit("flic-class", round=-1, **FOUND)
    for client, update in zip(place.data.clients, place.do("distances").updates, strict=True):
        assert update.client == client.name
        for entry in update.entries.values():
            assert entry.value.shape == (PAIRS,)
            assert not torch.isin(entry.value, client.train.x).any()


def test_no_client_can_move_the_map(visit):
    place = visit("flic-class", **GIVEN)
    forged = Update("client-1", {MAP: Entry(torch.zeros(CLASSES, dtype=torch.int64), 1.0)})
    with pytest.raises(IncompatibleUpdate, match="'client-1' holds 'meta_classes', which the serv"):
        place.method.aggregate(place.server, [forged])


REFUSED = {
    "anchors.meta_classes lists 3 meta-classes on data with 8 classes; expected one for each": {
        "anchors": {"meta_classes": [0, 1, 0]}
    },
    "anchors.meta_classes is 9 on data with 8 classes; expected at most": {
        "anchors": {"meta_classes": 9}
    },
    "with 3 anchors for 8 classes; expected 'head'.*Set model.predict_by = 'head'": {
        **FOUND, "model": {"predict_by": "nearest-anchor"}
    },
}  # fmt: skip


@pytest.mark.parametrize("sentence", REFUSED)
def test_impossible_meta_classes_are_refused(make_engine, sentence):
    with pytest.raises(ConfigError, match=sentence):
        make_engine("flic-hl", **REFUSED[sentence])
    make_engine("local", **REFUSED[sentence])  # it has no anchors


def test_responses_have_no_meta_classes(make_engine):
    with pytest.raises(ConfigError, match=r"real responses; expected classes.*Leave the key out"):
        make_engine("flic-hl" + ON_RESPONSES, **FOUND)


THIRTY = {
    "method": "flic-class",
    "data": {
        "problem": "noisy-features", "num_clients": 8, "num_classes": 30, "classes_per_client": 6,
        "train_rows_per_class": 30, "test_rows_per_class": 10,
    },
    "training": {"rounds": 2, "participation": 0.5, "local": "2 epochs"},
    "anchors": {"meta_classes": 5},
}  # fmt: skip


@pytest.mark.slow
def test_an_interrupted_run_of_thirty_classes_goes_on_with_the_map_it_found(tmp_path):
    config = resolve(merge(TINY, THIRTY))

    def stop(record, total, done):
        raise KeyboardInterrupt

    run_folder.create(tmp_path / "run", config)
    with pytest.raises(KeyboardInterrupt):
        run_folder.resume(tmp_path / "run", on_step=stop)
    finished = run_folder.resume(tmp_path / "run")
    assert [record["round"] for record in finished.records] == [-1, 0, 1, 2, 3]
    assert finished.outcome.last == flic.simulate(config).last
    update = finished.records[2]
    anchors = update["bytes_sent"] / (FLOAT * TINY["embedding"]["latent_dim"])
    assert anchors.is_integer()
    assert anchors <= 5 * len(update["active"])


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ([0, 2], "anchors.meta_classes: got [0, 2]; expected meta-classes 0, 1, … with no number"),
        ("few", 'anchors.meta_classes: got "few"; expected how many meta-classes to find'),
    ],
)
def test_a_bad_setting_is_one_line(given, sentence):
    with pytest.raises(ConfigError) as error:
        resolve(merge(merge(TINY, THIRTY), {"anchors": {"meta_classes": given}}))
    lines = str(error.value).splitlines()
    assert len(lines) == 2
    assert sentence in lines[1]
