"""Linked columns over Flower: five rounds, keys for names, and nothing of who failed."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from flwr.common.serde import message_from_proto
from flwr.proto.message_pb2 import Message as ProtoMessage

from flic.errors import Damaged, FederationError
from flic.flower import visits
from flic.flower.announcement import announce
from flic.flower.coordinator_folder import Coordinator
from flic.flower.log import events
from flic.flower.ops.benchmark import simulated
from flic.flower.pooling import feature_keys
from flic.flower.silo_figures import largest_error
from flic.flower.silo_folder import held_out
from flic.methods.linked.sums import SENT
from hospitals import (
    COLUMNS,
    PLAIN,
    SALT,
    WIDE_OPEN,
    assert_told,
    like,
    linked_frames,
    make_here,
    opened,
    rows_of,
    state,
)
from sealing import sealed

LINKED = {"method": "linked", "network": {"linked": WIDE_OPEN}, "salt": SALT, **PLAIN}
NAMES = ["east", "north", "south"]


@pytest.fixture
def linked(here):
    """linked(**settings): a federation of linked columns that has not begun, and tells all."""
    return lambda **changes: opened(here(**{"frames": linked_frames(), **LINKED, **changes}))


def announced(place, name, number):
    """Bytes that a silo with these links was told would leave in a round, at most."""
    links = place.silo(name).status()["links"].popitem()[1]
    entries = announce(place.silo(name), place.coordinator.settings)
    due = [e for e in entries if e.when == f"once, in round {number}" and e.linked <= len(links)]
    return sum(e.num_bytes for e in due)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A federation that is done, with all that was sent."""
    place = opened(make_here(tmp_path_factory.mktemp("whole"), frames=linked_frames(), **LINKED))
    place.go()
    return place


@pytest.fixture(scope="module")
def without_east(tmp_path_factory):
    """A federation that is done, and in which the silo in the east never was."""
    root = tmp_path_factory.mktemp("without-east")
    place = opened(make_here(root, frames=linked_frames(), names=["north", "south"], **LINKED))
    place.go()
    return place


@pytest.mark.parametrize("rounds", [1, 2, 3])
def test_other_tensors_are_refused_whatever_the_checksums_say(linked, rounds):
    place = linked()
    place.go(rounds)
    assert place.coordinator.journal.records
    sealed(place.coordinator.folder, "server", lambda shared: shared.update(x=torch.zeros(1)))
    with pytest.raises(Damaged, match="the shared 'x' is missing, unknown or not what"):
        _ = place.coordinator.journal


def records(place):
    return place.coordinator.journal.records


def same(ours, theirs, tolerance=0.0):
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        torch.testing.assert_close(value, theirs[name], rtol=tolerance, atol=tolerance, msg=name)


def answers(place):
    return [(n, message_from_proto(ProtoMessage.FromString(w)).content) for n, w in place.grid.sent]


RESPONSES = {"task": "regression", "range": (0.0, 10.0), "label": "stay"}


def test_five_rounds(whole):
    assert [r["round"] for r in records(whole)] == [-4, -3, -2, -1, 0]
    status = whole.coordinator.status()
    assert (status["done"], status["rounds_done"], status["rounds"]) == (True, 5, 5)
    assert {own["last_round"] for own in status["silos"].values()} == {5}


@pytest.mark.slow
def test_responses_are_pooled_and_predicted(linked):
    place = linked(**RESPONSES)
    place.go()
    silo, settings = place.silo("south"), place.coordinator.settings
    table, _ = silo.read(settings)
    _, test = held_out(table, 0.25)
    frame = pd.read_csv(silo.folder / "rows.csv").iloc[test]
    errors = (silo.model().predict(frame).values - frame["stay"]) ** 2
    figures, error = records(place)[-1]["scores"]["south"], errors.sum()
    step = largest_error(settings.common_task, torch.tensor(frame["stay"].to_numpy())) ** 2
    assert abs(errors.clip(upper=step).sum() - figures["test_squared_error"]) < step
    assert error < ((frame["stay"] - frame["stay"].mean()) ** 2).sum() * 0.8
    for name in NAMES:
        for number, record in enumerate(records(place), start=1):
            assert record["bytes"][name] <= announced(place, name, number)


@pytest.mark.slow
def test_large_responses_do_not_hide_a_map_out_of_proportion(linked):
    frames = {
        name: frame.assign(stay=frame["stay"] * 1e5) for name, frame in linked_frames().items()
    }
    place = linked(**{**RESPONSES, "range": (0.0, 1e6)}, frames=frames)
    place.grid.change = lying(-2, all_but_last_of(MAPPED + "total", 1e3))
    place.go(3)
    assert [*records(place)[-1]["refused"]] == ["east"]


def test_a_silo_whose_responses_are_in_other_units_is_refused(linked):
    place = linked(**RESPONSES)
    place.grid.change = lying(-3, last_of(SUMS + "total", 1e9))
    place.go(2)
    assert [*records(place)[-1]["refused"]] == ["east"]


def test_a_silo_s_model_is_the_one_that_was_measured(whole):
    place = whole
    silo, settings = place.silo("south"), place.coordinator.settings
    table, _ = silo.read(settings)
    _, test = held_out(table, 0.25)
    frame = pd.read_csv(silo.folder / "rows.csv").iloc[test]
    right = (silo.model().predict(frame).values == frame["num"]).sum()
    exact = {"test_right": right, "test_rows": len(test)}
    assert_told(records(place)[-1]["scores"]["south"], exact)


def tell_less(place, **scatter):
    """Silos that keep to themselves how their columns vary, or vary together."""
    for name, own in scatter.items():
        state(place, name, scatter=own)


def numbers_sent(place, name):
    """The number of sums that left a silo: all but counts."""
    arrays = [
        array
        for who, content in answers(place)
        for record in content.array_records.values()
        for key, array in record.items()
        if who == name and key.rsplit(".")[-1] in ("total", "variance", "cross")
    ]
    return sum(int(np.prod(array.shape)) for array in arrays)


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.5, 1.5, 20.0])
def test_a_silo_tells_no_more_numbers_than_its_rows_can_hide_in(here, share):
    usual = {
        **LINKED,
        "network": {"linked": {"random_features": 24, "max_numbers_per_value": share}},
    }
    place = here(frames=linked_frames(), **usual)
    for name in NAMES:
        state(place, name, max_numbers_per_value=share)
    place.go()
    assert records(place)[-1]["active"] == NAMES
    settings, silos = place.coordinator.settings, [place.silo(name) for name in NAMES]
    same(place.coordinator.server.shared, simulated(settings, silos).server.shared, 1e-6)
    for silo in silos:
        data = max(silo._runs(), key=lambda run: run.changed).client
        values = len(data.train) * data.schema.dim
        assert 0 < numbers_sent(place, silo.name) <= share * values
        for number, record in enumerate(records(place), start=1):
            assert record["bytes"][silo.name] <= announced(place, silo.name, number)


@pytest.mark.slow
def test_the_fewer_numbers_per_value_of_silo_and_federation_hold(linked):
    place = linked()
    state(place, "north", scatter="full")
    path = place.silo("east").folder / "silo.toml"
    path.write_text(
        path.read_text().replace("max_numbers_per_value = 1000000.0", "max_numbers_per_value = 0.1")
    )
    place.go()
    kinds = {name: set() for name in NAMES}
    for name, content in answers(place):
        for record in content.array_records.values():
            kinds[name] |= {key.split(".")[2] for key in record if key.startswith("moments.")}
    assert kinds == {
        "east": {"linear"},
        "north": {"linear", "mapped"},
        "south": {"linear", "mapped"},
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("agreed", "own", "details"),
    [
        ("full", "projected", ("diagonal", "full")),
        ("full", "directions", ("diagonal", "diagonal")),
        ("directions", "diagonal", ("diagonal", "diagonal")),
        ("directions", "projected", ("diagonal", "diagonal")),
    ],
)
def test_every_silo_decides_what_it_tells_of_its_scatter(linked, agreed, own, details):
    place = linked(network={"linked": {**WIDE_OPEN, "scatter": agreed}})
    tell_less(place, north="off", south=own)
    place.go()
    sent = {(name, kind): set() for name in NAMES for kind in ("linear", "mapped")}
    for name, content in answers(place):
        for record in content.array_records.values():
            for key in record:
                if key.startswith("moments."):
                    _, _, kind, what = key.split(".")
                    sent[name, kind].add(what)
    told = {"east": (agreed, agreed), "north": ("off", "off"), "south": details}
    for name, both in told.items():
        for kind, detail in zip(("linear", "mapped"), both, strict=True):
            assert sent[name, kind] == {*SENT[detail]}
    for name in NAMES:
        for number, record in enumerate(records(place), start=1):
            assert record["bytes"][name] <= announced(place, name, number)
    sums = place.coordinator.server.shared
    if agreed == "full":
        _, together, _ = sums["moments.linked.linear.pairs"]  # of age and pulse, who tells of both
        assert together == 0 < sums["moments.linked.mapped.pairs"][0]
    scores = records(place)[-1]["scores"].values()
    assert sum(own["test_right"] for own in scores) > sum(own["test_rows"] for own in scores) / 2


@pytest.mark.slow
def test_one_that_alone_tells_its_scatter_takes_part_like_the_others(linked):
    place = linked(network={"linked": {**WIDE_OPEN, "random_features": 512}})
    tell_less(place, south="off", east="off")
    place.go()
    assert [r["round"] for r in records(place)] == [-4, -3, -2, -1, 0]
    assert records(place)[-1]["active"] == NAMES
    assert all(value.isfinite().all() for value in place.coordinator.server.shared.values())


@pytest.mark.slow
def test_a_silo_tells_no_more_than_the_federation_asks_for(linked):
    network = {"linked": {**WIDE_OPEN, "scatter": "off"}}
    place = linked(network=network)
    tell_less(place, south="full")
    place.go()
    names = {e.what for e in announce(place.silo("south"), place.coordinator.settings)}
    assert not {name for name in names if name.endswith((".variance", ".cross"))}
    assert not {n for n in place.coordinator.server.shared if n.endswith(".variance")}


def fails(name, at):
    """The silo gives no answer in one round, and none after."""
    return lambda who, round, content: None if who == name and round >= at else content


@pytest.mark.slow
@pytest.mark.parametrize("at", [-4, -3, -2, -1, 0])
def test_who_fails_is_left_out_as_if_it_had_never_been_there(linked, without_east, at):
    place = linked()
    place.grid.change = fails("east", at)
    place.go()
    same(place.coordinator.server.shared, without_east.coordinator.server.shared)
    ours, theirs = (own[-1] for own in (records(place), records(without_east)))
    assert ours["scores"] == theirs["scores"]
    assert [r["round"] for r in records(place)] == {
        -4: [-4, -3, -2, -1, 0],
        -3: [-4, -3, -2, -1, 0],
        -2: [-4, -3, -3, -2, -1, 0],
        -1: [-4, -3, -2, -3, -2, -1, 0],
        0: [-4, -3, -2, -1, -3, -2, -1, 0],
    }[at]
    told = [e["silos"] for e in events(place.folder) if e["event"] == "left out"]
    assert told == ([] if at == -4 else [["east"]])
    assert place.silo("north").status()["links"].popitem()[1] == {"age": 1, "pulse": 1}
    assert not list(place.folder.glob("pooled/*"))


def test_a_silo_learns_how_many_have_its_columns_and_not_who(whole):
    place = whole
    links = {name: place.silo(name).status()["links"].popitem()[1] for name in NAMES}
    assert links["north"] == {"age": 2, "pulse": 1}
    assert links["east"] == {"age": 2}


@pytest.mark.slow
def test_without_a_quorum_nothing_is_pooled_and_a_new_coordinator_goes_on(linked, whole):
    place = linked(quorum=3)
    place.grid.change = fails("east", -2)
    with pytest.raises(FederationError, match=r"2 updates could be counted; expected 3"):
        place.go()
    assert [r["round"] for r in records(place)] == [-4, -3]
    place.grid.change = lambda name, round, content: content
    place.go(1)  # by a coordinator that began anew
    place.go()
    same(place.coordinator.server.shared, whole.coordinator.server.shared)


# ---- the wire ------------------------------------------------------------------------------


def test_names_travel_as_keys(whole):
    place = whole
    wire = b"".join(wire for _, wire in place.grid.sent)
    for name in NAMES:
        assert not [c for c in COLUMNS[name] if len(c) > 4 and c.encode() in wire]
    with_keys = [(n, c) for n, c in answers(place) if "keys" in c["answer"]]
    assert sorted(n for n, _ in with_keys) == sorted(3 * NAMES)  # all keys, the linked ones twice
    salt = place.coordinator.settings.salt
    age = feature_keys(salt, ["age"])[0]
    assert all(age in c["answer"]["keys"] for _, c in with_keys)
    assert feature_keys("0b" * 16, ["age"])[0] != age


def test_a_new_federation_has_a_salt_of_its_own(here):
    salts = {here(**{**LINKED, "salt": ""}).coordinator.settings.salt for _ in range(2)}
    assert len(salts) == 2
    assert all(len(salt) == 32 for salt in salts)


def test_a_silo_is_sent_sums_of_its_own_columns_alone(linked):
    place, sent = linked(), {}
    ask = place.grid.ask

    def look(name, message):
        shared = message.content["shared"]
        sent[name] = {n: tuple(a.shape) for n, a in shared.items()}
        return ask(name, message)

    place.grid.ask = look
    place.go(3)
    for name in NAMES:
        run = max(place.silo(name)._runs(), key=lambda run: run.changed)
        width = run.client.schema.dim
        [links] = sent[name]["links.places"]
        sums = {n: s[-1] for n, s in sent[name].items() if ".linear." in n}
        assert links <= width
        assert sums["moments.linked.linear.total"] == sums["moments.linked.linear.dof"] == links
        assert sums["moments.linked.linear.behind"] == links
        assert sent[name]["moments.linked.linear.along"] == (links, 1)


def test_what_leaves_was_announced(whole):
    place = whole
    for name in NAMES:
        for number, record in enumerate(records(place), start=1):
            assert record["bytes"][name] <= announced(place, name, number)


@pytest.mark.slow
def test_a_silo_is_told_which_column_is_unlike_and_which_predictor_serves_it(linked):
    frames = {n: like(f, a=10, b=20, c=30, d=40, e=50) for n, f in linked_frames().items()}
    frames["north"] = frames["north"].assign(a=frames["north"]["a"] * 100)
    place = linked(frames=frames, norm_factor=1e6)
    place.go()
    notes = {name: place.silo(name).status()["notes"].popitem()[1] for name in NAMES}
    assert any("column 'a' is unlike the same column of other" in line for line in notes["north"])
    for name, own in notes.items():
        assert any(line.startswith(f"client '{name}': the other clients' columns") for line in own)


def test_a_class_of_few_rows_is_in_no_sum(linked):
    few = rows_of("east", ill=5)  # of which one or two are held out
    place = linked(frames={**linked_frames(), "east": few})
    place.go(2)
    _, sums = [c["update"] for n, c in answers(place) if n == "east"]
    count = np.frombuffer(sums["moments.linked.linear.count"].data, "<f8").reshape(2, -1)
    assert count[0].min() > 5
    assert count[1].max() == 0


# ---- lies ----------------------------------------------------------------------------------


def lying(at, change):
    def changed(name, round, content):
        return change(content) if (name, round) == ("east", at) else content

    return changed


def scaled(part, factor, offset=0.0):
    def change(content):
        old = content["update"][part]
        data = np.frombuffer(old.data, "<f8") * factor + offset
        content["update"][part] = replace(old, data=data.tobytes())
        return content

    return change


def last_of(part, factor):
    """Only the response of a silo's sums, which stands last."""
    return some_of(part, slice(-1, None), factor)


def all_but_last_of(part, factor):
    """All but the response."""
    return some_of(part, slice(-1), factor)


def some_of(part, which, factor):
    def change(content):
        old = content["update"][part]
        data = np.frombuffer(old.data, "<f8").copy()
        data[which] *= factor
        content["update"][part] = replace(old, data=data.tobytes())
        return content

    return change


def other_keys(keys):
    def change(content):
        content["answer"]["keys"] = keys(content["answer"].get("keys", []))
        return content

    return change


def without(*parts):
    def change(content):
        for part in [part for part in content["update"] if part.startswith(parts)]:
            del content["update"][part]
            del content["weights"][part]
        return content

    return change


def mute(content):
    """No keys, and no sums either."""
    del content["answer"]["keys"]
    return without("")(content)


SUMS, MAPPED = "moments.linked.linear.", "moments.linked.mapped."
BAD = {
    "huge": (-3, scaled(SUMS + "total", 1e9), "times as large as others'"),
    "nan": (-3, scaled(SUMS + "variance", np.nan), "NaN"),
    "negative": (-3, scaled(SUMS + "count", -1.0), "are of no rows"),
    "no keys": (-4, other_keys(lambda keys: []), "holds no keys of columns"),
    "one key twice": (-4, other_keys(lambda keys: keys[:1] * len(keys)), "holds no keys"),
    "sums of no keys": (-3, other_keys(lambda keys: []), "which the server does not share"),
    "sums of fewer": (-3, other_keys(lambda keys: keys[1:]), "which the server does not share"),
    "sums of others": (-3, other_keys(lambda keys: ["0" * 32]), "sums of other columns"),
    "no sums": (-3, without(SUMS), "expected at least count, total"),
    "no totals": (-3, without(SUMS + "total"), "expected at least count, total"),
    "half a pair": (-3, without(SUMS + "dof"), "and others in pairs"),
    "mute": (-3, mute, "sums of other columns"),
    "huge directions": (-2, scaled(SUMS + "core", 1e9), "times as large as others'"),
    "no rows along directions": (-2, scaled(SUMS + "behind", 0.0), "are of no rows"),
    "half of the directions": (-2, without(SUMS + "core"), "expected at least count, total"),
    "directions of no keys": (-2, other_keys(lambda keys: []), "expected float64"),
    "no totals of a map": (-2, without(MAPPED + "total"), "expected at least count, total"),
    "huge map": (-2, scaled(MAPPED + "total", 1e9), "times as large as others'"),
    "keys again": (-2, other_keys(lambda keys: ["0" * 32]), "sums of other columns"),
    "too likely": (-1, scaled("scores.own.linked", 1.0, 30.0), "likelihoods that are none"),
    "too unlikely": (0, scaled("scores.mix.linked", 1e9), "likelihoods that are none"),
}


@pytest.mark.parametrize("what", BAD)
def test_a_lie_is_refused_and_its_silo_left_out(linked, what):
    at, change, reason = BAD[what]
    place = linked()
    place.grid.change = lying(at, change)
    place.go(at + 5)
    last = records(place)[-1]
    assert [*last["refused"]] == ["east"]
    assert reason in last["refused"]["east"]
    assert (last["round"], last["active"]) == (min(at, -3), ["north", "south"])


# ---- few rows, and few that changed ---------------------------------------------------------


def test_nothing_but_keys_leaves_before_it_is_known_which_columns_are_shared(whole):
    first, *_ = [c for n, c in answers(whole) if n == "north"]
    assert not first["update"]
    assert not first["numbers"]
    shared = {
        n: c["update"] for n, c in answers(whole) if "moments.linked.linear.total" in c["update"]
    }
    width = {name: own["moments.linked.linear.total"].shape[1] for name, own in shared.items()}
    assert width == {"east": 1, "north": 2, "south": 2}  # age, and pulse of two


@pytest.mark.slow
def test_a_column_of_fewer_silos_than_agreed_is_in_no_sum(linked):
    place = linked(min_holders=3)
    place.go()
    assert place.silo("north").status()["links"].popitem()[1] == {"age": 2, "pulse": 1}
    widths = {
        c["update"][SUMS + "total"].shape[1]
        for _, c in answers(place)
        if SUMS + "total" in c["update"]
    }
    assert widths == {1}


def begun_anew(place, frame):
    """A second run of the same silos, of which the one in the east has other rows."""
    frame.to_csv(place.silo("east").folder / "rows.csv", index=False)
    coordinator = place.coordinator
    for path in coordinator.folder.glob("checkpoints/*"):
        path.unlink()
    facts = coordinator.folder / "federation.json"
    facts.write_text(facts.read_text().replace(coordinator.run, "f" * 16))


@pytest.mark.slow
@pytest.mark.parametrize(("changed", "is_told"), [(0, True), (1, False), (4, False), (12, True)])
def test_almost_the_same_rows_are_not_told_again(linked, changed, is_told):
    place = linked()
    place.go()
    silo = place.silo("east")
    train, _ = held_out(silo.read(place.coordinator.settings)[0], 0.25)
    frame = pd.read_csv(silo.folder / "rows.csv")
    frame.loc[train[:changed], frame.columns.drop(["num", "stay"], errors="ignore")] += 1.5
    begun_anew(place, frame.sample(frac=1, random_state=3))
    place.go()
    assert ("east" in records(place)[-1]["active"]) == is_told


def with_one_more_held_out(silo, settings):
    """The silo's table with a row more, which is held out and moves no other."""
    frame = pd.read_csv(silo.folder / "rows.csv")

    def split(rows):
        rows.to_csv(silo.folder / "rows.csv", index=False)
        found = held_out(silo.read(settings)[0], 0.25)
        return [{*rows.iloc[part].itertuples(index=False)} for part in found]

    train, test = split(frame)
    for k in range(200):
        row = frame.iloc[[k % 2]]
        more = pd.concat([frame, row.assign(age=row["age"] + 0.001 * k)])
        now = split(more)
        if now[0] == train and len(now[1] - test) == 1:
            return more
    raise AssertionError("no such row")


@pytest.mark.slow
def test_figures_of_almost_the_same_held_out_rows_are_not_told(linked):
    place = linked()
    place.go()
    assert "east" in records(place)[-1]["scores"]
    begun_anew(place, with_one_more_held_out(place.silo("east"), place.coordinator.settings))
    place.go()
    assert "east" in records(place)[-1]["active"]
    assert sorted(records(place)[-1]["scores"]) == ["north", "south"]


def test_the_split_depends_on_what_is_in_a_row_and_not_on_the_others(linked):
    place = linked()
    silo, settings = place.silo("east"), place.coordinator.settings

    def held():
        table, _ = silo.read(settings)
        return {*table.frame.iloc[held_out(table, 0.25)[1]].astype(str).agg("|".join, axis=1)}

    before, frame = held(), pd.read_csv(silo.folder / "rows.csv")
    frame.sample(frac=1, random_state=1).to_csv(silo.folder / "rows.csv", index=False)
    assert held() == before
    frame.iloc[1:].to_csv(silo.folder / "rows.csv", index=False)
    assert len(held() ^ before) <= 2


@pytest.mark.slow
def test_figures_of_few_held_out_rows_are_not_told(linked):
    few = rows_of("east").groupby("num").head(8)  # of which four are held out
    place = linked(frames={**linked_frames(), "east": few})
    place.go()
    last = records(place)[-1]
    assert "east" in last["active"]
    assert sorted(last["scores"]) == ["north", "south"]
    assert not [event for event in events(place.folder) if event["event"] == "figures"]


@pytest.mark.slow
def test_a_level_of_few_rows_is_told_by_no_key(linked):
    frames = {
        name: frame.assign(ward=np.where(np.arange(len(frame)) < 3, "rare", "usual"))
        for name, frame in linked_frames().items()
    }
    place = linked(frames=frames)
    place.go()
    guessed = feature_keys(place.coordinator.settings.salt, ["ward (category) = rare"])
    sent = [key for _, c in answers(place) if "keys" in c["answer"] for key in c["answer"]["keys"]]
    assert sent
    assert not {*guessed} & {*sent}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda server, holders: (server, holders[:-1]), "1 count of who has its 2 features"),
        (
            lambda server, holders: (replace(server, round=-1), holders),
            "asked for figures in round",
        ),
        (lambda server, holders: (lacking(server, "links.places"), holders), "not told which"),
        (lambda server, holders: (lacking(server, "scores.unlike"), holders), "'scores.unlike' is"),
    ],
    ids=["holders", "round", "places", "tensor"],
)
def test_a_request_that_does_not_fit_is_refused_with_a_sentence(linked, change, reason):
    place = linked()
    place.go()
    coordinator, silo = Coordinator.open(place.folder), place.silo("east")
    server = coordinator.journal.server
    coordinator.rules.pooling.keep_keys(
        {n: place.silo(n).newest().client.schema.features for n in NAMES}
    )
    shared, holders = change(
        coordinator.rules.shared_with("east", server), coordinator.rules.holders("east")
    )
    with pytest.raises(FederationError, match=reason):
        visits.evaluate(silo, shared, coordinator.settings, run=coordinator.run, holders=holders)


def lacking(server, name):
    return replace(server, shared={n: v for n, v in server.shared.items() if n != name})
