"""Training under masks: the plain average comes out, and no silo's α or anchors do."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from flwr.app import Array
from flwr.common.serde import message_from_proto
from flwr.proto.message_pb2 import Message as ProtoMessage
from test_linked_rounds import records
from test_masks import uniformity
from test_secure_sums import Operator, failing, failures, phase_of

from flic.errors import ConfigError, FederationError
from flic.flower import visits
from flic.flower.federation_settings import federation_settings
from flic.flower.log import events
from hospitals import BETWEEN_MACHINES, FIVE, alike_frames, make_here, state

NETWORKS = sorted({*BETWEEN_MACHINES} - {"linked"})
THREE = ["east", "north", "south"]
MASKED = {"secure_sums": True, "deadline_s": 5.0, "max_features": 16}


@pytest.fixture
def secure(here):
    """secure(names, **settings): a federation that trains under masks and has not begun."""

    def make(names=THREE, **changes):
        return here(**{"frames": alike_frames(names), "names": names, **MASKED, **changes})

    return make


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A federation of three that is done, with all that was sent."""
    root = tmp_path_factory.mktemp("secure-training")
    place = make_here(root, frames=alike_frames(THREE), names=THREE, method="flic-hl", **MASKED)
    place.go()
    return place


def plain_of(place, root, **changes):
    """The same federation without masks, whose updates are averaged one by one."""
    settings = place.coordinator.settings
    own = {"method": settings.method, **MASKED, **changes, "secure_sums": False, "average": "mean"}
    names = [*place.grid.folders]
    return make_here(root, frames=alike_frames(names), names=names, **own).go()


def answers(place):
    sent = [(n, message_from_proto(ProtoMessage.FromString(w))) for n, w in place.grid.sent]
    return [(name, message.content) for name, message in sent if message.has_content()]


def assert_alike(ours, theirs):
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        assert value.dtype == theirs[name].dtype
        # Two rounds are trained from the first one's average, which may differ by a rounding.
        torch.testing.assert_close(value, theirs[name], rtol=1e-4, atol=1e-5, msg=name)


# ---- the result ----------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("method", NETWORKS)
def test_the_result_is_that_of_plain_averages(secure, tmp_path, method):
    place = secure(method=method, rounds=2)
    shared = place.go().server.shared
    (tmp_path / "plain").mkdir()
    assert_alike(shared, plain_of(place, tmp_path / "plain", rounds=2).server.shared)
    assert any(float(value.abs().sum()) > 0 for value in shared.values())


def test_one_round_is_the_plain_average_to_a_rounding(secure, tmp_path):
    place = secure(weights="rows", rounds=1)
    masked = place.go().server.shared
    (tmp_path / "plain").mkdir()
    plain = plain_of(place, tmp_path / "plain", weights="rows", rounds=1).server.shared
    first = place.coordinator.rules.initial().shared
    assert any(not torch.equal(masked[name], first[name]) for name in first)
    for name, value in masked.items():
        torch.testing.assert_close(value, plain[name], rtol=2e-7, atol=1e-9, msg=name)


def test_all_rounds_are_of_the_same_silos_and_the_last_sends_nothing(whole):
    assert [r["round"] for r in records(whole)] == [1, 2, 3, 4]
    assert [r["active"] for r in records(whole)] == [THREE] * 4
    assert [*records(whole)[-1]["scores"]] == ["3 silos"]


# ---- what leaves ---------------------------------------------------------------------------


def test_each_masked_message_is_uniform_and_nothing_else_leaves(whole):
    masked = []
    for _, content in answers(whole):
        assert {*content["update"]} <= {"masked"}
        assert not content["numbers"]
        masked += [np.frombuffer(a.data, "<u8") for a in content["update"].values()]
    assert len(masked) == 4 * len(THREE)  # three rounds, and figures
    for words in masked:
        assert len(words) < 100 or 1e-4 < uniformity(words) < 1 - 1e-4
    words = np.concatenate(masked)
    assert len(np.unique(words)) == len(words)


def test_without_masks_the_same_audit_finds_anchors(whole, tmp_path):
    """The audit can fail: of a plain run it finds tensors and losses."""
    place = make_here(
        tmp_path, frames=alike_frames(THREE), names=THREE, **(MASKED | {"secure_sums": False})
    )
    place.go(1)
    contents = [content for _, content in answers(place)]
    assert any({*content["update"]} - {"masked"} for content in contents)
    assert any(content["numbers"] for content in contents)


def test_an_anchor_of_a_class_that_few_silos_have_stays_as_it_was(secure):
    frames = alike_frames(THREE)
    frames["east"] = frames["east"].drop(frames["east"].index[frames["east"]["num"] == "ill"][4:])
    place = secure(frames=frames, rounds=1)
    shared, first = place.go().server.shared, place.coordinator.rules.initial().shared
    moved = {name for name in first if not torch.equal(first[name], shared[name])}
    assert moved == {"anchor.0.mean"}


# ---- silos that fail, and operators who subtract -------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("phase", ["advertise", "mask", "unmask"])
def test_a_silo_that_is_away_holds_the_run_up_and_comes_back(secure, tmp_path, phase):
    place = secure(names=FIVE, deadline_s=0.3)
    place.go(1)
    place.grid.change = failing("east", 2, phase)
    in_time = phase == "unmask"  # its numbers and its signature have arrived
    if in_time:
        place.go(1)
    else:
        with pytest.raises(FederationError, match="Tried 3 times"):
            place.go()
        assert [r["round"] for r in records(place)] == [1]
    place.grid.change = lambda name, round, content: content
    shared = place.go().server.shared
    assert [r["active"] for r in records(place)] == [FIVE] * 4
    (tmp_path / "plain").mkdir()
    assert_alike(shared, plain_of(place, tmp_path / "plain").server.shared)


def test_who_is_missing_is_named_and_nobody_is_asked(secure):
    place = secure(deadline_s=0.1)
    place.go(1)
    place.grid.away, sent = {"east"}, len(place.grid.sent)
    with pytest.raises(FederationError, match=r"expected east too\."):
        place.go()
    assert len(place.grid.sent) == sent


def test_a_later_round_over_other_silos_is_refused_by_all_who_were_in_an_earlier(secure):
    """Between two rounds little changes: their difference would be one silo's part."""
    place = secure(names=FIVE, deadline_s=0.3)
    place.go(1)
    (place.folder / "masked.json").unlink()  # an operator who forgets on purpose
    place.grid.away = {"west"}
    with pytest.raises(FederationError, match="Tried 3 times"):
        place.go()
    for name in FIVE[:-1]:
        assert "with, west; expected the same silos" in failures(place, name)[-1]
    assert [r["round"] for r in records(place)] == [1]


def test_another_run_with_the_same_seed_over_other_silos_is_refused(here, secure):
    first = secure(names=FIVE, deadline_s=0.3)
    first.go(1)
    again = {"frames": alike_frames(FIVE), **MASKED, "deadline_s": 0.3}
    second = here(names=FIVE[:-1], **again)
    with pytest.raises(FederationError, match="Tried 3 times"):
        second.go()
    assert "with, west" in failures(second, "north")[-1]
    here(names=FIVE[:-1], **again, seed=1).go(1)  # another seed: nothing to subtract


def test_a_silo_knows_with_whom_it_was_in_a_total_though_its_run_was_moved_away(secure):
    place = secure(names=FIVE, deadline_s=0.3)
    place.go(1)
    for folder in place.grid.folders.values():
        shutil.rmtree(folder / "runs")
    for own in ("masked.json", "checkpoints"):
        path = place.folder / own
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    place.grid.away = {"west"}
    with pytest.raises(FederationError, match="Tried 3 times"):
        place.go()
    assert "with, west; expected the same silos" in failures(place, "north")[-1]


def test_nearly_the_same_rows_count_as_the_same(here, secure):
    secure(names=FIVE, deadline_s=0.3).go(1)
    fewer = here(names=FIVE[:-1], **MASKED | {"deadline_s": 0.3})
    for name in FIVE[:-1]:
        path = fewer.silo(name).folder / "rows.csv"
        path.write_text("\n".join(path.read_text().splitlines()[:-2]) + "\n")
    with pytest.raises(FederationError, match="Tried 3 times"):
        fewer.go()
    assert "with, west" in failures(fewer, "north")[-1]


def test_a_run_in_which_nobody_has_enough_rows_to_tell_of_says_so(secure):
    place = secure(deadline_s=0.1, min_rows=30)
    with pytest.raises(FederationError, match="too few silos have anything to tell"):
        place.go()
    assert not records(place)


def test_a_silo_that_speaks_of_false_totals_where_there_are_none_is_refused(secure):
    place = secure(names=FIVE, deadline_s=0.3)

    def lies(name, round, content):
        if name == "east" and phase_of(content) == "advertise":
            content["answer"]["statement"] = json.dumps({"false_totals": 0})
        return content

    place.grid.change = lies
    place.go(1)
    assert records(place)[0]["active"] == [name for name in FIVE if name != "east"]
    assert "totals are false" in records(place)[0]["refused"]["east"]


def test_figures_of_responses_of_any_range_are_added(secure):
    place = secure(task="regression", range=(0.0, 1e12), label="stay", rounds=1)
    place.go()
    figures = records(place)[-1]["scores"]["3 silos"]
    assert figures["test_rows"] == 30
    assert figures["test_squared_error"] >= 0
    assert 0 < figures["test_spread"] < 1e4  # responses are from 5 to 9


def test_plain_training_is_refused_where_masks_were_agreed(secure):
    place = secure(deadline_s=0.1)
    operator = Operator(place)
    ask = place.grid.ask

    def without_statement(name, message):
        facts = message.content["request"]
        if "statement" in facts:
            del facts["statement"]
        return ask(name, message)

    place.grid.ask = without_statement
    with pytest.raises(FederationError, match="Tried 3 times"):
        place.go()
    assert "without masks in round 1" in failures(place, "north")[-1]
    assert not operator.heard


def test_what_is_masked_is_not_told_in_another_round_or_stage_either(secure):
    """An operator asks for anchors in the last round, in which nothing leaves, or says it is."""
    place = secure(deadline_s=0.1)
    place.go(1)
    silo, coordinator = place.silo("north"), place.coordinator
    settings, server = coordinator.settings, coordinator.journal.server
    shorter = settings.model_copy(update={"rounds": 1})
    for own, round in ((settings, settings.rounds + 1), (shorter, 2)):
        later = replace(server, round=round)
        with pytest.raises(FederationError, match="without masks"):
            visits.train(silo, later, own, "update", run=coordinator.run)
        with pytest.raises(FederationError, match="figures without masks"):
            visits.evaluate(silo, later, own, run=coordinator.run)
    last = visits.train(
        silo, replace(server, round=settings.rounds + 1), settings, "adapt", run=coordinator.run
    )
    assert (last.update.entries, last.losses) == ({}, {})


def test_two_silos_are_too_few(secure):
    with pytest.raises(FederationError, match=r"2 silos are admitted .* \(min_holders\)"):
        secure(["east", "north"]).go()


# ---- checks of single updates, and what replaces them --------------------------------------


def test_a_silo_looks_at_its_own_update_before_it_is_masked(secure):
    place = secure(deadline_s=0.3, norm_factor=1.000001, network={"anchors": {"scale": 1e-6}})
    with pytest.raises(FederationError, match="Tried 3 times"):
        place.go()
    assert "Nothing was sent." in failures(place, "north")[-1]
    assert not any("masked" in content["update"] for _, content in answers(place))


def test_a_total_out_of_proportion_stops_the_run_and_names_all(secure):
    """What a silo adds to its masked numbers is in the total, and nobody can tell whose it is."""
    place = secure(deadline_s=0.3)

    def larger(name, round, content):
        if name == "east" and "masked" in content["update"]:
            array = content["update"]["masked"]
            words = np.frombuffer(array.data, "<u8").reshape(array.shape).copy()
            words[1, 1] += np.uint64(10**6)  # whole ones of the second number
            facts = {"dtype": array.dtype, "shape": array.shape, "stype": array.stype}
            content["update"]["masked"] = Array(**facts, data=words.tobytes())
        return content

    place.grid.change = larger
    with pytest.raises(FederationError, match="the sum of east, north, south is out of proportion"):
        place.go()
    assert [e for e in events(place.folder) if e["event"] == "stopped"]
    assert not place.coordinator.journal.records


# ---- settings ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"average": "trimmed"}, "expected 'mean'"),
        ({"participation": 0.5}, "expected 1,"),
        ({"network": {"anchors": {"average_covariance": "barycentre"}}}, "expected 'factors'"),
    ],
)
def test_what_takes_more_than_a_total_is_refused_beforehand(changes, words):
    raw = {"classes": ["a", "b"], "secure_sums": True}
    federation_settings(raw, source="x")
    federation_settings({**raw, **changes, "secure_sums": False}, source="x")
    with pytest.raises(ConfigError, match=words):
        federation_settings({**raw, **changes}, source="x")


def test_masks_are_usual_for_sums_alone():
    def masked(**raw):
        return federation_settings({"classes": ["a", "b"], **raw}, source="x").masks_sums

    assert masked(method="linked")
    assert not masked(method="flic-class")
    assert masked(method="flic-class", secure_sums=True)
    assert not masked(method="linked", secure_sums=False)


def test_a_silo_s_own_min_holders_counts(secure):
    place = secure(deadline_s=0.3)
    state(place, "east", min_holders=4)
    with pytest.raises(FederationError, match="Tried 3 times"):
        place.go()
    assert "4 at least (min_holders)" in failures(place, "east")[-1]
    assert not json.dumps([phase_of(c) for _, c in answers(place)]).count("unmask")
