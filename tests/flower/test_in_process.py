"""Whole federations in this process: faults, and what is on the wire."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from flwr.app import Array, Context, MetricRecord, RecordDict
from flwr.common.serde import message_from_proto
from flwr.proto.message_pb2 import Message as ProtoMessage
from wire import inspect_answer, total, words_of

from flic.errors import FederationError, FlicError
from flic.flower.announcement import announce
from flic.flower.client_app import LONGEST
from flic.flower.log import events
from flic.flower.messages import RAW
from flic.flower.run_request import is_requested, request_run
from flic.flower.server_app import app, conduct
from hospitals import rows_of


def same(ours, theirs, tolerance=0.0):
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        torch.testing.assert_close(value, theirs[name], rtol=0, atol=tolerance, msg=name)


def shared(place):
    return place.coordinator.server.shared


def private(place, name):
    return place.silo(name).model().model.private


def told(place, name, event):
    return [line for line in events(place.grid.folders[name]) if line["event"] == event]


REGRESSION = {"task": "regression", "range": (0.0, 10.0), "label": "stay"}


@pytest.mark.slow
def test_silos_are_drawn_by_the_seed(here):
    place = here(participation=0.67, rounds=4)
    place.go()
    drawn = [r["active"] for r in place.coordinator.journal.records[:-1]]
    assert all(len(active) == 2 for active in drawn)
    assert len({tuple(active) for active in drawn}) > 1
    again = here(participation=0.67, rounds=4)
    again.go()
    assert [r["active"] for r in again.coordinator.journal.records[:-1]] == drawn


# ---- faults --------------------------------------------------------------------------------


def records(place):
    return place.coordinator.journal.records


def test_a_silo_that_joins_late_prepares_and_counts(here):
    place = here()
    place.grid.away = {"east"}
    place.go(2)
    place.grid.away = set()
    place.go(1)
    assert [r["absent"] for r in records(place)] == [{"east": "not connected"}] * 2 + [{}]
    assert records(place)[-1]["active"] == ["east", "north", "south"]
    kept = place.silo("east").folder.glob("runs/*/0*.safetensors")
    assert sorted(path.stem for path in kept) == ["00002", "00003"]


def test_a_silo_that_comes_back_goes_on_from_its_own_state(here):
    place = here()
    place.go(1)
    before = private(place, "east")
    place.grid.away = {"east"}
    place.go(1)
    same(private(place, "east"), before)
    place.grid.away = set()
    place.go(1)
    kept = place.silo("east").folder.glob("runs/*/0*.safetensors")
    assert sorted(path.stem for path in kept) == ["00001", "00003"]


def at_round(number, change):
    """The work of the silo in the east in one round of training."""

    def changed(name, round, content):
        is_update = bool(content["update"])
        return change(content) if (name, round, is_update) == ("east", number, True) else content

    return changed


def test_a_straggler_is_left_out_and_named(here, without_east):
    place = here()
    place.grid.change = at_round(2, lambda content: None)
    place.go(2)
    assert records(place)[-1]["absent"] == {"east": "no answer within 0.1 s"}
    same(shared(place), without_east)


def test_a_silo_that_fails_is_named_and_its_reason_stays_at_home(here):
    place = here()
    (place.grid.folders["east"] / "rows.csv").write_text("num,age\nwell,12.345\n")
    place.go(1)
    assert records(place)[-1]["absent"] == {
        "east": "error 2: no answer; the silo's own log says why"
    }
    assert "has 1 row with a label" in told(place, "east", "failed")[0]["message"]


def tensor(content, name="anchor.0.mean", **changes):
    """The answer with one tensor changed."""
    old = content["update"][name]
    facts = {"dtype": old.dtype, "shape": old.shape, "stype": old.stype, "data": old.data}
    content["update"][name] = Array(**{**facts, **changes})
    return content


def filled(content, value):
    return tensor(content, data=np.full(8, value, "<f4").tobytes())


def with_record(content, name, record):
    content[name] = record
    return content


def renamed(content):
    content["update"]["embedding.0.weight"] = content["update"]["anchor.0.mean"]
    content["weights"]["embedding.0.weight"] = 1.0
    return content


def heavy(content):
    return with_record(content, "weights", MetricRecord(dict.fromkeys(content["weights"], 1e6)))


BAD: dict[str, tuple[Callable[[RecordDict], RecordDict], str]] = {
    "nan": (lambda c: filled(c, np.nan), "NaN or infinite"),
    "huge": (lambda c: filled(c, 1e9), "times the median of the round"),
    "other shape": (lambda c: tensor(c, shape=(4, 2)), "expected float32[8]"),
    "one name more": (renamed, "'embedding.0.weight', which the server does not share"),
    "too large": (lambda c: tensor(c, data=bytes(2**20)), "at most"),
    "too heavy": (heavy, "weights other than 1"),
}


@pytest.mark.parametrize("what", BAD)
def test_a_bad_update_is_refused_and_does_no_harm(here, without_east, what):
    change, reason = BAD[what]
    place = here(max_message_mb=0.5)
    place.grid.change = at_round(2, change)
    place.go(2)
    refused = records(place)[-1]["refused"]
    assert list(refused) == ["east"]
    assert reason in refused["east"]
    assert records(place)[-1]["active"] == ["north", "south"]
    same(shared(place), without_east)
    place.go(1)
    assert records(place)[-1]["active"] == ["east", "north", "south"]
    [line] = told(place, "east", "refused")
    assert line["message"] == refused["east"]


def test_of_the_coordinators_words_a_silo_keeps_a_few(here):
    """It says why an update was refused, and could fill the disk of a silo."""
    place = here()
    place.coordinator.members.offend("east", "no " * 10_000, round=1)
    place.go(1)
    [line] = told(place, "east", "refused")
    assert line["message"] == ("no " * 10_000)[:LONGEST]


def scaled(factor):
    def lie(content):
        for name, old in content["update"].items():
            tensor(content, name, data=(factor * np.frombuffer(old.data, "<f4")).tobytes())
        return content

    return lie


def exchanged(content):
    anchors = content["update"]
    anchors["anchor.0.mean"], anchors["anchor.1.mean"] = (
        anchors["anchor.1.mean"],
        anchors["anchor.0.mean"],
    )
    return content


@pytest.mark.parametrize(
    ("lie", "reason"),
    [
        (scaled(-9), "away from what it was sent"),
        (exchanged, "as if the two were exchanged"),
        (scaled(1.5), "away from what it was sent"),
        (scaled(1.1), "away from what it was sent"),
    ],
    ids=["turned round", "exchanged", "inflated", "inflated by little"],
)
def test_one_silo_of_three_that_lies_in_every_round_is_named_and_does_no_harm(
    here, never_east, lie, reason
):
    place = here(rounds=4)
    place.grid.change = lambda name, round, content: (
        lie(content) if name == "east" and content["update"] else content
    )
    place.go()
    assert [[*record["refused"]] for record in records(place)[:4]] == [["east"]] * 3 + [[]]
    assert reason in records(place)[0]["refused"]["east"]
    assert place.coordinator.members.is_suspended("east")
    same(shared(place), never_east.server.shared)
    for name, scores in never_east.records[-1]["scores"].items():
        assert records(place)[-1]["scores"][name] == scores


def test_what_the_server_alone_decides_is_not_taken_from_a_silo(here):
    """One that sends its own meta-classes is refused, and the run goes on."""
    ours = Array(dtype="int64", shape=(2,), stype=RAW, data=np.array([0, 1], "<i8").tobytes())

    def sneaked(content):
        content["update"]["meta_classes"], content["weights"]["meta_classes"] = ours, 1.0
        return content

    place = here(network={"anchors": {"meta_classes": [0, 0]}})
    place.grid.change = at_round(1, sneaked)
    place.go(1)
    assert "which the server alone decides" in records(place)[-1]["refused"]["east"]
    assert shared(place)["meta_classes"].tolist() == [0, 0]


def test_a_replayed_update_of_an_old_round_is_refused(here, without_east):
    place = here()
    place.go(1)
    name, wire = next((n, w) for n, w in place.grid.sent if n == "east")
    old = message_from_proto(ProtoMessage.FromString(wire)).content
    place.grid.change = at_round(2, lambda content: old)
    place.go(1)
    assert "is of round 1; expected one of round 2" in records(place)[-1]["refused"][name]
    same(shared(place), without_east)


def test_who_offends_too_often_is_asked_no_more_until_admitted_again(here):
    place = here(rounds=4, max_offences=2)
    place.grid.change = lambda name, round, c: filled(c, 1e9) if name == "east" else c
    place.go(3)
    assert [list(r["refused"]) for r in records(place)] == [["east"], ["east"], []]
    assert place.coordinator.status()["silos"]["east"]["suspended"]
    assert [e["silo"] for e in events(place.folder) if e["event"] == "suspended"] == ["east"]
    place.grid.change = lambda name, round, content: content
    place.coordinator.members.admit("east", 103)
    place.go(1)
    assert "east" in records(place)[-1]["active"]


def test_a_revoked_silo_is_asked_no_more(here):
    place = here()
    place.go(1)
    members = place.coordinator.members
    assert [members.revoke("east"), members.revoke("east")] == [103, 103]  # it may be interrupted
    place.go(1)
    assert records(place)[-1]["active"] == ["north", "south"]
    members.forget("east")
    with pytest.raises(FlicError, match="expected one of 'north', 'south'"):
        members.revoke("east")


def test_tensors_in_the_last_round_are_refused(here):
    place, sneaked = here(), {}

    def change(name, round, content):
        if name == "east" and content["update"]:
            sneaked["update"], sneaked["weights"] = content["update"], content["weights"]
        if name == "east" and round == 4 and "data" in content["numbers"]:
            content["update"], content["weights"] = sneaked["update"], sneaked["weights"]
        return content

    place.grid.change = change
    place.go(3)
    before = shared(place)
    place.go()
    assert "from which none leaves" in records(place)[-1]["refused"]["east"]
    same(shared(place), before)


@pytest.mark.parametrize(
    "numbers",
    [
        {"test_right": 9.0},
        {"test_right": 1e12, "test_rows": 1.0},
        {"test_right": -1.0, "test_rows": 9.0},
    ],
)
def test_figures_that_are_none_are_not_recorded(here, numbers):
    place = here(evaluate_every=1)
    place.grid.change = lambda name, round, content: (
        with_record(content, "numbers", MetricRecord(numbers))
        if name == "east" and "test_rows" in content["numbers"]
        else content
    )
    place.go(1)
    assert sorted(records(place)[-1]["scores"]) == ["north", "south"]
    [told] = [line for line in events(place.folder) if line["event"] == "figures"]
    assert (told["silo"], told["round"]) == ("east", 1)


@pytest.mark.parametrize("weight", [1e9, 1.7e308])
def test_who_claims_far_more_rows_than_the_others_is_refused(here, weight):
    def heavy(name, round, content):
        if name != "east" or not content["weights"]:
            return content
        return with_record(
            content, "weights", MetricRecord(dict.fromkeys(content["weights"], weight))
        )

    place = here(weights="rows")
    place.grid.change = heavy
    place.go(1)
    why = records(place)[-1]["refused"]["east"]
    assert "counts for" in why or "expected one up to" in why
    assert all(value.isfinite().all() for value in shared(place).values())


def test_losses_too_large_to_be_averaged_are_refused(here):
    def large(name, round, content):
        if name == "north" or not content["update"]:
            return content
        return with_record(
            content, "numbers", MetricRecord(dict.fromkeys(content["numbers"], 1.7e308))
        )

    place = here(quorum=1)
    place.grid.change = large
    place.go(1)
    assert sorted(records(place)[-1]["refused"]) == ["east", "south"]


@pytest.mark.slow
def test_without_a_quorum_a_round_is_repeated_and_then_the_run_stops(here, undisturbed):
    place = here(quorum=3)
    request_run(place.folder)
    place.go(1)
    place.grid.away = {"east"}
    with pytest.raises(FederationError, match=r"east: not connected.* Tried 3 times"):
        place.go()
    assert len(records(place)) == 1
    assert not is_requested(place.folder)
    tries = [line["tries"] for line in events(place.folder) if line["event"] == "quorum"]
    assert tries == [1, 2, 3]
    problem = place.coordinator.status()["problem"]
    assert "round 2: 2 updates could be counted; expected 3" in problem
    place.grid.away = set()
    place.go()
    assert place.coordinator.status()["done"]
    assert place.coordinator.status()["problem"] is None
    same(shared(place), undisturbed.server.shared)


def test_a_quorum_counts_silos_that_send_something(here):
    place = here(quorum=3)
    with (place.grid.folders["east"] / "silo.toml").open("a") as file:
        file.write("min_rows = 50\n")  # more than it has: all of its anchors stay at home
    with pytest.raises(FederationError, match="2 updates could be counted; expected 3"):
        place.go()
    assert told(place, "east", "trained")[0]["left"] == []


def test_too_few_silos_for_a_quorum_are_said_before_anyone_works(here):
    place = here(names=["north"])
    with pytest.raises(FederationError, match=r"1 silo is admitted.*expected 2"):
        place.go()
    assert place.grid.sent == []


@pytest.mark.slow
@pytest.mark.parametrize("when", ["between rounds", "in a round", "in an evaluation"])
def test_a_coordinator_that_is_killed_goes_on_to_the_same_result(here, undisturbed, when):
    place = here(evaluate_every=1)
    request_run(place.folder)

    def killed(name, round, content):
        trains = "data" in content["numbers"]
        if (name, round) == ("north", 2) and trains == (when == "in a round"):
            raise KeyboardInterrupt
        return content

    if when == "between rounds":
        place.go(2)
    else:
        place.grid.change = killed
        with pytest.raises(KeyboardInterrupt):
            place.go()
        assert len(records(place)) == 1
    assert is_requested(place.folder)
    place.grid.change = lambda name, round, content: content
    place.go()
    assert not is_requested(place.folder)
    same(shared(place), undisturbed.server.shared)
    timeless = {"seconds": 0, "cpu_seconds": 0}
    plain = [{**r, **timeless} for r in records(place)]
    assert plain == [{**r, **timeless} for r in undisturbed.records]


def test_two_coordinators_do_not_work_on_one_folder(here):
    place = here()
    first = conduct(place.coordinator, place.grid)
    next(first)
    with pytest.raises(FlicError, match="another process"):
        place.go()
    first.close()


def test_a_class_of_few_rows_is_trained_on_and_not_told(here):
    place = here(frames={"east": rows_of("east", ill=5)})
    place.go(1)
    assert sum(place.silo("east").read(place.coordinator.settings)[0].y) == 5
    assert told(place, "east", "trained")[0]["left"] == ["anchor.0.mean"]
    assert told(place, "north", "trained")[0]["left"] == ["anchor.0.mean", "anchor.1.mean"]
    announced = announce(place.silo("east"), place.coordinator.settings)
    assert [e.what for e in announced if e.shape] == ["anchor.0.mean"]


def test_the_apps_are_those_that_flower_starts(here):
    place = here(rounds=1)
    config = {"coordinator-dir": str(place.folder)}
    app(place.grid, Context(1, 1, {}, RecordDict(), config))
    assert place.coordinator.status()["done"]
    assert [*place.silo("east").status()["rounds"].values()] == [2]


# ---- the wire ------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [{}, {"method": "flic-hl", "weights": "rows"}, REGRESSION],
    ids=["class", "hidden-layer", "responses"],
)
def test_only_what_was_announced_leaves_a_silo(here, changes):
    place = here(evaluate_every=1, **changes)
    place.go()
    settings, names = place.coordinator.settings, set(shared(place))
    sent = [(n, message_from_proto(ProtoMessage.FromString(w)).content) for n, w in place.grid.sent]
    assert len(sent) == 3 * 8
    for name, content in sent:
        inspect_answer(place.silo(name), settings, names, content)
    for record in records(place)[:3]:
        for name, count in record["bytes"].items():
            assert count == total(announce(place.silo(name), settings), "every round")


@pytest.mark.slow
def test_no_word_of_a_silo_s_file_is_on_the_wire(here):
    place = here(evaluate_every=1)
    place.go()
    wire = b"".join(wire for _, wire in place.grid.sent)
    for name in place.grid.folders:
        assert not [word for word in words_of(place.silo(name)) if word.encode() in wire]


def test_a_silo_that_comes_during_a_round_is_named_as_not_there_when_it_began(here):
    place = here()
    place.grid.away = {"east"}

    def comes(name, round, content):
        place.grid.away = set()
        return content

    place.grid.change = comes
    place.go(1)
    assert records(place)[0]["absent"] == {"east": "not connected"}
