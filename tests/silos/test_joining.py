"""A new site: nothing of the others changes, nothing leaves it, and it has a verdict."""

import numpy as np
import pandas as pd
import pytest
import torch
from wards import NETWORK, SETTINGS, ward, wards

from flic.errors import ConfigError, DataError
from flic.method_settings import MethodSettings
from flic.settings import merge
from flic.silos import folder as folders
from flic.silos.encoding import encode
from flic.silos.fit_settings import NETWORK as DEFAULTS
from flic.silos.fit_settings import FitSettings
from flic.silos.fitting import fit
from flic.silos.joining import SharedPart, join
from flic.silos.models import NetworkModel
from flic.silos.newcomers import JoinedFlic, with_whole_budget
from flic.tables import Declared, client_from_frame, tables_from_frames


def newcomer(fitted, name="west", **columns):
    frame = ward(7).drop(columns="stay").assign(**columns)
    table, _ = client_from_frame(
        name,
        frame,
        label="ill",
        task=fitted.task,
        labels=fitted.labels,
        own_labels=SharedPart.of(fitted).label_names(),
    )
    return table


@pytest.fixture(scope="module")
def joined(fitted):
    return join(fitted, newcomer(fitted))


def test_the_newcomer_has_a_verdict_and_a_model(fitted, joined):
    line = joined.verdict["west"]
    assert line.rows == 60
    assert line.federation == "flic"
    assert line.difference.low <= line.difference.mean <= line.difference.high
    assert "west" in line.sentence
    assert line.kept in fitted.known
    for own in joined.verdict.candidates.values():
        assert {"north", "south", "east"} & {*own}
    assert "west" in joined.verdict.candidates["flic"]
    predicted = joined.client("west").predict(ward(8))
    assert {*predicted.values} <= {"well", "ill"}


def test_what_is_shared_and_what_the_others_keep_stays(fitted, joined):
    assert joined.shared is fitted.shared
    assert joined.known is fitted.known
    assert joined.temperatures is fitted.temperatures
    for name, client in fitted.clients.items():
        assert joined.clients[name] is client
        assert joined.verdict[name] == fitted.verdict[name]


@pytest.mark.slow
def test_no_file_of_another_client_changes(folder):
    def bytes_of():
        return {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}

    before = bytes_of()
    loaded = folders.load(folder)
    folders.update(join(loaded, newcomer(loaded)), folder)
    after = bytes_of()
    changed = {str(p.relative_to(folder)) for p in before if before[p] != after[p]}
    assert changed == {"federation.json", "verdict.json", "results.parquet", "README.md"}
    new = {p.relative_to(folder).parts[:2] for p in after.keys() - before.keys()}
    assert new == {("clients", "03-west")}
    assert [*folders.load(folder).clients] == ["north", "south", "east", "west"]


@pytest.mark.slow
def test_joining_is_the_same_every_time(fitted, joined):
    again = join(fitted, newcomer(fitted))
    assert again.verdict == joined.verdict
    rows = ward(8)
    one, two = (f.client("west").predict(rows).scores for f in (joined, again))
    assert one.tobytes() == two.tobytes()


def test_a_name_that_is_taken_is_refused(fitted):
    with pytest.raises(ConfigError, match=r"name is 'north', which a client .* has already"):
        join(fitted, newcomer(fitted, name="north"))


@pytest.mark.slow
def test_a_regression_is_joined_too(fitted_stays):
    frame = ward(7).drop(columns="ill")
    table, _ = client_from_frame(
        "west", frame, label="stay", task=fitted_stays.task, labels=(), own_labels=None
    )
    joined = join(fitted_stays, table)
    assert joined.verdict["west"].alone in ("network", "ridge", "boosting")
    assert np.isfinite(joined.client("west").predict(frame).values).all()


def test_labels_are_read_as_the_others_are(fitted):
    assert SharedPart.of(fitted).label_names() == {"well": ("well", "0"), "ill": ("ill", "1")}
    raw = newcomer(fitted)
    named = newcomer(fitted, ill=np.where(ward(7)["ill"], "ill", "well"))
    assert raw.y.tolist() == named.y.tolist() == ward(7)["ill"].tolist()


def test_labels_that_nobody_knows_are_refused(fitted):
    with pytest.raises(DataError, match="undeclared values '2'; expected 'well', '0', 'ill', '1'"):
        newcomer(fitted, ill=np.arange(60) % 3)


@pytest.mark.slow
def test_a_newcomer_may_have_one_row_of_a_class(fitted):
    """It still predicts both, and the row is in the training part of every split."""
    table = newcomer(fitted, ill=["ill"] * 59 + ["well"])
    joined = join(fitted, table)
    assert joined.verdict["west"].alone_score == pytest.approx(1.0)
    assert joined.client("west").predict(ward(8)).probabilities.shape == (60, 2)


def test_one_visit_has_the_budget_of_all_rounds():
    settings = MethodSettings.model_validate(merge(DEFAULTS, NETWORK))
    assert settings.training.rounds == 2
    whole = with_whole_budget(settings).training.local
    each = settings.training.local.plus(settings.training.shared)
    assert (whole.steps, each.steps) == (12, 4)


def test_declared_gaps_are_gaps(fitted):
    rows = ward(7).drop(columns="stay").assign(dose=pd.Series([0.0] * 5 + [1.5] * 55))
    table, _ = client_from_frame(
        "west",
        rows,
        label="ill",
        task=fitted.task,
        labels=fitted.labels,
        own_labels=SharedPart.of(fitted).label_names(),
        declared=Declared(missing={"dose": (0,)}),
    )
    assert table.frame["dose"].isna().sum() == 5


@pytest.mark.slow
def test_a_shared_layer_is_used_as_the_federation_trained_it():
    """FLIC-HL: the newcomer gets α with the anchors, and changes neither."""
    tables = tables_from_frames(wards(), label="ill", labels={"well": (0,), "ill": (1,)})
    settings = FitSettings(**SETTINGS, candidates=("lda", "flic"), flic_method="flic-hl")
    fitted = fit(tables, settings)
    layer = {name for name in fitted.shared if not name.startswith("anchor.")}
    assert layer
    joined = join(fitted, newcomer(fitted))
    assert "west" in joined.verdict.candidates["flic"]
    table = newcomer(fitted)
    everything = {"west": (np.arange(len(table)), np.arange(0))}
    encoded = encode([table], fitted.task, everything)
    model = JoinedFlic(fitted.shared).learn(encoded, fitted.settings, seed=0).models["west"]
    assert isinstance(model, NetworkModel)
    assert model.method == "flic-hl"
    assert layer <= {*model.shared}
    assert not layer & {*model.private}
    assert all(torch.equal(model.shared[name], fitted.shared[name]) for name in layer)
