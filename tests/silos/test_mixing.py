"""The mix: weights that are the best there are, learnt from others, and kept with the models."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import minimize
from sklearn.base import clone
from wards import SETTINGS, ward, wards

from flic.data.task import Classification, Regression
from flic.errors import ConfigError, Damaged
from flic.silos.estimator import SiloClassifier, estimator_of
from flic.silos.evaluator import Evaluator
from flic.silos.fit_settings import FitSettings
from flic.silos.fitted import FittedClient
from flic.silos.fitting import fit
from flic.silos.folder import load, save
from flic.silos.joining import join
from flic.silos.mixing import LEAST, Weights, find_weights
from flic.silos.models import LinkedModel, MixModel
from flic.tables import client_from_frame, tables_from_frames

pytestmark = pytest.mark.slow  # each test fits a federation

TWO = Classification(2)


def said(seed, rows=60, skill=(2.0, 1.0, 0.0)):
    """Predictions of candidates of different skill, and the truth."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2, rows)
    own = {}
    for i, good in enumerate(skill):
        margin = good * (2 * y - 1) + rng.normal(size=rows)
        scores = np.stack([-margin, margin], 1)
        own[f"c{i}"] = scores - np.log(np.exp(scores).sum(1, keepdims=True))
    return own, y


def federation(names="abc", **keys):
    parts = {name: said(seed, **keys) for seed, name in enumerate(names)}
    candidates = next(iter(parts.values()))[0]
    return (
        {c: {name: own[c] for name, (own, _) in parts.items()} for c in candidates},
        {name: y for name, (_, y) in parts.items()},
    )


def likelihood(weights, by_candidate, y, clients):
    """Mean over clients of the mean log-likelihood of a mixture, written out row by row."""
    means = []
    for client in clients:
        rows = range(len(y[client]))
        given = [
            sum(
                w * np.exp(own[client][r, y[client][r]])
                for w, own in zip(weights, by_candidate.values(), strict=True)
            )
            for r in rows
        ]
        means.append(np.mean(np.log(given)))
    return np.mean(means)


def test_no_weights_are_likelier():
    by_candidate, y = federation(skill=(2.0, 1.5, 1.0))
    found = find_weights(by_candidate, y, TWO, None).of_all
    best = minimize(
        lambda free: -likelihood(np.exp(free) / np.exp(free).sum(), by_candidate, y, y),
        np.zeros(3),
        method="Nelder-Mead",
        options={"xatol": 1e-5, "fatol": 1e-10, "maxiter": 4000},
    )
    ours = [found.get(name, 0.0) for name in by_candidate]
    assert likelihood(ours, by_candidate, y, y) == pytest.approx(-best.fun, abs=2e-4)
    assert sum(found.values()) == pytest.approx(1)
    assert min(found.values()) >= LEAST


def test_a_clients_weights_are_learnt_from_the_others():
    by_candidate, y = federation()
    before = find_weights(by_candidate, y, TWO, None)
    turned = {**by_candidate, "c0": {**by_candidate["c0"], "a": by_candidate["c0"]["a"][:, ::-1]}}
    after = find_weights(turned, y, TWO, None)
    assert after.of_client["a"] == before.of_client["a"]
    assert after.of_client["b"] != before.of_client["b"]
    without = [c for c in y if c != "a"]
    alone = find_weights(by_candidate, {c: y[c] for c in without}, TWO, None)
    assert alone.of_all == before.of_client["a"]


def test_who_knows_nothing_is_left_out():
    by_candidate, y = federation("abcdef", skill=(3.0, 0.0))
    assert find_weights(by_candidate, y, TWO, None).of_all == {"c0": 1.0}


def test_a_candidate_that_does_not_serve_everyone_is_in_no_mix():
    by_candidate, y = federation(skill=(1.5, 1.5, 1.5))
    del by_candidate["c1"]["a"]
    weights = find_weights(by_candidate, y, TWO, None)
    assert {name for own in weights.of_client.values() for name in own} == {"c0", "c2"}
    assert {*weights.of_all} == {"c0", "c2"}
    said = weights.say(by_candidate, TWO)["mix"]
    assert {*said} == {*y}
    np.testing.assert_allclose(np.exp(said["b"]).sum(1), 1)


def test_a_newcomer_s_mix_is_of_what_serves_it():
    by_candidate, y = federation(skill=(1.5, 1.5))
    del by_candidate["c1"]["a"]
    weights = find_weights(by_candidate, y, TWO, {"c0": 0.3, "c1": 0.5, "gone": 0.2})
    assert weights.of_client["a"] == {"c0": 1.0}
    assert weights.of_client["b"] == pytest.approx({"c0": 0.375, "c1": 0.625})


def test_a_class_that_one_candidate_rules_out_is_not_ruled_out_by_all():
    by_candidate, y = federation(skill=(2.0, 2.0))
    by_candidate["c0"]["a"] = np.where([[True, False]], 0.0, -np.inf) + np.zeros((60, 1))
    before = {"c0": 0.5, "c1": 0.5}
    mix = find_weights(by_candidate, y, TWO, before).say(by_candidate, TWO)["mix"]["a"]
    assert np.isfinite(mix).all()


def test_responses_have_the_weights_of_least_squares():
    rng = np.random.default_rng(0)
    y = {name: rng.normal(50, 10, 200) for name in "abc"}
    noise = {"good": 2.0, "fair": 4.0, "biased": 1.0}
    by_candidate = {
        name: {
            c: (own + rng.normal(0, s, 200) + 30 * (name == "biased"))[:, None]
            for c, own in y.items()
        }
        for name, s in noise.items()
    }
    found = find_weights(by_candidate, y, Regression(0, 100), None)
    # Independent errors: the best weights go with 1 / variance.
    assert found.of_all["good"] == pytest.approx(0.8, abs=0.05)
    assert found.of_all["fair"] == pytest.approx(0.2, abs=0.05)
    mix = found.say(by_candidate, Regression(0, 100))["mix"]
    errors = {n: np.mean((mix[n][:, 0] - y[n]) ** 2) for n in y}
    assert all(e < np.mean((by_candidate["good"][n][:, 0] - y[n]) ** 2) for n, e in errors.items())


# ---- in a fit -------------------------------------------------------------------------------


CANDIDATES = ("lda", "boosting", "flic", "linked", "mix")


@pytest.fixture(scope="module")
def tables():
    return tables_from_frames(wards(), label="ill", labels={"no": (0,), "yes": (1,)})


@pytest.fixture(scope="module")
def fitted(tables):
    """A fit after which everybody keeps the mix, whatever was chosen."""
    settings = FitSettings(**SETTINGS, candidates=CANDIDATES)
    made, evaluator = fit(tables, settings), Evaluator(tables, settings)
    rows = {t.name: np.arange(len(t)) for t in tables.tables}
    trial = evaluator.trial(rows, seed=0)
    kept = {c: replace(own, candidate="mix") for c, own in trial.choices["kept"].items()}
    # Of all parts, so that every kind of model is saved and learnt again.
    parts = dict.fromkeys(CANDIDATES[:-1], 0.25)
    weights = Weights(dict.fromkeys(kept, parts), parts)
    trial = replace(trial, choices={**trial.choices, "kept": kept}, weights=weights)
    encoded = evaluator.encode({name: (own, own[:0]) for name, own in rows.items()})
    models = evaluator.learn_all(["mix"], encoded, trial)["mix"].models
    clients = {
        table.name: FittedClient.of(
            table, silo, ("mix", None, models[table.name]), tables.task, tables.labels
        )
        for table, silo in zip(tables.tables, encoded.silos, strict=True)
    }
    return replace(made, clients=clients, weights=parts)


def test_the_mix_is_compared_like_everyone(fitted, tables):
    assert {*fitted.verdict.candidates["mix"]} == {*tables.names}
    assert any(note.startswith("mix is a weighted mean of candidates: ") for note in fitted.notices)


def test_a_kept_mix_is_the_mean_of_its_parts(fitted):
    client, rows = fitted.clients["north"], wards()["north"]
    assert isinstance(client.model, MixModel)
    parts = [
        np.exp(replace(client, model=p.model, temperature=p.temperature).predict(rows).scores)
        for p in client.model.parts
    ]
    np.testing.assert_allclose(client.predict(rows).probabilities, np.mean(parts, 0), atol=1e-12)


def test_a_mix_is_saved_and_read_back_to_the_bit(fitted, tmp_path):
    save(fitted, tmp_path / "fitted")
    again = load(tmp_path / "fitted")
    assert again.weights == fitted.weights
    for name, rows in wards().items():
        ours, theirs = (own.client(name).predict(rows).scores for own in (fitted, again))
        assert ours.tobytes() == theirs.tobytes()


@pytest.mark.parametrize("weights", [[0.5, 0.4, 0.3, 0.2], [1.5, -0.5, 0, 0], []])
def test_a_mix_of_other_weights_is_refused(fitted, weights):
    saved = fitted.clients["north"].model.save()
    parts = [{**own, "weight": w} for own, w in zip(saved.facts["parts"], weights, strict=False)]
    with pytest.raises(Damaged, match="expected positive ones that sum to 1"):
        MixModel.load(replace(saved, facts={"parts": parts}), fitted.task)


def test_a_mix_learns_again_from_new_rows(fitted):
    estimator = estimator_of(fitted, "north")
    rows = wards()["north"]
    before = estimator.predict_proba(rows)
    again = clone(estimator).fit(rows.drop(columns="ill"), rows["ill"])
    assert [p.candidate for p in again.model_.parts] == [*CANDIDATES[:-1]]
    np.testing.assert_allclose(again.predict_proba(rows).sum(1), 1)
    few = clone(estimator).fit(rows.drop(columns="ill").head(30), rows["ill"].head(30))
    assert np.abs(few.predict_proba(rows) - before).max() > 0.01


def test_another_method_than_the_kept_mix_is_that_method(fitted):
    rows = wards()["north"]
    made = SiloClassifier("linked", fitted, "north", 0)
    made.fit(rows.drop(columns="ill"), rows["ill"])
    assert isinstance(made.model_, LinkedModel)


def test_without_anything_shared_there_is_no_mix():
    frames = {f"ward {i}": ward(i)[["age", "dose", "ill"]] for i in range(3)}
    for i, frame in enumerate(frames.values()):
        frame.columns = [f"age {i}", f"dose {i}", "ill"]
    tables = tables_from_frames(frames, label="ill")
    settings = FitSettings(**SETTINGS, candidates=("lda", "boosting", "linked", "mix"))
    assert not Evaluator(tables, settings).mixes


def test_a_newcomer_has_the_mix_of_what_it_can_join(fitted):
    table, _ = client_from_frame(
        "late", ward(7), label="ill", task=fitted.task, labels=fitted.labels,
        own_labels={"no": ("0",), "yes": ("1",)},
    )  # fmt: skip
    joined = join(fitted, table)
    assert "late" in joined.verdict.candidates["mix"]
    unlike = replace(fitted, weights={"keyed": 0.6, "lda": 0.4})  # mostly of what it cannot have
    assert "late" not in join(unlike, table).verdict.candidates["mix"]


def test_a_newcomer_whom_most_of_the_mix_does_not_serve_has_none(fitted):
    names = {name: f"{name} of another kind" for name in ward(7).columns if name != "ill"}
    table, _ = client_from_frame(
        "stranger", ward(7).rename(columns=names), label="ill", task=fitted.task,
        labels=fitted.labels, own_labels={"no": ("0",), "yes": ("1",)},
    )  # fmt: skip
    mostly_linked = replace(fitted, weights={"linked": 0.9, "boosting": 0.1})
    assert "stranger" not in join(mostly_linked, table).verdict.candidates["mix"]


def test_a_mix_without_others_is_refused(tables):
    settings = FitSettings(**SETTINGS, candidates=("lda", "mix"))
    with pytest.raises(ConfigError, match="expected two or more others for 'mix' to combine"):
        fit(tables, settings)
