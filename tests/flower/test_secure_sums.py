"""Secure sums over Flower: the plain sum comes out, and neither lies nor failures show a silo."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from flwr.app import Error, Message
from flwr.common.serde import message_from_proto
from flwr.proto.message_pb2 import Message as ProtoMessage
from test_linked_rounds import records
from test_masks import uniformity

from flic.errors import Damaged, FederationError
from flic.flower import visits
from flic.flower.keys import create_pair, read_private, read_public
from flic.flower.log import events
from flic.flower.messages import pack_request, read_request
from flic.flower.ops.benchmark import simulated
from flic.flower.pinned_keys import pin, pinned_peers
from flic.flower.secure import silo_sum
from flic.flower.secure.fixed_point import STEP
from flic.flower.secure.statements import Advert, SumRequest, read_statement
from flic.flower.secure.tags import own_tags, tag_words
from flic.flower.sum_visit import refuse_made_up_sums
from flic.methods.linked.sums import COUNTS
from hospitals import (
    FIVE,
    NODES,
    SALT,
    WIDE_OPEN,
    alike,
    alike_frames,
    assert_told,
    like,
    linked_frames,
    make_here,
    opened,
    state,
)

LINKED = {"method": "linked", "network": {"linked": WIDE_OPEN}, "salt": SALT}
SEVEN = sorted([*FIVE, "coast", "island"])
WORDS = tag_words([()])
PHASES = ["advertise", "share", "mask", "agree", "unmask"]


@pytest.fixture
def secure(here):
    """secure(names, **settings): a federation with masks that has not begun."""

    def make(names=FIVE, **changes):
        known = {"frames": alike_frames(names), "names": names, "deadline_s": 5.0, **LINKED}
        return opened(here(**{**known, **changes}))

    return make


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A federation of five that is done, with all that was sent."""
    root = tmp_path_factory.mktemp("secure")
    place = opened(make_here(root, frames=alike_frames(FIVE), names=FIVE, **LINKED))
    place.go()
    return place


def same(ours, theirs, atol):
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        torch.testing.assert_close(value, theirs[name], rtol=1e-12, atol=atol, msg=name)


def failures(place, name):
    return [e["message"] for e in events(place.grid.folders[name]) if e["event"] == "failed"]


# ---- the result ----------------------------------------------------------------------------

RESPONSES = {"task": "regression", "range": (0.0, 10.0), "label": "stay"}


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{}, RESPONSES], ids=["classes", "responses"])
def test_the_result_is_that_of_the_simulator_within_the_error_of_fixed_point(secure, changes):
    place = secure(["east", "north", "south"], **changes)
    place.go()
    assert [r["round"] for r in records(place)] == [-4, -3, -2, -1, 0]
    silos = [place.silo(name) for name in sorted(NODES)]
    journal = simulated(place.coordinator.settings, silos)
    # Later rounds are computed from the first one's sums, so an error of these is in them.
    same(place.coordinator.server.shared, in_form_of(place, journal.server.shared), 1e-9)
    theirs = journal.records[-1]["scores"].values()
    [(who, figures)] = records(place)[-1]["scores"].items()
    assert who == "3 silos"
    exact = {name: sum(own[name] for own in theirs) for name in figures}
    assert_told(figures, exact, silos=3)


def in_form_of(place, shared):
    """The simulator's sums with a count for each column, as a federation has them."""
    form = place.coordinator.server.shared
    found = dict(shared)
    for name in form:
        if name in shared and shared[name].shape != form[name].shape:
            assert name.rsplit(".")[-1] in COUNTS
            found[name] = shared[name].max(-1, keepdim=True).values.expand(form[name].shape)
    return found


@pytest.mark.slow
def test_sums_of_a_round_are_those_of_plain_ones_to_a_step_a_silo(secure, tmp_path):
    place = secure()
    place.go(2)
    (tmp_path / "plain").mkdir()
    plain = make_here(
        tmp_path / "plain", frames=alike_frames(FIVE), names=FIVE, secure_sums=False, **LINKED
    )
    opened(plain).go(2)
    ours, theirs = (p.coordinator.journal.server.shared for p in (place, plain))
    same(ours, theirs, len(FIVE) * STEP)


@pytest.mark.slow
def test_likelihoods_and_weighted_shares_are_means_over_the_members(whole, tmp_path):
    plain = make_here(tmp_path, frames=alike_frames(FIVE), names=FIVE, secure_sums=False, **LINKED)
    opened(plain).go()
    same(whole.coordinator.server.shared, plain.coordinator.server.shared, 1e-9)


# ---- the wire ------------------------------------------------------------------------------


def answers(place):
    sent = [(n, message_from_proto(ProtoMessage.FromString(w))) for n, w in place.grid.sent]
    return [(name, message.content) for name, message in sent if message.has_content()]


def masked_of(place):
    return [
        (name, np.frombuffer(array.data, "<u8"))
        for name, content in answers(place)
        for array in content["update"].values()
    ]


def test_no_message_is_within_chance_of_a_plain_sum(whole):
    """Each masked message is uniform, byte by byte, and equal numbers are masked differently."""
    masked = masked_of(whole)
    assert len(masked) == 5 * len(FIVE)  # four sums, and figures
    values = [uniformity(words) for _, words in masked if len(words) > 1000]
    assert len(values) == 2 * len(FIVE)
    assert min(values) > 1e-4
    assert max(values) < 1 - 1e-4
    words = np.concatenate([own for _, own in masked])
    assert len(np.unique(words)) == len(words)  # zeros and all


def test_nothing_but_keys_statements_masks_and_figures_leaves(whole):
    for _, content in answers(whole):
        assert {*content["update"]} <= {"masked"}
        assert {*content["answer"]} <= {"round", "keys", "statement"}
        assert not content["numbers"]


def test_secrets_are_gone_after_the_sum(whole):
    for folder in whole.grid.folders.values():
        assert not [*folder.glob("runs/*/sum.*")]


# ---- few who add to a number ---------------------------------------------------------------


@pytest.mark.slow
def test_a_column_of_two_silos_is_linked_by_nobody(secure):
    place = secure(["east", "north", "south"], frames=linked_frames())
    place.go()
    total = place.coordinator.server.shared["moments.linked.linear.total"]
    assert total.shape[1] == 1  # age; pulse is of two


@pytest.mark.slow
def test_what_too_few_tell_stays_at_home_and_the_silo_s_own_model_is_the_same(secure, tmp_path):
    """Two of five tell how columns vary: none of it is in the sum, and their sums are whole."""
    place = secure()
    for name in FIVE[:3]:
        state(place, name, scatter="off")
    place.go()
    shared = place.coordinator.server.shared
    assert not shared["moments.linked.linear.variance"].any()
    assert shared["moments.linked.linear.count"].any()
    assert all(value.isfinite().all() for value in shared.values())
    last = records(place)[-1]
    assert last["active"] == FIVE
    figures = last["scores"]["5 silos"]
    assert figures["test_right"] > 0.5 * figures["test_rows"]
    [kept] = place.grid.folders["south"].glob("runs/*/kept.safetensors")
    [none] = place.grid.folders["east"].glob("runs/*/kept.safetensors")
    assert _size(kept) > _size(none) == 0


@pytest.mark.slow
def test_what_stays_at_home_is_what_the_unmasked_sum_lacks(operator):
    """A second sum, which the operator never has unmasked, lacks what two of its silos tell."""
    own = alike_frames(FIVE)
    for name in ("east", "north", "west"):
        own[name] = like(own[name], dose=30)
    found = operator(names=FIVE, frames=own)
    [kept] = found.place.grid.folders["east"].glob("runs/*/kept.safetensors")
    assert _size(kept) == 0
    names = [name for name in FIVE if name != "west"]
    now = {"attempt": "ab" * 16, "invited": names}
    first = {name: found.told(name, "advertise") for name in names}
    adverts = [found.ask(n, first[n], **now).advert.model_dump() for n in names]
    share = {"phase": "share", "adverts": adverts}
    sealed = {n: found.ask(n, first[n], **now, **share).shares for n in names}
    shares = {peer: sealed[peer]["east"] for peer in names if peer != "east"}
    found.ask("east", first["east"], **now, phase="mask", shares=shares)
    assert _size(kept) == 0


def _size(path):
    from safetensors.torch import load_file

    return sum(float(value.abs().sum()) for value in load_file(path).values())


@pytest.mark.slow
def test_a_class_that_few_silos_have_is_in_no_sum(secure):
    names = ["east", "north", "south"]
    frame = alike("east")
    few = frame.drop(frame[frame["num"] == "ill"].index[4:])  # of which one may be held out
    place = secure(names, frames={**alike_frames(names), "east": few})
    place.go(2)
    count = place.coordinator.journal.server.shared["moments.linked.linear.count"]
    assert count[0].min() > 0
    assert not count[1].any()


@pytest.mark.slow
def test_the_strictest_silo_decides_how_many_are_behind_a_number(secure):
    place = secure()
    state(place, "west", min_holders=5)
    for name in FIVE[:1]:
        state(place, name, scatter="off")
    place.go(2)
    assert not place.coordinator.journal.server.shared["moments.linked.linear.variance"].any()


def test_two_silos_are_told_that_they_are_too_few(secure):
    place = secure(["east", "north"])
    with pytest.raises(
        FederationError, match=r"2 silos are admitted .* 3 at least \(min_holders\)"
    ):
        place.go()


@pytest.mark.slow
def test_two_silos_may_agree_to_see_each_other_s_sums(secure):
    place = secure(["east", "north"], min_holders=2)
    place_go_fails(place)
    for name in ("east", "north"):
        assert "3 at least (min_holders)" in failures(place, name)[-1]
        state(place, name, min_holders=2)
    place.go()
    assert records(place)[-1]["active"] == ["east", "north"]


def place_go_fails(place):
    with pytest.raises(FederationError, match="Tried 3 times"):
        place.go()


# ---- silos that fail -----------------------------------------------------------------------


def statement_of(content):
    return json.loads(content["answer"]["statement"]) if "statement" in content["answer"] else {}


def phase_of(content):
    """The phase that an answer is for."""
    said = statement_of(content)
    if "masked" in content["update"]:
        return "mask"
    if "advert" in said:
        return "advertise"
    if "seed" in said:
        return "unmask"
    return "agree" if "signature" in said else "share" if "shares" in said else None


def failing(name, round, phase):
    """A silo that is killed before a phase of a round, and stays away."""
    gone = set()

    def change(who, at, content):
        if who == name and at == round and phase_of(content) == phase:
            gone.add(who)
        return None if who in gone else content

    return change


#: Before, during and after masking in the first sum; in later ones, once on each side of it.
FAILURES = [*((-3, phase) for phase in PHASES), (-2, "share"), (-1, "agree"), (0, "mask")]


@pytest.mark.slow
@pytest.mark.parametrize(("round", "phase"), FAILURES)
def test_a_silo_that_fails_does_not_stop_the_others(secure, round, phase):
    place = secure(deadline_s=0.1)
    place.grid.change = failing("east", round, phase)
    place.go()
    others = [name for name in FIVE if name != "east"]
    assert [r["round"] for r in records(place)] == [-4, -3, -2, -1, 0]
    in_sum = phase in ("agree", "unmask")  # its masked numbers have arrived
    at = [r["round"] for r in records(place)].index(round)
    assert records(place)[at]["active"] == (FIVE if in_sum else others)
    assert records(place)[-1]["active"] == (FIVE if in_sum and round == 0 else others)
    assert [*records(place)[-1]["scores"]] == ["4 silos"]
    if not in_sum and round == -3:
        expected = plain_of(place, others)
        same(place.coordinator.server.shared, expected, 1e-9)


def plain_of(place, names):
    """The shared part of a federation without masks among some of the silos."""
    root = place.folder.parent / "plain"
    root.mkdir()
    plain = make_here(root, frames=alike_frames(names), names=names, secure_sums=False, **LINKED)
    return opened(plain).go().server.shared


@pytest.mark.slow
def test_with_too_few_left_the_round_is_repeated_and_shows_nothing(secure):
    place = secure(["east", "north", "south"], deadline_s=0.1)
    place.grid.change = failing("east", -3, "mask")
    with pytest.raises(FederationError, match=r"2 silos gave keys.*expected 3 at least"):
        place.go()
    assert [r["round"] for r in records(place)] == [-4]
    place.grid.change = lambda name, round, content: content
    place.go()
    assert records(place)[-1]["active"] == ["east", "north", "south"]


@pytest.mark.slow
def test_who_fails_after_masking_so_that_a_column_is_of_two_is_left_out_of_the_next_try(secure):
    own = alike_frames(FIVE)
    for name in ("north", "east", "west"):
        own[name] = like(own[name], dose=30)
    place = secure(frames=own, deadline_s=0.1)
    place.grid.change = failing("east", -3, "mask")
    place.go(2)
    events_ = [e["message"] for e in events(place.folder) if e["event"] == "quorum"]
    assert any("without east, fewer than 3 silos" in message for message in events_)
    assert records(place)[-1]["active"] == ["centre", "north", "south", "west"]
    total = place.coordinator.journal.server.shared["moments.linked.linear.total"]
    assert sorted((total.abs().sum(0) > 0).tolist()) == [False, True, True]  # not the dose


# ---- an operator who lies ------------------------------------------------------------------


class Operator:
    """Hears all requests, and may change the statement of one before a silo gets it."""

    def __init__(self, place):
        self.place, self.heard, self.lies = place, [], []
        ask = place.grid.ask

        def listen(name, message):
            facts = message.content["request"]
            if "statement" in facts:
                request = json.loads(facts["statement"])
                for lie in self.lies:
                    request = lie(name, request) or request
                facts["statement"] = json.dumps(request)
                self.heard.append((name, read_request(message.content)))
            return ask(name, message)

        place.grid.ask = listen

    def told(self, name, phase, round=-3):
        """The request of a phase as a silo got it."""
        return next(
            request
            for who, request in self.heard
            if who == name
            and request.server.round == round
            and json.loads(request.statement)["phase"] == phase
        )

    def ask(self, name, request, **changes):
        """Ask a silo by itself, with changes to what a request says."""
        said = json.loads(request.statement)
        for key, value in changes.items():
            (said["occasion"] if key in said["occasion"] else said)[key] = value
        asked = read_statement(SumRequest, json.dumps(said), who="request")
        return visits.add_to_sum(
            self.place.silo(name), asked, request.server, request.settings, run=request.run
        )[0]


def lying(phase, change, to=None):
    def lie(name, request):
        if request["phase"] == phase and request["occasion"]["round"] == -3:
            return change(request) if to in (None, name) else None
        return None

    return lie


@pytest.fixture
def operator(secure):
    """operator(*lies, names=…): one who lies, after the run was tried."""

    def make(*lies, names=("east", "north", "south"), **changes):
        place = secure([*names], deadline_s=0.1, **changes)
        found = Operator(place)
        found.lies = [*lies]
        found.error = None
        try:
            place.go()
        except FederationError as error:
            found.error = str(error)
        return found

    return make


def without_one(name):
    def change(request):
        return {**request, "members": [own for own in request["members"] if own != name]}

    return change


@pytest.mark.slow
def test_a_set_without_one_is_not_unmasked_where_that_leaves_too_few(operator):
    found = operator(lying("agree", without_one("north")))
    assert "signed the list of members" in found.error
    assert "to unmask a sum of 2 silos; expected 3" in failures(found.place, "east")[0]
    assert not records(found.place)[1:]


@pytest.mark.slow
def test_different_sets_to_different_silos_are_not_unmasked(operator):
    """Half of the silos sign one list, half another: neither has signatures enough."""
    lies = [lying("agree", without_one("west"), to=name) for name in ("east", "north", "centre")]
    found = operator(*lies, names=FIVE)
    said = [m for name in FIVE for m in failures(found.place, name)]
    assert any("signatures under the list of members that it signed" in m for m in said)
    assert not records(found.place)[1:]
    for name in ("east", "north", "centre"):
        assert not any("seed" in statement_of(c) for n, c in answers(found.place) if n == name)


def test_an_operator_who_plays_a_silo_is_refused(operator, tmp_path):
    """It has a key of its own, and signs with it in the name of a silo that was pinned."""
    create_pair(tmp_path / "evil", tmp_path / "evil.pub")
    evil = read_private(tmp_path / "evil")

    def played(request):
        occasion = SumRequest.model_validate(request).occasion
        adverts = [Advert.model_validate(own) for own in request["adverts"]]
        others = [own.model_dump() for own in adverts if own.name != "north"]
        [victim] = [own for own in adverts if own.name == "north"]
        return {**request, "adverts": [*others, victim.signed(evil, occasion).model_dump()]}

    found = operator(lying("share", played))
    assert "in the name of 'north' that the key it pinned did not sign" in str(
        failures(found.place, "east")
    )
    assert not records(found.place)[1:]


def test_an_operator_who_invites_a_made_up_silo_is_refused(operator):
    def invited(request):
        invited = [*request["occasion"]["invited"], "made up"]
        return {**request, "occasion": {**request["occasion"], "invited": invited}}

    found = operator(lying("advertise", invited))
    assert "'made up', whose keys it does not know" in failures(found.place, "east")[0]


@pytest.mark.slow
def test_keys_of_another_sum_are_refused(operator):
    """A replay: adverts that were signed for the first attempt, in a second one."""
    old = {}

    def replayed(request):
        for advert in request["adverts"]:
            old.setdefault(advert["name"], advert)
        own = [a if a["name"] == "east" else old[a["name"]] for a in request["adverts"]]
        return {**request, "adverts": own}

    found = operator(lying("agree", without_one("north")), lying("share", replayed, to="east"))
    assert "did not sign for this sum" in str(failures(found.place, "east"))


@pytest.mark.slow
def test_what_was_unmasked_is_not_unmasked_again(operator):
    found = operator(names=FIVE)
    assert found.error is None
    for phase in PHASES[1:]:
        with pytest.raises(FederationError, match="not the next step, or was done"):
            found.ask("east", found.told("east", phase))


@pytest.mark.slow
def test_keys_are_not_summed(operator):
    found = operator()
    told = found.told("east", "advertise")
    keys = replace(told, server=replace(told.server, round=-4, shared={}))
    with pytest.raises(FederationError, match="asked for a secure sum of another run or round"):
        found.ask("east", keys, round=-4, union=[])


@pytest.mark.slow
def test_more_columns_than_a_sum_can_have_are_refused_on_both_sides(operator, monkeypatch):
    found = operator()
    made_up = [f"{i:032x}" for i in range(5000)]
    with pytest.raises(FederationError, match="does not say what a secure sum needs"):
        found.ask("east", found.told("east", "advertise"), union=made_up)
    rules = found.place.coordinator.rules
    monkeypatch.setattr(type(rules.pooling), "union", lambda self, names: made_up)
    with pytest.raises(FederationError, match="5000 columns are linked; expected 4096 at most"):
        rules.sum_layout("prepare", -3)


@pytest.mark.slow
def test_both_shares_of_a_silo_are_not_given(operator):
    """Asked to sign a list with the silo, and then to unmask one without it."""
    found = operator(lying("unmask", lambda request: {**request, "signatures": {}}), names=FIVE)
    silo = found.place.grid.folders["east"]
    assert "is shown 0 signatures" in failures(found.place, "east")[0]
    [sum_file] = silo.glob("runs/*/sum.json")
    assert json.loads(sum_file.read_text())["next"] == "unmask"
    told = found.told("east", "agree")
    latest = json.loads(sum_file.read_text())["occasion"]
    with pytest.raises(FederationError, match="not the next step, or was done"):
        found.ask("east", told, attempt=latest["attempt"], members=[n for n in FIVE if n != "west"])


@pytest.mark.slow
def test_shares_unmask_a_member_s_own_mask_or_a_failed_one_s_masks_with_others(secure):
    place = secure(deadline_s=0.1)
    place.grid.change = failing("east", -3, "mask")
    kept = {}
    ask = place.grid.ask

    def look(name, message):
        [path] = [*place.grid.folders[name].glob("runs/*/sum.json")] or [None]
        facts = message.content["request"]
        if path and '"unmask"' in facts.get("statement", ""):
            kept[name] = json.loads(path.read_text())["shares"]
        return ask(name, message)

    place.grid.ask = look
    place.go(2)
    told = {n: statement_of(c)["shares"] for n, c in answers(place) if phase_of(c) == "unmask"}
    assert sorted(told) == ["centre", "north", "south", "west"]
    for name, shares in told.items():
        for peer, share in shares.items():
            own, of_mask = kept[name][peer]
            assert share == (of_mask if peer == "east" else own)


@pytest.mark.slow
def test_different_shared_parts_to_different_silos_are_not_added_up(secure):
    """Others are sent settings with which all of them add what is known beforehand."""
    place = secure(deadline_s=0.1)
    ask = place.grid.ask

    def lie(name, message):
        request = read_request(message.content)
        server = request.server
        if name != "north" and server.round == 0 and "links.places" in server.shared:
            own = server.shared["scores.own.linked"]
            shared = {**server.shared, "scores.own.linked": own.flip(0)}
            message.content = pack_request(replace(request, server=replace(server, shared=shared)))
        return ask(name, message)

    place.grid.ask = lie
    place.go()
    assert "that both were sent the same pooled sums" in failures(place, "east")[-1]
    others = [name for name in FIVE if name != "north"]
    assert [r["active"] for r in records(place)] == [FIVE, FIVE, FIVE, FIVE, others]


@pytest.mark.slow
@pytest.mark.parametrize(("round", "name"), [(-2, "linear.total"), (-1, "mapped.total")])
def test_sums_that_the_operator_made_up_are_answered_by_nobody(secure, round, name):
    """With pooled sums of its choice it could ask on which side of a border a person lies."""
    place = secure(deadline_s=0.1)
    changing(place, round, name)
    with pytest.raises(FederationError, match="south, west said that totals do not fit their tag"):
        place.go()
    assert all("do not fit their tag" in failures(place, own)[-1] for own in FIVE)
    said = [statement_of(content) for _, content in answers(place)][-len(FIVE) :]
    assert [[*own] for own in said] == [["false_totals"]] * len(FIVE)


@pytest.mark.slow
def test_figures_are_told_of_no_sums_that_the_operator_made_up(secure):
    place = secure(deadline_s=0.1)
    ask = place.grid.ask

    def lie(name, message):
        request = read_request(message.content)
        if request.stage == "evaluate":
            shared = dict(request.server.shared)
            shared["moments.linked.linear.total"] = shared["moments.linked.linear.total"] + 1.0
            server = replace(request.server, shared=shared)
            message.content = pack_request(replace(request, server=server))
        return ask(name, message)

    place.grid.ask = lie
    with pytest.raises(FederationError, match="south, west said that totals do not fit their tag"):
        place.go()
    assert all("do not fit their tag" in failures(place, own)[-1] for own in FIVE)
    assert not any("scores" in record for record in records(place))


@pytest.mark.slow
def test_figures_of_a_silo_alone_are_told_to_nobody(secure):
    """Of one silo the operator asks for figures as a federation without masks would."""
    place = secure(["east", "north", "south"], deadline_s=0.1)
    ask = place.grid.ask

    def lie(name, message):
        if message.metadata.message_type == "evaluate":
            message.content["request"].pop("statement", None)
        return ask(name, message)

    place.grid.ask = lie
    place.go()
    assert not any(content["numbers"] for _, content in answers(place))
    assert records(place)[-1]["scores"] == {}
    [said] = [e["message"] for e in events(place.folder) if e["event"] == "figures"]
    assert "has no figures of held-out rows" in said


@pytest.mark.slow
def test_silos_have_their_models_though_too_few_are_left_for_figures(secure):
    place = secure(["east", "north", "south"], deadline_s=0.1)

    def goes_after_the_last_sum(name, round, content):
        if (round, phase_of(content)) == (0, "unmask"):
            place.grid.away = {"east"}
        return content

    place.grid.change = goes_after_the_last_sum
    place.go()
    assert records(place)[-1]["scores"] == {}
    for name in ("north", "south"):
        assert place.silo(name).model().candidate == "linked"


@pytest.mark.slow
def test_figures_that_too_few_silos_tell_are_of_no_rows(secure):
    own = alike_frames(["east", "north", "south"])
    place = secure([*own], frames=own, deadline_s=0.3)
    for name in ("east", "north"):
        path = place.silo(name).folder / "silo.toml"
        path.write_text(path.read_text().replace("test_share = 0.25", "test_share = 0.02"))
    place.go()
    assert records(place)[-1]["scores"] == {}
    [said] = [e["message"] for e in events(place.folder) if e["event"] == "figures"]
    assert "too few silos tell theirs" in said


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "done"),
    [("", 2), ('{"rounds": []}', 2), ("[]", 1), ('{"rounds": [{"round": -3}]}', 1)],
)
def test_sums_without_a_tag_are_answered_by_nobody(secure, text, done):
    place = secure(deadline_s=0.1)
    ask = place.grid.ask

    def lie(name, message):
        request = read_request(message.content)
        message.content = pack_request(replace(request, totals=text))
        return ask(name, message)

    place.grid.ask = lie
    place_go_fails(place)
    assert len(records(place)) == done  # keys, and the sums that no others come before


@pytest.mark.slow
def test_a_silo_that_is_in_no_sum_answers_to_none_of_its_totals(secure):
    """By dropping a silo's masked numbers, the operator would choose what its peers' sums are."""
    place = secure(deadline_s=0.1)
    ask = place.grid.ask

    def lose(name, message):
        request = read_request(message.content)
        answer = ask(name, message)
        if name == "west" and request.server.round == -3 and '"mask"' in request.statement:
            return Message(Error(2, "lost"), reply_to=message)
        return answer

    place.grid.ask = lose
    place.go(2)
    place.grid.ask = ask
    coordinator = place.coordinator
    assert coordinator.journal.records[-1]["active"] == [name for name in FIVE if name != "west"]
    assert "west" not in (place.folder / "pooled" / "totals.json").read_text()
    text = coordinator.rules.totals("east")  # west would be sent the same
    server = coordinator.rules.shared_with("west", coordinator.server)
    asked = replace(server, round=-2)
    west = place.silo("west")
    run = west._runs()[-1]
    with pytest.raises(FederationError, match="or of a sum that it was not in"):
        refuse_made_up_sums(run, asked, run.client.schema.features, text)


@pytest.mark.slow
def test_a_silo_without_linked_columns_stays_in_the_sums(secure):
    frames = alike_frames(FIVE)
    frames["west"] = frames["west"].rename(columns={c: f"west {c}" for c in ("age", "pulse")})
    place = secure(frames=frames, deadline_s=0.1)
    place.go()
    assert [record["active"] for record in records(place)] == [FIVE] * 5


@pytest.mark.slow
@pytest.mark.parametrize("content", ["{", "[]", '{"groups": 3}', '{"groups": [{"names": []}]}'])
def test_damaged_tags_of_totals_are_said(secure, content):
    place = secure(deadline_s=0.1)
    place.go(2)
    (place.folder / "pooled" / "totals.json").write_text(content)
    with pytest.raises(Damaged, match=r"totals\.json is damaged"):
        place.go()


def changing(place, round, name):
    """All silos are sent other pooled sums in a round."""
    ask = place.grid.ask

    def lie(who, message):
        request = read_request(message.content)
        whole, server = f"moments.linked.{name}", request.server
        if server.round == round and whole in server.shared:
            shared = {**server.shared, whole: server.shared[whole] * 1.5}
            message.content = pack_request(replace(request, server=replace(server, shared=shared)))
        return ask(who, message)

    place.grid.ask = lie


@pytest.mark.slow
def test_a_plain_request_is_refused_where_masks_were_agreed(secure):
    place = secure(["east", "north", "south"])
    place.go(2)
    coordinator = place.coordinator
    server = coordinator.rules.shared_with("east", coordinator.server)
    with pytest.raises(FederationError, match="asked for sums without masks"):
        visits.train(
            place.silo("east"), server, coordinator.settings, "prepare", run=coordinator.run
        )
    plain = coordinator.settings.model_copy(update={"secure_sums": False})
    with pytest.raises(FederationError, match="asked for sums without masks"):
        visits.train(place.silo("east"), server, plain, "prepare", run="b" * 16)


# ---- a silo that lies ----------------------------------------------------------------------


def saying(phase, change):
    """East changes its answer in a phase of the second round."""

    def changed(name, round, content):
        return (
            change(content) if (name, round, phase_of(content)) == ("east", -3, phase) else content
        )

    return changed


def with_statement(text):
    def change(content):
        said = content["answer"]["statement"]
        content["answer"]["statement"] = text(json.loads(said)) if callable(text) else text
        return content

    return change


def with_noise(content):
    old = content["update"]["masked"]
    noise = np.random.default_rng(0).bytes(len(old.data))
    content["update"]["masked"] = replace(old, data=noise)
    return content


def with_fewer_numbers(content):
    old = content["update"]["masked"]
    shape = (old.shape[0] - 1, 2)
    content["update"]["masked"] = replace(old, shape=shape, data=old.data[:-16])
    return content


BAD = {
    "no JSON": ("advertise", with_statement("{"), "does not say what a secure sum needs"),
    "no keys": ("advertise", with_statement("{}"), "has no keys for a secure sum"),
    "no such column": (
        "advertise",
        with_statement(lambda said: json.dumps(_beyond(said))),
        "would add to numbers that are none of the sum's",
    ),
    "more silos than there are": (
        "advertise",
        with_statement(lambda said: json.dumps(_wanting(said, 6))),
        "wants more silos in a sum than were asked",
    ),
    "signed by another key": (
        "advertise",
        with_statement(lambda said: json.dumps(_unsigned(said))),
        "has keys or shares that 4 others cannot use",
    ),
    "no shares": ("share", with_statement("{}"), "has shares for other silos"),
    "shares that nobody can open": (
        "share",
        with_statement(lambda said: json.dumps(_garbled(said))),
        "has keys or shares that 4 others cannot use",
    ),
    "fewer numbers": ("mask", with_fewer_numbers, "expected int64"),
    "half a seed": (
        "unmask",
        with_statement(lambda said: json.dumps({**said, "seed": "00"})),
        "has seeds or shares of another size",
    ),
}


def _beyond(said):
    said["advert"]["contents"]["columns"] = [99]
    return said


def _unsigned(said):
    said["advert"]["signature"] = said["advert"]["signature"][:-2] + "00"
    return said


def _garbled(said):
    said["shares"] = {name: "00" * (len(own) // 2) for name, own in said["shares"].items()}
    return said


def _wanting(said, holders):
    said["advert"]["contents"]["min_holders"] = holders
    return said


@pytest.mark.slow
@pytest.mark.parametrize("what", BAD)
def test_an_answer_that_does_not_fit_is_refused_and_the_others_go_on(secure, what):
    phase, change, reason = BAD[what]
    place = secure(deadline_s=0.1)
    place.grid.change = saying(phase, change)
    place.go(2)
    refusals = [e["message"] for e in events(place.folder) if e["event"] == "refused"]
    assert len(refusals) == 1
    assert reason in refusals[0]
    assert ("east" in records(place)[-1]["active"]) == (phase == "unmask")


@pytest.mark.slow
def test_a_sum_that_a_silo_kept_shares_back_of_is_tried_again_by_the_same_silos(secure):
    """Those that unmasked it are in no sum without the liar, so that it stays."""
    place = secure(deadline_s=0.1)
    tries = []

    def change(name, round, content):
        if round != -3 or phase_of(content) != "unmask":
            return content
        if name == "south":
            said = statement_of(content)
            del said["shares"]["west"]
            content["answer"]["statement"] = json.dumps(said)
        tries.append(name)
        return None if name == "west" and tries.count(name) == 1 else content

    place.grid.change = change
    place.go()
    assert [r["active"] for r in records(place)] == [FIVE] * 5
    [again] = [e["message"] for e in events(place.folder) if e["event"] == "quorum"]
    assert "3 silos took part in unmasking" in again
    refused = [(e["silo"], e["round"]) for e in events(place.folder) if e["event"] == "refused"]
    assert refused == [("south", -3)] * 2


@pytest.mark.slow
def test_a_total_that_cannot_be_one_stops_the_run_and_names_all_who_are_in_it(secure):
    place = secure(deadline_s=0.1)
    place.grid.change = saying("mask", with_noise)
    with pytest.raises(FederationError, match=r"centre, east, north, south, west has .* hide"):
        place.go()
    assert [r["round"] for r in records(place)] == [-4]


def adding_false_tags(monkeypatch, place, name):
    """A silo that adds one to the tags of groups of three columns, its own being of two."""

    def own_tags_(key, layout, groups, words):
        found = own_tags(key, layout, groups, words)
        for i, group in enumerate(groups):
            found[WORDS * i, 0] += np.uint64(len(group) == 3)
        return found

    ask = place.grid.ask

    def by(who, message):
        with monkeypatch.context() as patch:
            if who == name:
                patch.setattr(silo_sum, "own_tags", own_tags_)
            return ask(who, message)

    place.grid.ask = by


@pytest.mark.slow
def test_a_silo_that_adds_false_tags_throws_nobody_out(secure, monkeypatch):
    """Of seven, it had the three of a group left out in which it is not, and nobody was named."""
    own = alike_frames(SEVEN)
    for name in ("east", "north", "west"):
        own[name] = like(own[name], dose=30)
    place = secure(SEVEN, frames=own, deadline_s=0.1)
    adding_false_tags(monkeypatch, place, "south")
    with pytest.raises(FederationError) as stopped:
        place.go()
    said = "east, north, west said that totals do not fit their tag, those of round 2"
    assert said in str(stopped.value)
    assert f"One of {', '.join(SEVEN)} added another tag" in str(stopped.value)
    assert "Start the silos that are missing" not in str(stopped.value)
    assert [r["active"] for r in records(place)] == [SEVEN, SEVEN]
    assert not [e for e in events(place.folder) if e["event"] in ("left out", "refused", "quorum")]


@pytest.mark.slow
def test_a_silo_looks_at_its_own_numbers_before_they_are_masked(secure):
    """Columns so large that their squares would not fit into the total."""
    names = ["east", "north", "south"]
    huge = alike("east")
    huge["age"] *= 1e12
    place = secure(names, frames={**alike_frames(names), "east": huge}, deadline_s=0.1)
    place_go_fails(place)
    assert "larger than 1.54e+18; expected less" in failures(place, "east")[-1]


# ---- a second sum --------------------------------------------------------------------------


def again(place, names):
    """A second federation of some of the silos, with the same rows."""
    root = place.folder.parent
    found = opened(
        make_here(root, frames=alike_frames(names), names=names, deadline_s=0.1, **LINKED)
    )
    return found


@pytest.mark.slow
def test_a_second_sum_without_one_silo_is_refused(secure):
    place = secure()
    place.go()
    without = again(place, [name for name in FIVE if name != "west"])
    with pytest.raises(FederationError, match="Tried 3 times"):
        without.go()
    assert "without, or with, west; expected the same silos" in failures(without, "east")[-1]
    assert [r["round"] for r in records(without)] == [-4]


@pytest.mark.slow
def test_a_second_sum_of_the_same_silos_is_unmasked(secure):
    place = secure()
    place.go()
    second = again(place, FIVE)
    second.go()
    same(second.coordinator.server.shared, place.coordinator.server.shared, 1e-9)


@pytest.mark.slow
def test_a_second_sum_with_one_more_is_refused_and_with_other_rows_is_not(secure):
    names = ["east", "north", "south"]
    place = secure(names)
    place.go()
    more = [*names, "west"]
    root = place.folder.parent
    grown = make_here(root, frames=alike_frames(["west"]), names=more, deadline_s=0.1, **LINKED)
    with pytest.raises(FederationError, match="Tried 3 times"):
        opened(grown).go()
    assert "without, or with, west; expected the same silos" in failures(grown, "east")[-1]
    for name in names:
        frame = alike(name, 90)
        frame = frame.assign(age=frame["age"] + 3, pulse=frame["pulse"] + 2)
        frame.drop(columns="stay").iloc[45:].to_csv(root / name / "rows.csv", index=False)
    new = make_here(root, frames={}, names=more, deadline_s=0.1, **LINKED)
    new.go()
    assert records(new)[-1]["active"] == more


@pytest.mark.slow
def test_within_a_run_a_second_try_with_another_set_is_refused(secure):
    """The operator has the first sum and says that it failed, to get one without a silo."""
    place = secure(deadline_s=0.1)

    def keep_back(name, round, content):
        """Members answer, and the coordinator says that nobody unmasked."""
        if round != -3 or place.grid.away:
            return content
        return None if phase_of(content) == "unmask" else content

    place.grid.change = keep_back
    with pytest.raises(FederationError, match="Tried 3 times"):
        place.go()
    place.grid.away = {"west"}
    with pytest.raises(FederationError, match="Tried 3 times"):
        place.go()
    assert "without, or with, west; expected the same silos" in failures(place, "east")[-1]
    place.grid.away, place.grid.change = set(), lambda name, round, content: content
    place.go()
    assert records(place)[-1]["active"] == FIVE


class Killed(Exception):
    """The coordinator's process was killed."""


def losing(*, killed=False):
    """North fails before the masks, and south's unmasking is lost, or the coordinator, once."""
    left = [("north", "share"), ("south", "unmask")]

    def change(name, round, content):
        step = name, phase_of(content)
        if round != -3 or step not in left:
            return content
        left.remove(step)
        if killed and not left:
            raise Killed
        return None

    return change


def of_the_same(place):
    """Hold a federation to a first sum of all but the north, which is told why."""
    record = records(place)[1]
    assert record["active"] == ["centre", "east", "south", "west"]
    assert record["absent"]["north"].startswith("failed before centre, east, south, west were")
    told = [e["message"] for e in events(place.folder) if e["event"] == "left out"]
    assert ["north failed in round 2 of 5" in message for message in told] == [True]
    assert [r["round"] for r in records(place)] == [-4, -3, -2, -1, 0]


@pytest.mark.slow
def test_a_sum_that_too_few_unmasked_is_tried_again_with_the_same_silos(secure):
    """Who unmasked it refuses others: with the north back in, it would come to nothing for ever."""
    place = secure(deadline_s=0.1)
    place.grid.change = losing()
    place.go()
    of_the_same(place)
    assert not failures(place, "east")


@pytest.mark.slow
def test_a_coordinator_that_is_killed_while_a_sum_is_unmasked_asks_the_same_silos_again(secure):
    place = secure(deadline_s=0.1)
    place.grid.change = losing(killed=True)
    with pytest.raises(Killed):
        place.go()
    place.go()
    of_the_same(place)


@pytest.mark.slow
def test_the_coordinator_says_which_silo_of_a_sum_that_was_unmasked_is_missing(secure):
    place = secure(deadline_s=0.1)
    change = losing()

    def leaving(name, round, content):
        found = change(name, round, content)
        if phase_of(content) == "unmask" and found is None:
            place.grid.away = {"south"}
        return found

    place.grid.change = leaving
    with pytest.raises(FederationError, match=r"in no sum of other silos; expected south too\."):
        place.go()
    place.grid.away = set()
    place.go()
    of_the_same(place)


@pytest.mark.slow
def test_a_sum_that_nobody_unmasked_is_tried_again_without_a_silo_that_stays_away(secure):
    place = secure(deadline_s=0.1)
    ask = place.grid.ask

    def lose(name, message):
        if '"unmask"' not in read_request(message.content).statement:
            return ask(name, message)
        place.grid.away = {"west"}
        return Message(Error(2, "lost"), reply_to=message)

    place.grid.ask = lose
    with pytest.raises(FederationError, match="Tried 3 times"):
        place.go()
    place.grid.ask = ask
    place.go()
    assert records(place)[-1]["active"] == [name for name in FIVE if name != "west"]


@pytest.mark.slow
def test_sums_of_parts_are_refused_that_would_leave_one_silo_of_the_whole(secure):
    """All seven, less three, less three others: nobody who is in two of the sums sees the third."""
    whole = secure(SEVEN, deadline_s=0.1)
    whole.go(2)
    for part in (SEVEN[:3], SEVEN[3:6]):
        of_part = again(whole, part)
        with pytest.raises(FederationError, match="Tried 3 times"):
            of_part.go(2)
        assert "expected the same silos as before" in failures(of_part, part[0])[-1]


@pytest.mark.slow
def test_parts_come_first_and_their_whole_is_refused(secure):
    parts = secure(SEVEN[:3], frames=alike_frames(SEVEN), deadline_s=0.1)
    parts.go(2)
    again(parts, SEVEN[3:6]).go(2)
    whole = again(parts, SEVEN)
    with pytest.raises(FederationError, match="Tried 3 times"):
        whole.go(2)
    assert [r["round"] for r in records(whole)] == [-4]


def test_pins_are_of_a_list_with_one_s_own_key_and_change_for_nobody(secure, tmp_path):
    place = secure(["east", "north", "south"])
    folders = place.grid.folders
    lines = {name: read_public(folder / "key.pub") for name, folder in folders.items()}
    assert pinned_peers(folders["east"]) == lines
    others = {name: line for name, line in lines.items() if name != "east"}
    from flic.errors import ConfigError

    with pytest.raises(ConfigError, match="lacks this silo's own key"):
        pin(folders["east"], others)
    swapped = {**lines, "north": lines["south"], "south": lines["north"]}
    with pytest.raises(ConfigError, match="'north' is pinned with the key SHA256:"):
        pin(folders["east"], swapped)
    with pytest.raises(ConfigError, match="one key under two names"):
        pin(folders["east"], {"east": lines["east"], "west": lines["north"]})
