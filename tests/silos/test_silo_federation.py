"""The product from Python: from frames or a file to a verdict, a folder and back."""

import numpy as np
import polars as pl
import pytest
from wards import SETTINGS, ward, wards

from flic.errors import ConfigError
from flic.silos.card import model_card
from flic.silos.federation import Federation
from flic.silos.folder import save

pytestmark = pytest.mark.slow  # each test fits a federation

QUICK = {**SETTINGS, "candidates": ["lda", "flic"]}


@pytest.fixture(scope="module")
def federation():
    return Federation.from_frames(wards(), label="ill").fit(**QUICK)


def test_fit_use_save_and_load(federation, tmp_path):
    rows = wards()["north"].drop(columns="ill")
    federation.save(tmp_path / "fitted")
    again = Federation.load(tmp_path / "fitted")
    assert again.verdict() == federation.verdict()
    for own in (federation, again):
        assert own.client("north").predict(rows).shape == (60,)
    assert [line.client for line in again.verdict().clients] == ["north", "south", "east"]
    assert {*federation.verdict().candidates} == {"lda", "flic"}


def test_polars_frames_have_the_same_verdict(federation):
    frames = {name: pl.from_pandas(frame) for name, frame in wards().items()}
    again = Federation.from_frames(frames, label="ill").fit(**QUICK)
    assert again.verdict() == federation.verdict()


def test_a_file_has_the_same_verdict(federation, tmp_path):
    text = ['label = "ill"', "[fit]", "repeats = 2", "folds = 2", 'scheme = "splits"']
    text += ['candidates = ["lda", "flic"]', "[fit.network]", "pretraining = { epochs = 2 }"]
    text += ['training = { rounds = 2, local = "3 steps", shared = "1 steps" }']
    for name, frame in wards().items():
        frame.to_csv(tmp_path / f"{name}.csv", index=False)
        text += ["[[clients]]", f'name = "{name}"', f'data = "{name}.csv"']
    (tmp_path / "federation.toml").write_text("\n".join(text))
    again = Federation.from_file(tmp_path / "federation.toml").fit()
    assert again.verdict() == federation.verdict()


def test_seeds_change_the_splits(federation):
    again = Federation.from_frames(wards(), label="ill").fit(seed=1, **QUICK)
    assert again.verdict() != federation.verdict()


def test_steps_are_told_to_the_end():
    told = []
    fed = Federation.from_frames(wards(), label="ill")
    fed.fit(on_step=lambda done, total, what: told.append((done, total, what)), **QUICK)
    assert [done for done, _, _ in told] == [0, 1, 2, 3, 4]
    assert {total for _, total, _ in told} == {4}
    assert told[-1][2] == "done"


def test_a_new_site(federation):
    own = Federation(None, federation.fitted, {})
    line = own.join("west", ward(5).drop(columns="stay"), label="ill")
    assert (line.client, line.rows) == ("west", 60)
    assert own.client("west").predict(ward(6)).shape == (60,)
    assert "west" not in federation.fitted.clients


def test_a_verdict_reads_as_sentences(federation):
    found = federation.verdict()
    assert str(found).splitlines() == [line.sentence for line in found.clients]
    with pytest.raises(ConfigError, match="no client 'zz'; expected one of 'north', 'south'"):
        found["zz"]


def test_what_is_kept_is_set_against_the_best_single_candidate(federation):
    found = federation.verdict()
    means = {
        name: np.mean([figures[found.metric] for figures in own.values()])
        for name, own in found.candidates.items()
    }
    assert found.best == max(means, key=means.get)
    kept = np.mean([line.kept_score for line in found.clients])
    assert found.kept_against_best.mean == pytest.approx(kept - means[found.best])


def test_without_a_federated_candidate_nothing_is_said_of_sharing():
    own = Federation.from_frames(wards(), label="ill").fit(**{**QUICK, "candidates": ["lda"]})
    assert str(own.verdict()).splitlines()[0] == "No federated candidate was compared for north."


def test_what_is_not_there_is_refused(federation):
    with pytest.raises(ConfigError, match="not fitted yet; expected a fit"):
        Federation.from_frames(wards(), label="ill").verdict()
    with pytest.raises(ConfigError, match="loaded from a folder has no tables"):
        Federation(None, federation.fitted, {}).fit()


def test_a_class_of_one_or_two_rows_is_no_obstacle():
    frames = wards()
    frames["north"]["ill"] = [1] + [0] * 59
    frames["south"]["ill"] = [1, 1] + [0] * 58
    settings = {**QUICK, "candidates": ["lda", "boosting", "flic"], "metric": "auroc"}
    line = Federation.from_frames(frames, label="ill").fit(**settings).verdict()["north"]
    assert np.isnan(line.alone_score) or 0 <= line.alone_score <= 1
    assert {line.alone, line.federation} == {"lda", "flic"} or line.alone == "boosting"


def test_the_model_card_says_what_matters(fitted):
    card = model_card(fitted)
    for line in fitted.verdict.clients:
        assert f"| {line.client} | {line.rows} |" in card
    for name, tensor in fitted.shared.items():
        assert f"`{name}` {list(tensor.shape)}" in card
    assert "the classes well, ill" in card
    assert "keep it private" in card


def test_a_card_of_responses(fitted_stays):
    assert "responses between 0 and 25" in model_card(fitted_stays)


def test_no_row_of_anyone_is_in_the_folder(fitted, tmp_path):
    """Free text tells best whether a row was written."""
    save(fitted, tmp_path / "fitted")
    written = b"".join(p.read_bytes() for p in (tmp_path / "fitted").rglob("*") if p.is_file())
    for frame in wards().values():
        for note in frame.get("notes", ()):
            assert note.encode() not in written
