"""A client's model is a scikit-learn estimator, with and without a federation behind it."""

import numpy as np
import polars as pl
import pytest
from sklearn.base import clone, is_classifier, is_regressor
from sklearn.metrics import accuracy_score
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import estimator_checks_generator
from wards import ward, wards

from flic import Federation
from flic.errors import ConfigError
from flic.silos.estimator import SiloClassifier, SiloRegressor, estimator_of
from flic.silos.fit_settings import NETWORK

# No check is expected to fail.
CHECKED = [
    SiloClassifier(),
    SiloRegressor(),
    SiloClassifier(method="lda"),
    SiloRegressor(method="ridge"),
]


def _name(check):
    return getattr(check, "func", check).__name__


# Arrays of other libraries are not among what the estimators take; their check skips itself.
CHECKS = [
    pytest.param(estimator, check, id=f"{estimator}-{_name(check)}-{number}")
    for estimator in CHECKED
    for number, (_, check) in enumerate(estimator_checks_generator(estimator))
    if "array_api" not in _name(check)
]


@pytest.mark.slow
@pytest.mark.parametrize(("estimator", "check"), CHECKS)
def test_scikit_learns_checks(estimator, check, monkeypatch):
    if not _name(check).endswith("_train"):  # which alone ask whether anything was learnt
        monkeypatch.setitem(NETWORK["training"], "rounds", 1)
        monkeypatch.setitem(NETWORK["pretraining"], "epochs", 1)
    check(clone(estimator))


def rows_of(name):
    frame = wards()[name]
    return frame.drop(columns="ill"), frame["ill"]


@pytest.mark.parametrize("name", ["north", "south", "east"])
def test_a_clients_model_is_fitted_already(fitted, name):
    rows, y = rows_of(name)
    estimator = estimator_of(fitted, name)
    kept = fitted.client(name).predict(rows)
    assert is_classifier(estimator)
    assert estimator.classes_.tolist() == ["well", "ill"]
    assert estimator.predict(rows).tolist() == kept.values.tolist()
    assert np.allclose(estimator.predict_proba(rows), kept.probabilities)
    named = np.array(["well", "ill"])[y]
    assert estimator.score(rows, named) == pytest.approx((kept.values == named).mean())


@pytest.mark.parametrize("name", ["north", "south", "east"])
def test_polars_frames_predict_the_same(fitted, name):
    rows, _ = rows_of(name)
    estimator = estimator_of(fitted, name)
    one, two = estimator.predict_proba(rows), estimator.predict_proba(pl.from_pandas(rows))
    assert np.allclose(one, two, atol=1e-6)


def test_raw_labels_are_read_as_the_client_reads_them(fitted):
    rows, y = rows_of("north")
    estimator = estimator_of(fitted, "north")
    named = np.array(["well", "ill"])[y]
    assert estimator.score(rows, y) == estimator.score(rows, y.astype(float))
    assert estimator.score(rows, y) == estimator.score(rows, named)
    again = clone(estimator).fit(rows, y)
    assert again.classes_.tolist() == ["well", "ill"]
    assert 0.5 < again.score(rows, y) <= 1


@pytest.mark.slow
@pytest.mark.parametrize("values", [(0, 1), (-1, 3), (False, True), ("no", "yes")])
def test_classes_are_the_values_that_the_frames_have(values):
    frames = {
        name: ward(seed, without=("stay", "notes")).assign(
            ill=lambda rows: [values[i] for i in rows["ill"]]
        )
        for seed, name in enumerate(["north", "south"])
    }
    federation = Federation.from_frames(frames, label="ill")
    federation.fit(repeats=2, folds=2, candidates=["lda"])
    rows = frames["north"]
    client = federation.client("north")
    found = accuracy_score(rows["ill"], client.predict(rows))
    assert found == client.score(rows, rows["ill"]) > 0.5
    assert cross_val_score(client, rows, rows["ill"], scoring="accuracy").mean() > 0.5


def test_other_labels_are_another_question(fitted):
    rows, y = rows_of("north")
    other = clone(estimator_of(fitted, "north")).fit(rows, y + 5)
    assert other.classes_.tolist() == [5, 6]
    assert {*other.predict(rows)} <= {5, 6}


def test_a_clone_is_not_fitted_and_knows_its_federation(fitted):
    estimator = estimator_of(fitted, "east")
    copy = clone(estimator)
    assert copy.federation is fitted
    assert copy.get_params() == estimator.get_params()
    assert not hasattr(copy, "model_")


@pytest.mark.slow
def test_random_state_is_read_as_scikit_learn_reads_it():
    rows, y = rows_of("east")

    def probabilities(state):
        return SiloClassifier("network", random_state=state).fit(rows, y).predict_proba(rows)

    assert np.array_equal(probabilities(np.int64(3)), probabilities(3))
    drawn = np.random.RandomState(3)
    one, two = probabilities(drawn), probabilities(drawn)
    assert not np.array_equal(one, two)
    assert np.array_equal(one, probabilities(np.random.RandomState(3)))
    assert not np.array_equal(probabilities(None), probabilities(None))


@pytest.mark.parametrize("name", ["north", "east"])
def test_pipelines_and_cross_validation(fitted, name):
    rows, y = rows_of(name)
    pipeline = make_pipeline(FunctionTransformer(), estimator_of(fitted, name))
    scores = cross_val_score(pipeline, rows, y, cv=2, error_score="raise")
    assert scores.shape == (2,)
    assert (scores >= 0.3).all()


@pytest.mark.slow
def test_a_refit_takes_the_shared_anchors(fitted):
    """Only what is private is learnt anew."""
    rows, y = rows_of("east")
    again = clone(estimator_of(fitted, "east")).fit(rows, y)
    assert again.model_.shared.keys() == fitted.shared.keys()
    for name, tensor in again.model_.shared.items():
        assert tensor.equal(fitted.shared[name])
    alone = SiloClassifier(method="flic").fit(rows, y)
    assert any(not alone.model_.shared[n].equal(t) for n, t in fitted.shared.items())


def test_a_refit_is_the_same_every_time(fitted):
    rows, y = rows_of("east")
    one, two = (clone(estimator_of(fitted, "east")).fit(rows, y) for _ in range(2))
    assert one.predict_proba(rows).tobytes() == two.predict_proba(rows).tobytes()


@pytest.mark.parametrize("name", ["north", "south", "east"])
def test_regressors(fitted_stays, name):
    frame = wards("stay")[name]
    rows, y = frame.drop(columns="stay"), frame["stay"]
    estimator = estimator_of(fitted_stays, name)
    assert is_regressor(estimator)
    assert (
        estimator.predict(rows).tolist() == fitted_stays.client(name).predict(rows).values.tolist()
    )
    assert np.isfinite(cross_val_score(estimator, rows, y, cv=2, error_score="raise")).all()


@pytest.mark.parametrize(
    ("estimator", "expected"),
    [
        (SiloClassifier(method="svm"), "method is 'svm'; expected one of network, lda, boosting"),
        (SiloClassifier(method="ridge"), "method is 'ridge'; expected one of network, lda"),
        (SiloRegressor(method="lda"), "method is 'lda'; expected one of network, ridge"),
        (SiloClassifier(method="shared-columns"), "needs what a federation shares"),
    ],
)
def test_methods_that_cannot_serve_are_refused(estimator, expected):
    frame = ward(0)
    with pytest.raises(ConfigError, match=expected):
        estimator.fit(frame[["age"]], frame["ill"])


def test_an_unknown_client_is_refused(fitted):
    with pytest.raises(ConfigError, match="client is 'west'; expected one of 'north', 'south'"):
        estimator_of(fitted, "west")
    rows, y = rows_of("north")
    with pytest.raises(ConfigError, match="client is 'west'"):
        SiloClassifier("lda", fitted, "west").fit(rows, y)
