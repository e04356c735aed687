"""Linked columns for those who come later, or learn again: everyone's sums, and nothing sent."""

import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from flic.errors import ConfigError
from flic.flower.sums_form import SPACE
from flic.methods.linked.sums import SENT
from flic.silos import folder as folders
from flic.silos.candidates import LINKED
from flic.silos.encoding import encode, linked_spaces
from flic.silos.estimator import SiloClassifier, estimator_of
from flic.silos.estimator_models import LinearModel
from flic.silos.fit_settings import FitSettings
from flic.silos.fitted import FittedClient
from flic.silos.fitting import fit
from flic.silos.joining import join
from flic.silos.model import Features
from flic.silos.models import LinkedModel
from flic.silos.newcomers import JoinedLinked
from flic.tables import Labelling, client_from_frame, tables_from_frames

pytestmark = pytest.mark.slow  # a fit of five clinics

SETTINGS = FitSettings(
    repeats=2,
    folds=2,
    scheme="splits",
    candidates=("lda", "linked"),
    network={"linked": {"random_features": 16}},
)
NAMES = tuple(f"m{i}" for i in range(8))
CENTRES = np.random.default_rng(0).normal(size=(2, len(NAMES))) * 0.6


def clinic(seed, rows=40, **more):
    rng = np.random.default_rng(seed)
    y = np.arange(rows) % 2
    frame = pd.DataFrame(CENTRES[y] + rng.normal(size=(rows, len(NAMES))), columns=list(NAMES))
    return frame.assign(**{name: rng.normal(size=rows) for name in more}, ill=y)


@pytest.fixture(scope="module")
def fitted():
    frames = {f"clinic {i}": clinic(i) for i in range(5)}
    frames["clinic 4"] = clinic(4, own=True)
    return fit(
        tables_from_frames(frames, label="ill", labels={"well": (0,), "ill": (1,)}), SETTINGS
    )


@pytest.fixture(scope="module")
def newcomer(fitted):
    table, _ = client_from_frame(
        "late", clinic(9, rows=14, other=True), label="ill", task=fitted.task, labels=fitted.labels,
        own_labels={"well": ("0",), "ill": ("1",)},
    )  # fmt: skip
    return table


def rows_of(plain):
    """Rows in plain units, which is all that these models read."""
    return Features(pytest.fail, lambda: plain)


def accuracy(model, encoder):
    test = clinic(100, rows=400, other=True, own=True)
    return (model.predict(rows_of(encoder.plain(test))).argmax(1) == test["ill"]).mean()


def test_a_newcomer_predicts_at_once_better_than_it_could_alone(fitted, newcomer):
    rows = {newcomer.name: (np.arange(len(newcomer)), np.arange(0))}
    encoded = encode([newcomer], fitted.task, rows)
    assert JoinedLinked(fitted.linked).served(encoded) == ["late"]
    model = JoinedLinked(fitted.linked).learn(encoded, SETTINGS, seed=0).models["late"]
    assert accuracy(model, encoded.silos[0].encoder) > 0.75
    joined = join(fitted, newcomer)
    assert joined.verdict["late"].federation == "linked"
    assert joined.linked is fitted.linked
    assert {"lda", "linked"} == {n for n, own in joined.verdict.candidates.items() if "late" in own}


def test_a_newcomer_is_told_of_a_column_in_another_unit(fitted, newcomer):
    right = join(fitted, newcomer).notices[len(fitted.notices) :]
    assert not [line for line in right if "unlike" in line]
    assert [line for line in right if line.startswith("client 'late': the other clients' columns")]
    frame = newcomer.frame.assign(m3=newcomer.frame["m3"] * 38.67)
    wrong = join(fitted, replace(newcomer, frame=frame)).notices[len(fitted.notices) :]
    [named] = [line for line in wrong if "unlike" in line]
    assert named.startswith("client 'late': column 'm3' is unlike the same column of other clients")


def test_what_a_client_sends_is_named_after_nobody(fitted):
    names = {t.name for c in fitted.report_data.traffic for t in c.tensors}
    assert any(name.startswith(f"linked: moments.{SPACE}.") for name in names)
    assert not any(client in name for name in names for client in fitted.clients)


def test_spaces_are_numbered_whatever_the_order_of_the_clients():
    features = {"d": ["z"], "b": ["x"], "a": ["x", "y"], "lone": ["w"], "c": ["z"], "e": ["y"]}
    expected = {"a": "linked", "b": "linked", "e": "linked", "c": "linked 2", "d": "linked 2"}
    assert linked_spaces(features) == expected
    assert linked_spaces(dict(sorted(features.items()))) == expected


def test_one_without_a_common_column_is_not_offered_any(fitted, newcomer):
    names = {name: f"{name} of another kind" for name in newcomer.frame.columns}
    columns = tuple(replace(c, name=names[c.name]) for c in newcomer.columns)
    stranger = replace(newcomer, frame=newcomer.frame.rename(columns=names), columns=columns)
    encoded = encode([stranger], fitted.task, {"late": (np.arange(14), np.arange(0))})
    assert JoinedLinked(fitted.linked).served(encoded) == []


def test_a_member_that_learns_again_leaves_its_own_sums_out(fitted):
    frame = clinic(2)
    table, _ = client_from_frame(
        "clinic 2", frame, label="ill", task=fitted.task, labels=fitted.labels,
        own_labels={"well": ("0",), "ill": ("1",)},
    )  # fmt: skip
    kept = _kept_linked(fitted, table)
    encoded = encode([table], fitted.task, {table.name: (np.arange(40), np.arange(0))})
    again = JoinedLinked(fitted.linked, kept.sent).learn(encoded, SETTINGS, seed=0)
    rows = rows_of(clinic(100)[list(NAMES)].to_numpy(np.float32, copy=True))
    np.testing.assert_allclose(
        again.models["clinic 2"].predict(rows), kept.predict(rows), rtol=0, atol=1e-8
    )
    as_new = JoinedLinked(fitted.linked).learn(encoded, SETTINGS, seed=0).models["clinic 2"]
    assert np.abs(as_new.predict(rows) - kept.predict(rows)).max() > 1e-3


def _kept_linked(fitted, table) -> LinkedModel:
    """The model of linked columns that a member of the fit has, whatever it keeps."""
    frames = {f"clinic {i}": clinic(i) for i in range(5)}
    frames["clinic 4"] = clinic(4, own=True)
    tables = tables_from_frames(frames, label="ill", labels={"well": (0,), "ill": (1,)}).tables
    rows = {t.name: (np.arange(len(t)), np.arange(0)) for t in tables}
    learned = LINKED.learn(encode(tables, fitted.task, rows), SETTINGS, seed=0)
    model = learned.models[table.name]
    assert isinstance(model, LinkedModel)
    return model


def with_linked(fitted):
    """The federation where one client keeps linked columns, whatever was chosen."""
    table, _ = client_from_frame(
        "clinic 2", clinic(2), label="ill", task=fitted.task, labels=fitted.labels,
        own_labels={"well": ("0",), "ill": ("1",)},
    )  # fmt: skip
    encoder = encode([table], fitted.task, {table.name: (np.arange(40), np.arange(0))})
    kept = ("linked", 1.0, _kept_linked(fitted, table))
    assert isinstance(table.labelling, Labelling)
    client = FittedClient.of(table, encoder.silos[0], kept, fitted.task, fitted.labels)
    return replace(fitted, clients={**fitted.clients, "clinic 2": client})


def test_the_folder_keeps_what_newcomers_and_members_need(fitted, newcomer, tmp_path):
    whole = with_linked(fitted)
    folders.save(whole, tmp_path / "fitted")
    loaded = folders.load(tmp_path / "fitted")
    assert loaded.linked.spaces == fitted.linked.spaces
    for name, value in fitted.linked.tensors.items():
        assert value.equal(loaded.linked.tensors[name])
    sent = loaded.clients["clinic 2"].model.sent
    assert {*sent["linear"]} == {*SENT["directions"]}
    assert join(loaded, newcomer).verdict["late"] == join(fitted, newcomer).verdict["late"]


def test_an_estimator_of_a_member_learns_again(fitted):
    estimator = estimator_of(with_linked(fitted), "clinic 2")
    frame = clinic(2).iloc[:20]
    again = SiloClassifier(**estimator.get_params()).fit(frame[list(NAMES)], frame["ill"])
    test = clinic(100, rows=400)
    assert again.score(test[list(NAMES)], test["ill"]) > 0.75


def test_an_estimator_whose_sums_cannot_be_left_out_is_refused(fitted):
    alone = replace(
        fitted.clients["clinic 3"], model=LinearModel(np.zeros((8, 2)), np.zeros(2), False)
    )
    changed = replace(fitted, clients={**fitted.clients, "clinic 3": alone})
    frame = clinic(3)
    with pytest.raises(ConfigError, match="needs what a federation shares"):
        SiloClassifier("linked", changed, "clinic 3").fit(frame[list(NAMES)], frame["ill"])


def test_rows_without_a_linked_column_are_refused(fitted):
    rows = pd.DataFrame({"age": np.arange(20.0)})
    with pytest.raises(ConfigError, match="X has no column that the federation shares"):
        SiloClassifier("linked", fitted).fit(rows, np.tile(["well", "ill"], 10))


def test_which_links_carry_the_gain_is_told(fitted):
    told = [line for line in fitted.notices if "its most useful link" in line]
    assert {line.split(":")[0] for line in told} >= {"client 'clinic 0'", "client 'clinic 1'"}
    for line in told:
        assert 1 <= len(re.findall(r"'(m\d)'", line)) <= 3
