"""A silo's folder: what it keeps, how it goes on, and what it refuses."""

from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file, save_file

from flic.data.client_data import ClientData, Split
from flic.data.schema import FeatureSchema
from flic.errors import (
    ConfigError,
    Damaged,
    DataError,
    FederationError,
    FlicError,
    RunFolderError,
)
from flic.flower import visits
from flic.flower.announcement import announce
from flic.flower.silo_engine import SiloEngine
from flic.flower.silo_folder import SiloFolder
from flic.methods import build_method
from flic.methods.protocol import Population, ServerState
from flic.silos.predicting import evaluate_file
from flic.tables import Client
from hospitals import rows_of, settings_of

RUN = "0123456789abcdef"


def initial(settings, round=1) -> ServerState:
    population = Population(0, settings.common_task, 0, 0, {})
    method = build_method(settings.method, settings.method_settings, population, seed=settings.seed)
    return replace(method.init_server(), round=round)


def moved(server, round) -> ServerState:
    """Another shared part, as of a later round."""
    return ServerState(round, {n: v + 0.1 for n, v in server.shared.items()})


def values(trained):
    return {name: entry.value for name, entry in trained.update.entries.items()}


def same(ours, theirs):
    return ours.keys() == theirs.keys() and all(torch.equal(ours[n], theirs[n]) for n in ours)


def rounds(silo):
    return sorted(path.stem for path in silo.folder.glob("runs/*/0*.safetensors"))


@pytest.fixture
def settings():
    return settings_of()


def test_a_silo_file_says_what_was_given(tmp_path):
    client = Client(
        name='Höpital "St. Anne"',
        data="rows.csv",
        label="num",
        labels={"well": (0,), "ill": (1, 2)},
        drop=("id", "a b"),
        missing={"chol level": (0, -1.5)},
    )
    SiloFolder.create(tmp_path, client, test_share=0.2)
    file = SiloFolder.open(tmp_path).file
    assert file.test_share == 0.2
    for key in ("name", "data", "label", "labels", "drop", "missing"):
        assert getattr(file, key) == getattr(client, key)
    with pytest.raises(ConfigError, match="exists already"):
        SiloFolder.create(tmp_path, client)


def test_a_silo_works_for_what_it_agreed_to_and_for_nothing_else(tmp_path, settings):
    rows_of("east").to_csv(tmp_path / "rows.csv", index=False)
    client = Client(name="east", data="rows.csv", label="num")
    east = SiloFolder.create(tmp_path, client, agreed=settings)
    assert visits.train(east, initial(settings), settings, run=RUN).update.entries
    other = settings_of(method="linked", salt="0a" * 16)
    with pytest.raises(FederationError, match="asked for method 'linked' under settings other"):
        visits.train(east, ServerState(-3, {}), other, "prepare", run="fedcba9876543210")
    assert [path.name for path in (tmp_path / "runs").iterdir()] == [RUN]


@pytest.mark.parametrize("damage", ["{", "[]"])
def test_a_damaged_agreement_is_said_to_be_of_the_silo(tmp_path, settings, damage):
    client = Client(name="east", data="rows.csv", label="num")
    east = SiloFolder.create(tmp_path, client, agreed=settings)
    (tmp_path / "agreed.json").write_text(damage)
    with pytest.raises(RunFolderError, match=r"agreed.json is damaged .* as flic wrote"):
        visits.train(east, initial(settings), settings, run=RUN)


def test_a_bad_key_of_a_silo_file_is_named(silo):
    path = silo("east").folder / "silo.toml"
    path.write_text(path.read_text() + 'lable = "x"\n')
    with pytest.raises(ConfigError, match="lable: unknown key"):
        SiloFolder.open(path.parent)


def test_characters_that_toml_forbids_are_read_as_they_were_given(silo):
    made = silo("east", drop=["a\x7fb", "c\x85"])
    assert SiloFolder.open(made.folder).file.drop == ("a\x7fb", "c\x85")


def test_a_request_that_is_repeated_gets_the_same_answer(silo, settings):
    east, server = silo("east"), initial(settings)
    first = visits.train(east, server, settings, run=RUN)
    assert same(values(visits.train(east, server, settings, run=RUN)), values(first))
    second = visits.train(east, moved(server, 2), settings, run=RUN)
    again = visits.train(SiloFolder.open(east.folder), moved(server, 2), settings, run=RUN)
    assert same(values(again), values(second))
    assert again.losses == second.losses
    assert rounds(east) == ["00001", "00002"]


@pytest.mark.parametrize("visit", [visits.train, visits.evaluate])
@pytest.mark.parametrize(
    "wrong",
    [
        {"anchor.0.mean": None},
        {"anchor.0.mean": torch.zeros(8, 1)},
        {"anchor.0.mean": torch.zeros(8, dtype=torch.float64)},
        {"rows": torch.zeros(8)},
    ],
    ids=["missing", "shape", "type", "unknown"],
)
def test_another_shared_part_than_the_settings_make_is_refused(silo, settings, visit, wrong):
    east, server = silo("east"), initial(settings)
    if visit is visits.evaluate:
        visits.train(east, server, settings, run=RUN)
    shared = {n: v for n, v in ({**server.shared, **wrong}).items() if v is not None}
    with pytest.raises(FederationError, match="missing, unknown or of another shape"):
        visit(east, ServerState(1, shared), settings, run=RUN)


def test_a_silo_that_is_ahead_goes_on_from_what_it_has(silo, settings):
    east, server = silo("east"), initial(settings)
    for round in (1, 2, 3):
        visits.train(east, moved(server, round), settings, run=RUN)
    visits.train(east, moved(server, 1), settings, run=RUN)  # a coordinator from an old copy
    assert rounds(east) == ["00001", "00002"]
    visits.train(east, moved(server, 2), settings, run=RUN)
    assert rounds(east) == ["00001", "00002"]


def test_a_silo_that_is_behind_goes_on_from_its_newest_state(silo, settings):
    east, other, server = silo("east"), silo("north"), initial(settings)
    for one in (east, other):
        visits.train(one, server, settings, run=RUN)
    before = east.model().model.private
    trained = visits.train(east, moved(server, 5), settings, run=RUN)
    assert rounds(east) == ["00001", "00005"]
    assert not same(east.model().model.private, before)
    assert np.isfinite([*trained.losses.values()]).all()


@pytest.mark.parametrize("epochs", [0, 2])
def test_a_first_visit_prepares_with_the_anchors_of_the_day(silo, epochs):
    settings = settings_of(network={"pretraining": {"epochs": epochs}})
    east = silo("east")
    trained = [
        visits.train(east, server, settings, run=run)
        for run, server in [
            ("a" * 16, initial(settings, 6)),
            ("b" * 16, ServerState(6, {n: v * 2 for n, v in initial(settings).shared.items()})),
        ]
    ]
    prepared = {path.parent.name: path for path in east.folder.glob("runs/*/00005.safetensors")}
    assert {*prepared} == {"a" * 16, "b" * 16}
    assert not same(values(trained[0]), values(trained[1]))
    first, second = (
        {n: v for n, v in load_file(p).items() if n.startswith("private.embedding")}
        for p in prepared.values()
    )
    assert same(first, second) == (epochs == 0)


def test_runs_do_not_know_each_other(silo, settings):
    east, server = silo("east"), initial(settings)
    first = visits.train(east, server, settings, run="a" * 16)
    visits.train(east, moved(server, 2), settings, run="a" * 16)
    assert same(values(visits.train(east, server, settings, run="b" * 16)), values(first))
    rounds = {"a" * 16: 2, "b" * 16: 1}
    assert east.status() == {"name": "east", "rounds": rounds, "links": {}, "notes": {}}


@pytest.mark.parametrize(
    "changes", [{"seed": 1}, {"method": "flic-hl"}, {"weights": "rows"}, {"min_rows": 6}]
)
def test_a_run_keeps_what_was_agreed(silo, settings, changes):
    east, server = silo("east"), initial(settings)
    visits.train(east, server, settings, run=RUN)
    visits.train(east, server, settings_of(quorum=3, rounds=9), run=RUN)  # rules may change
    with pytest.raises(FederationError, match="another task, network, seed or min_rows"):
        visits.train(east, server, settings_of(**changes), run=RUN)


def test_rows_that_come_later_change_no_run_under_way(silo, settings):
    east, server = silo("east"), initial(settings)
    first = visits.train(east, server, settings, run=RUN)
    rows_of("east", 90).drop(columns="stay").to_csv(east.folder / "rows.csv", index=False)
    assert same(values(visits.train(east, server, settings, run=RUN)), values(first))
    assert not same(values(visits.train(east, server, settings, run="b" * 16)), values(first))


@pytest.mark.parametrize(("theirs", "own", "left"), [(5, 5, 2), (50, 5, 0), (1, 50, 0), (14, 1, 2)])
def test_the_larger_of_both_minima_of_rows_counts(silo, theirs, own, left):
    settings = settings_of(min_rows=theirs)
    east = silo("east")  # 14 training rows of either class
    path = east.folder / "silo.toml"
    path.write_text(path.read_text() + f"min_rows = {own}\n")
    east = SiloFolder.open(east.folder)
    trained = visits.train(east, initial(settings), settings, run=RUN)
    assert len(trained.update.entries) == left
    # Of the 28 rows together, losses are told where they are enough.
    terms = {"data", "alignment", "calibration"} if max(theirs, own) <= 28 else set()
    assert {*trained.losses} == terms
    assert len([e for e in announce(east, settings) if e.shape]) == left


def of_few_ill(ill, rows=60):
    """A silo's rows, few of them of the second class."""
    x = torch.randn(rows, 3, generator=torch.Generator().manual_seed(0))
    split = Split(x, (torch.arange(rows) < ill).long())
    names = FeatureSchema("east", ("a", "b", "c"))
    return ClientData("east", names, split, Split.empty(3), Split.empty(3))


def visited(client, **training):
    """All that leaves after one visit under these settings, at five rows at least."""
    settings = settings_of(
        network={"training": training, "pretraining": {"epochs": 0}, "alignment": {"weight": 1.0}}
    )
    place = SiloEngine(client, settings)
    return place.train("update", initial(settings), place.new(), 5)[0]


def test_an_anchor_rests_on_all_rows_of_its_class():
    """Not on those that were drawn, whatever the coordinator asks for."""
    client = of_few_ill(8)
    descent = {"kind": "sgd", "learning_rate": 0.1}
    work = {"local": "0 steps", "shared": "1 steps", "optimiser": descent}
    work |= {"batch_size": 4, "shared_sees_all_rows": False}
    before = values(visited(client, **work))["anchor.1.mean"]
    for row in range(8):
        x = client.train.x.clone()
        x[row] += 1.0
        other = replace(client, train=Split(x, client.train.y))
        assert not torch.equal(values(visited(other, **work))["anchor.1.mean"], before)


def test_no_loss_is_told_of_a_class_of_few_rows():
    """The coordinator chooses the anchors: two losses would be an equation of a single row's φ."""
    work = {"local": "1 steps", "shared": "1 steps", "batch_size": 100}
    assert visited(of_few_ill(1), **work).losses == {}
    assert visited(of_few_ill(5), **work).losses.keys() == {"data", "alignment", "calibration"}
    # Of eight rows among sixty, a batch of nine has few.
    assert visited(of_few_ill(8), **{**work, "batch_size": 9}).losses == {}


def test_nothing_leaves_that_few_rows_were_drawn_for():
    work = {"local": "1 steps", "shared": "1 steps"}
    few, enough = (visited(of_few_ill(30), **work, batch_size=size) for size in (4, 5))
    assert (few.update.entries, few.losses) == ({}, {})
    assert enough.update.entries


def test_losses_are_announced_that_one_visit_has_too_few_rows_for(silo):
    east = silo("east", rows_of("east", 120, ill=8))
    told = {line.what for line in announce(east, settings_of())}
    assert {"loss data", "loss alignment", "loss calibration"} <= told


@pytest.mark.parametrize(("meta", "sent"), [([0, 0], {0}), ([0, 1], {0})])
def test_rows_of_a_meta_class_count_together(silo, meta, sent):
    settings = settings_of(network={"anchors": {"meta_classes": meta}})
    east = silo("east", rows_of("east", ill=5))
    trained = visits.train(east, initial(settings), settings, run=RUN)
    assert {*trained.update.entries} == {f"anchor.{c}.mean" for c in sent}


def test_a_model_predicts_raw_rows_after_a_round(silo, settings):
    east, server = silo("east"), initial(settings)
    with pytest.raises(FlicError, match="has no model yet"):
        east.model()
    with pytest.raises(FederationError, match="has not trained yet"):
        visits.evaluate(east, server, settings, run=RUN)
    visits.train(east, server, settings, run=RUN)
    predicted = SiloFolder.open(east.folder).model().predict(rows_of("east"))
    assert {*predicted.values} <= {"well", "ill"}
    assert predicted.probabilities.shape == (37, 2)
    figures = visits.evaluate(east, server, settings, run=RUN)
    assert figures.keys() == {"test_right", "test_rows"}
    assert figures["test_rows"] == 5  # of nine; the other class has four, which are not told of


@pytest.mark.parametrize("label", ["num", "stay"])
def test_rows_of_a_file_are_known_again_wherever_they_stand(silo, settings, tmp_path, label):
    """Of the silo's own file, shuffled and with a row twice, the held-out rows are measured."""
    if label == "stay":
        settings = settings_of(task="regression", range=(0.0, 10.0))
    east, server = silo("east", label=label), initial(settings)
    visits.train(east, server, settings, run=RUN)
    run, rows = east.newest(), pd.read_csv(east.folder / "rows.csv")
    kept = rows.sample(frac=1, random_state=0)

    def measure(frame):
        frame.to_csv(tmp_path / "rows.csv", index=False)
        return evaluate_file(run.model(), tmp_path / "rows.csv", tell=lambda note: None)

    found = measure(kept)
    held, train = len(run.client.test), len(run.client.train)
    assert (held + train, found.trained) == (len(rows), 0)
    assert (found.rows, found.left_out) == (held, train)
    if label == "num":
        engine = SiloEngine(run.client, run.settings)
        predicted, y = engine.held_out(server, run.private(1, engine))
        assert found.figures["accuracy"] == pytest.approx(
            (predicted.argmax(1) == y).double().mean()
        )
    was_trained = [measure(kept.iloc[[i]]).trained == 1 for i in range(3)]
    again = kept.iloc[[was_trained.index(True)] * 2]
    assert (measure(again).rows, measure(again).left_out) == (1, 1)
    (run.folder / "trained.digests").write_bytes(b"123")
    with pytest.raises(FlicError, match=r"trained\.digests is damaged"):
        measure(kept)


@pytest.mark.parametrize("file", ["00001.safetensors", "run.json", "rows.safetensors"])
def test_a_damaged_file_is_named(silo, settings, file):
    east, server = silo("east"), initial(settings)
    visits.train(east, server, settings, run=RUN)
    path = east.folder / "runs" / RUN / file
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(Damaged, match=file):
        visits.train(east, moved(server, 2), settings, run=RUN)
    path.unlink()
    visits.train(east, moved(server, 2), settings, run=RUN)


@pytest.mark.parametrize("content", ["[1", "[1]", "[" * 100_000])
def test_damaged_links_are_named(silo, settings, content):
    east = silo("east")
    visits.train(east, initial(settings), settings, run=RUN)
    (east.folder / "runs" / RUN / "links.json").write_text(content)
    with pytest.raises(Damaged, match=r"links\.json"):
        east.status()


@pytest.mark.parametrize("part", ["private.", "shared."])
def test_a_file_of_another_network_is_refused(silo, settings, part):
    east, server = silo("east"), initial(settings)
    visits.train(east, server, settings, run=RUN)
    path = east.folder / "runs" / RUN / "00001.safetensors"
    tensors = load_file(path)
    [name] = [name for name in tensors if name.startswith(part)][:1]
    for other in (
        {name: tensors[name][:-1].clone()},
        {f"{part}more": torch.zeros(1)},
        {name: None},
        {name: tensors[name].double()},
    ):
        kept = {n: t for n, t in {**tensors, **other}.items() if t is not None}
        save_file(kept, path)
        for visit, state in ((visits.train, moved(server, 2)), (visits.evaluate, server)):
            with pytest.raises(Damaged, match=r"00001.*a network does not fit its settings"):
                visit(east, state, settings, run=RUN)


def test_bad_rows_are_said_before_anything_is_kept(silo, settings):
    east = silo("east", rows_of("east", 6))
    uses = (partial(announce, east), lambda s: visits.train(east, initial(s), s, run=RUN))
    for use in uses:
        with pytest.raises(DataError, match="6 rows with a label"):
            use(settings)
    assert not rounds(east)


def test_encoded_rows_are_for_their_owner_only(silo, settings):
    east = silo("east")
    visits.train(east, initial(settings), settings, run=RUN)
    assert (east.folder / "runs" / RUN).stat().st_mode & 0o077 == 0


def of_few_rows(silo):
    """A silo that does not want to tell anything of its 28 training rows."""
    east = silo("east")
    path = east.folder / "silo.toml"
    path.write_text(path.read_text() + "min_rows = 50\n")
    return SiloFolder.open(east.folder)


def test_a_silo_of_few_rows_tells_neither_losses_nor_a_shared_layer(silo):
    settings = settings_of(method="flic-hl")
    trained = visits.train(of_few_rows(silo), initial(settings), settings, run=RUN)
    assert (trained.update.entries, trained.losses) == ({}, {})
    enough = visits.train(silo("north"), initial(settings), settings, run=RUN)
    assert enough.losses
    assert any(not name.startswith("anchor") for name in enough.update.entries)


def test_a_silo_of_few_rows_links_nothing(silo):
    east, settings = of_few_rows(silo), settings_of(method="linked")
    with pytest.raises(FederationError, match=r"has 28 training rows; expected 50 at least"):
        announce(east, settings)
    with pytest.raises(FederationError, match=r"has 28 training rows"):
        visits.train(east, ServerState(-4, {}), settings, "prepare", run=RUN)


def test_a_coordinator_cannot_fill_the_disk_with_runs(silo, settings, monkeypatch):
    monkeypatch.setattr("flic.flower.silo_folder.MOST_RUNS", 2)
    east = silo("east")
    for run in ("a" * 16, "b" * 16, "a" * 16):
        visits.train(east, initial(settings), settings, run=run)
    with pytest.raises(FederationError, match=r"has 2 runs in .*Move those"):
        visits.train(east, initial(settings), settings, run="c" * 16)
