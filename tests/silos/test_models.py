"""Models of every kind: saved as plain values, read back to the bit, refused where damaged."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from wards import SETTINGS, ward, wards

import flic
from flic.data.task import Classification
from flic.engine.engine import stack_of
from flic.errors import Damaged
from flic.methods import METHODS
from flic.silos.candidate import Candidate
from flic.silos.candidates import CANDIDATES
from flic.silos.column_views import linked_columns, own_columns, pooled_columns
from flic.silos.encoding import linked_features
from flic.silos.estimator_models import BoostedModel, LinearModel
from flic.silos.evaluator import Evaluator
from flic.silos.fit_settings import FitSettings
from flic.silos.mixing import Mix, mixed
from flic.silos.model import Saved
from flic.silos.models import KINDS
from flic.tables import tables_from_frames


@pytest.fixture(scope="module")
def evaluators():
    """The wards by task; two of them have the same columns, none of which is private."""
    found = {}
    for task, label in [("classification", "ill"), ("regression", "stay")]:
        frames = wards(label)
        frames["east"] = frames["east"].drop(columns=["seen", "notes"])
        frames["twin"] = frames["east"].iloc[::-1]
        span = (0, 25) if task == "regression" else None
        tables = tables_from_frames(frames, label=label, task=task, range=span)
        found[task] = Evaluator(tables, FitSettings(**SETTINGS))
    return found


ABLE = [(task, name) for name, c in CANDIDATES.items() for task in c.tasks]


def models_of(evaluator, encoded, name):
    """Models of a candidate; the mix is of equal parts of all the others."""
    if name != Mix.name:
        return evaluator.learn(CANDIDATES[name], encoded, seed=0).models
    learned = {n: evaluator.learn(CANDIDATES[n], encoded, seed=0) for n in evaluator.served}
    weights = {}
    for silo in encoded.silos:
        able = [n for n, own in learned.items() if silo.name in own.models]
        weights[silo.name] = dict.fromkeys(able, 1 / len(able))
    warm = {"lda": 0.5, "flic": 2.0} if isinstance(encoded.task, Classification) else {}
    return mixed(learned, warm, weights, encoded.task)


EXPORTING = ("lda", "logistic", "ridge", "boosting", "fedavg", "flic-hl", "linked")


@pytest.mark.slow
@pytest.mark.parametrize("method", EXPORTING)
def test_an_exported_model_predicts_as_its_method_does(evaluators, method):
    task = METHODS[method].tasks[0]
    evaluator, view = evaluators[task], pooled_columns if method == "linked" else own_columns
    rows = {t.name: (np.arange(40), np.arange(40, 60)) for t in evaluator.federation.tables}
    encoded, candidate = evaluator.encode(rows), Candidate("tried", "a method", method, view)
    models = candidate.learn(encoded, evaluator.settings, seed=0).models
    run = candidate.simulate(encoded, evaluator.settings, seed=0)
    clients, own = run.engine.clients, run.engine.method
    for silo in encoded.silos:
        names, [state] = [silo.name], run.journal.states([silo.name])
        stack = stack_of(clients, own, names, [state])
        data, test = clients.stacked_data(names), clients[silo.name].test
        [expected] = own.predict(run.server, stack, data, [test])
        if task == "classification":
            expected = expected.double().log_softmax(1)
        found = models[silo.name].predict(silo.held_out)
        np.testing.assert_allclose(found, expected.numpy(), atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(("task", "name"), ABLE)
def test_a_saved_model_predicts_the_same_to_the_bit(evaluators, task, name):
    evaluator = evaluators[task]
    rows = {t.name: (np.arange(40), np.arange(40, 60)) for t in evaluator.federation.tables}
    encoded = evaluator.encode(rows)
    models = models_of(evaluator, encoded, name)
    served = ["east", "twin"] if name == "same-space" else [s.name for s in encoded.silos]
    assert [*models] == served
    for silo in encoded.silos:
        if silo.name not in served:
            continue
        model, rows = models[silo.name], silo.held_out
        saved = model.save()
        again = KINDS[saved.kind].load(saved, encoded.task)
        predicted = model.predict(rows)
        assert model.reads(linked_features(silo)[0])
        assert predicted.shape == (20, encoded.task.num_outputs)
        assert predicted.tobytes() == again.predict(rows).tobytes()
        if task == "classification":
            assert np.allclose(np.exp(predicted).sum(1), 1)


def test_a_keyed_network_reads_what_two_clients_have_and_no_more():
    frames = {
        "a": ward(0)[["age", "dose", "ill"]],
        "b": ward(1)[["age", "blood", "ill"]],
        "c": ward(2)[["dose", "smoker", "ill"]],
        "d": ward(3)[["stay", "ill"]],
    }
    evaluator = Evaluator(tables_from_frames(frames, label="ill"), FitSettings(**SETTINGS))
    rows = {t.name: (np.arange(40), np.arange(40, 60)) for t in evaluator.federation.tables}
    encoded = evaluator.encode(rows)
    views = linked_columns(encoded)
    names = {silo.name: silo.encoder.sources for silo in encoded.silos}
    assert {c: {names[c][i] for i in own.inputs} for c, own in views.items()} == {
        "a": {"age", "dose"},
        "b": {"age"},
        "c": {"dose"},
    }
    assert len({own.space for own in views.values()}) == 1


def test_a_keyed_network_that_another_candidate_is_already_is_left_out():
    frames = {name: ward(seed)[["age", "dose", "ill"]] for seed, name in enumerate("abc")}
    evaluator = Evaluator(tables_from_frames(frames, label="ill"), FitSettings(**SETTINGS))
    assert "shared-columns" in evaluator.served
    assert "keyed" not in evaluator.served


def test_one_row_is_predicted_as_among_others(fitted):
    for name, client in fitted.clients.items():
        rows = wards()[name]
        whole = client.predict(rows).scores
        single = np.concatenate([client.predict(rows.iloc[[i]]).scores for i in range(5)])
        assert np.allclose(single, whole[:5], atol=1e-6)


def test_trees_of_one_class_say_so():
    bench_rows = wards()
    few = bench_rows["north"].assign(ill=[1] + [0] * 59)
    tables = tables_from_frames({**bench_rows, "north": few}, label="ill")
    evaluator = Evaluator(tables, FitSettings(**SETTINGS))
    encoded = evaluator.encode({t.name: (np.arange(1, 60), np.arange(1)) for t in tables.tables})
    model = CANDIDATES["boosting"].learn(encoded, evaluator.settings, seed=0).models["north"]
    assert np.exp(model.predict(encoded.silos[0].held_out)).tolist() == [[1.0, 0.0]]


DAMAGES = {
    "cut": lambda content: content[: len(content) // 2],
    "empty": lambda content: b"",
    "noise": lambda content: b"\x80\x04K*." + content[5:],
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_damaged_trees_are_refused(fitted, damage):
    model = fitted.clients["south"].model
    assert isinstance(model, BoostedModel)
    saved = model.save()
    with pytest.raises(Damaged, match=r"a boosted model cannot be read .* Fit"):
        BoostedModel.load(replace(saved, trees=damage(saved.trees)), fitted.task)


def test_trees_with_a_type_that_nobody_trusts_are_refused(fitted):
    import skops.io
    from sklearn.preprocessing import FunctionTransformer

    bad = skops.io.dumps(FunctionTransformer(func=Path.unlink))
    with pytest.raises(Damaged, match="cannot be read"):
        BoostedModel.load(Saved("boosting", {}, trees=bad), fitted.task)


def test_a_network_that_does_not_fit_its_settings_is_refused(fitted):
    saved = fitted.clients["east"].model.save()
    for name, tensor in saved.tensors.items():
        cut = saved.tensors | {name: tensor[:-1]}
        absent = {n: t for n, t in saved.tensors.items() if n != name}
        for tensors in (cut, absent):
            with pytest.raises(Damaged, match="a network does not fit its settings"):
                KINDS["network"].load(replace(saved, tensors=tensors), fitted.task)


@pytest.mark.parametrize(
    ("weights", "bias"),
    [((4, 3), (3,)), ((4, 3), (2,)), ((4, 2), (3,)), ((4,), (4,)), ((2,), (2,)), ((4, 2), (2, 1))],
)
def test_a_linear_model_of_other_outputs_is_refused(weights, bias):
    tensors = {"weights": torch.zeros(weights), "bias": torch.zeros(bias)}
    with pytest.raises(Damaged, match="a linear model has weights"):
        LinearModel.load(Saved("linear", {}, tensors), Classification(2))


def test_nothing_is_pickled_or_run():
    """Not in the whole package: no module that unpickles, no loading of tensors that does."""
    word = r"\b(pickle|cPickle|dill|cloudpickle|joblib|marshal|shelve)\b"
    pattern = re.compile(
        rf"^\s*(import|from)\s+{word}|torch\.(load|save)\(|allow_pickle=True|\b(eval|exec)\(", re.M
    )
    sources = [*Path(flic.__file__).parent.rglob("*.py")]
    assert len(sources) > 50
    found = {str(p): m.group() for p in sources if (m := pattern.search(p.read_text("utf-8")))}
    assert found == {}
    assert pattern.search("import pickle\n")
    assert pattern.search("x = torch.load(path)")
