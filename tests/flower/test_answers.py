"""A coordinator that lies: it asks a silo again and again, to find rows out from many answers."""

import shutil
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from test_silo import RUN, initial, moved

from flic.errors import Damaged, Diverged, FederationError
from flic.flower import visits
from flic.flower.messages import read_request
from flic.flower.pooling import DIRECTIONS, FIRST, LAST, POSITIONS, SUMS, linked_method
from flic.methods.linked.tuning import Classes
from flic.methods.protocol import ServerState
from hospitals import PLAIN, SALT, settings_of

LINKED = {"method": "linked", "salt": SALT, "names": ["east", "north"], **PLAIN}
TOTAL = "moments.linked.linear.total"


class Liar:
    """A coordinator of linked columns that can go on as it likes with the silo in the east."""

    def __init__(self, place, rounds):
        self.place, self.requests, ask = place, [], place.grid.ask

        def listen(name, message):
            if name == "east":
                self.requests.append(read_request(message.content))
            return ask(name, message)

        place.grid.ask = listen
        place.go(rounds)
        self.settings, self.run = place.coordinator.settings, place.coordinator.run

    @property
    def silo(self):
        return self.place.silo("east")

    @property
    def features(self):
        [run] = self.silo._runs()
        return run.client.schema.features

    def next(self, round):
        """The honest request of a round."""
        coordinator = self.place.coordinator
        server = ServerState(round, coordinator.server.shared)
        return coordinator.rules.shared_with("east", server)

    def made_up(self, round):
        """A request in which every feature of the silo is linked."""
        shared = linked_method(self.features, self.settings, apart=True).init_server().shared
        return ServerState(round, {**shared, POSITIONS: torch.arange(len(self.features))})

    def ask(self, server, run=None, **changes):
        settings = self.settings.model_copy(update=changes)
        answer = visits.train(self.silo, server, settings, "prepare", run=run or self.run)
        return {name: entry.value for name, entry in answer.update.entries.items()}


@pytest.fixture
def liar(here):
    """liar(rounds, max_runs=…): one that was honest for some rounds."""

    def make(rounds=None, max_runs=10):
        place = here(**LINKED, network={"linked": {"random_features": 24}})
        path = place.silo("east").folder / "silo.toml"
        path.write_text(f"{path.read_text()}max_runs = {max_runs}\n")
        return Liar(place, rounds)

    return make


def with_total(server, factor):
    return replace(server, shared={**server.shared, TOTAL: server.shared[TOTAL] * factor})


def same(ours, theirs):
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(value, theirs[name]) for name, value in ours.items())


def test_sums_are_told_of_one_set_of_links(liar):
    one, both = liar(1), ServerState(SUMS, {POSITIONS: torch.tensor([0, 1])})
    first = one.ask(both)
    with pytest.raises(FederationError, match=r"answered 'prepare -3' .* another shared part"):
        one.ask(ServerState(SUMS, {POSITIONS: torch.tensor([0])}))
    same(one.ask(both), first)


def test_likelihoods_are_told_to_few_shared_parts(liar):
    """Not to one alone: a run begins anew without a silo that fails."""
    one = liar(2, max_runs=2)
    honest = one.next(DIRECTIONS)
    first = one.ask(honest)
    one.ask(with_total(honest, 2))
    with pytest.raises(FederationError, match=r"expected at most 2 \(max_runs\).* raise max_runs"):
        one.ask(with_total(honest, 3))
    same(one.ask(honest), first)


def test_the_last_round_is_answered_as_often_as_the_one_before(liar):
    one = liar(4)
    first = one.ask(one.next(LAST))
    with pytest.raises(FederationError, match=r"answered 'prepare 0'"):
        one.ask(with_total(one.next(LAST), 2))
    same(one.ask(one.next(LAST)), first)


def test_rounds_are_asked_in_their_order(liar):
    """Likelihoods before the sums would be of rows that no history has."""
    one = liar(1)
    for round in (DIRECTIONS, -1, LAST):
        with pytest.raises(FederationError, match="expected steps in their order"):
            one.ask(one.made_up(round))
    with pytest.raises(FederationError, match="was not asked for 'prepare 0'"):
        visits.evaluate(one.silo, one.made_up(LAST), one.settings, run=one.run, holders=(2, 2))


def test_no_other_features_are_linked_after_the_sums(liar):
    one = liar(2)
    with pytest.raises(FederationError, match=r"linked features of which silo .* sent no sums"):
        one.ask(one.made_up(DIRECTIONS))


@pytest.mark.slow
def test_figures_of_linked_columns_are_told_once(liar):
    one = liar()
    last = one.requests[-1]

    def measure(server):
        known = {"run": one.run, "holders": last.holders}
        return visits.evaluate(one.silo, server, one.settings, **known)

    told = one.place.coordinator.journal.records[-1]["scores"]["east"]
    assert measure(last.server) == told
    with pytest.raises(FederationError, match="answered 'evaluate 0'"):
        measure(with_total(last.server, 2))


def test_min_rows_stays_as_it_was_agreed(liar):
    """Sums under 5 and under 6 differ by what two persons differ by."""
    one = liar(2)
    with pytest.raises(FederationError, match="settings other than those it agreed to"):
        one.ask(one.requests[-1].server, min_rows=6)


def test_a_silo_takes_part_in_so_many_runs(liar):
    one = liar(2, max_runs=2)
    keys = ServerState(FIRST, {})
    one.ask(keys, run="a" * 16)
    one.ask(one.requests[-1].server, run="a" * 16)
    with pytest.raises(FederationError, match=r"told sums in 2 runs.* raise max_runs in silo.toml"):
        one.ask(keys, run="b" * 16)


def test_a_run_whose_folder_was_removed_is_over(liar):
    one = liar(2)
    shutil.rmtree(one.silo.folder / "runs" / one.run)
    with pytest.raises(FederationError, match="whose folder in runs/ was removed"):
        one.ask(ServerState(FIRST, {}))


def overflowing(server, factor):
    """Sums that a machine can hold, and under which likelihoods overflow or not by a row's size."""
    shared = {name: value.clone() for name, value in server.shared.items()}
    linear = "moments.linked.linear."
    shared[linear + "count"][:], shared[linear + "dof"][:] = 1e9, 1.0
    shared[linear + "variance"][:] = 1e-300
    shared[TOTAL][:] = factor * torch.tensor([[-1e29], [1e29]]).double()
    peers_alone = [s.mean_weight == s.scatter_weight == float("inf") for s in Classes.pooled]
    shared["scores.linked.linked"][peers_alone.index(True), 5] = 1.0  # the setting to be used
    return replace(server, shared=shared)


def test_a_request_that_fails_is_one_that_was_answered(liar):
    """Where made-up units make work fail, that it does tells that a value is above a threshold."""
    one = liar(4)
    lie = overflowing(one.next(LAST), 1.0)
    for _ in range(2):  # the same again tells nothing new
        with pytest.raises(Diverged):
            one.ask(lie)
    with pytest.raises(FederationError, match="answered 'prepare 0'"):
        one.ask(overflowing(one.next(LAST), 0.5))


@pytest.mark.parametrize(("part", "value"), [("count", 1e40), ("dof", -1.0), ("total", 1e300)])
def test_sums_of_no_rows_are_refused_before_any_work(liar, part, value):
    one = liar(2)
    shared = {name: tensor.clone() for name, tensor in one.next(DIRECTIONS).shared.items()}
    shared[f"moments.linked.linear.{part}"][:] = value
    with pytest.raises(FederationError, match=r"expected sums over rows"):
        one.ask(ServerState(DIRECTIONS, shared))
    assert not one.silo._runs()[0].answers.requests("prepare -2")


# ---- networks ------------------------------------------------------------------------------


def test_figures_of_a_round_are_told_once(silo):
    settings, east = settings_of(), silo("east")
    server = initial(settings)
    visits.train(east, server, settings, run=RUN)
    told = visits.evaluate(east, server, settings, run=RUN)
    # As a coordinator from an old copy asks.
    visits.train(east, moved(server, 1), settings, run=RUN)
    assert visits.evaluate(east, server, settings, run=RUN) == told
    with pytest.raises(FederationError, match="answered 'evaluate 1'"):
        visits.evaluate(east, moved(server, 1), settings, run=RUN)
    later = visits.evaluate(east, moved(server, 2), settings, run=RUN)
    assert later["test_rows"] == told["test_rows"]


def test_no_figures_are_told_of_almost_the_same_held_out_rows(silo):
    """Their difference would be the row that came: its response, or whether it was predicted."""
    settings, east, told = settings_of(), silo("east"), []
    frame = pd.concat([pd.read_csv(east.folder / "rows.csv")] * 3, ignore_index=True)
    frame["age"] += np.arange(len(frame))  # no two are the same
    for number, rows in enumerate((40, 40, 44, 100)):
        frame.head(rows).to_csv(east.folder / "rows.csv", index=False)
        run = f"{number:016d}"
        visits.train(east, initial(settings), settings, run=run)
        told.append(visits.evaluate(east, initial(settings), settings, run=run))
    first, again, almost, many = told
    assert first["test_rows"] == 10
    assert again == first  # the same rows may be told of again
    assert almost == {}
    assert many["test_rows"] == 25


@pytest.mark.parametrize("stage", ["prepare", "evaluate"])
def test_a_stage_of_another_method_is_refused(silo, stage):
    settings, east = settings_of(), silo("east")
    with pytest.raises(FederationError, match=f"stage '{stage}' of method 'flic-class'"):
        visits.train(east, initial(settings), settings, stage, run=RUN)


def test_a_stage_that_no_round_of_the_federation_has_is_refused(silo):
    settings = settings_of(network={"training": {"final_round": False}})
    with pytest.raises(FederationError, match=r"stage 'adapt' of .*; expected update\. "):
        visits.train(silo("east"), initial(settings), settings, "adapt", run=RUN)


@pytest.mark.parametrize("content", ["[1", "[]", '{"requests": {"evaluate 1": 3}}'])
def test_damaged_answers_are_named(silo, content):
    settings, east = settings_of(), silo("east")
    visits.train(east, initial(settings), settings, run=RUN)
    (east.folder / "runs" / RUN / "answers.json").write_text(content)
    with pytest.raises(Damaged, match=r"answers\.json"):
        visits.evaluate(east, initial(settings), settings, run=RUN)
