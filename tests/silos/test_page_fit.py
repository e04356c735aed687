"""The report of a fitted federation: what its report says, and of which rows."""

from dataclasses import replace
from html import unescape

import numpy as np
import pytest
from wards import wards

from flic.engine.traffic import ClientTraffic, SentTensor
from flic.page.figures import prose
from flic.page.from_fit import report_of_fit
from flic.page.html import render
from flic.page.tensorboard import write_scalars
from flic.silos.evaluator import Evaluator
from flic.silos.folder import save
from flic.silos.measures import figures
from flic.silos.report_data import ReportData
from flic.silos.splits import outer_splits
from flic.tables import tables_from_frames


@pytest.mark.parametrize("task", ["classes", "responses"])
def test_the_report_of_a_fit(fitted, fitted_stays, tmp_path, task):
    own = fitted if task == "classes" else fitted_stays
    save(own, tmp_path / "fitted")
    report = report_of_fit(tmp_path / "fitted")
    assert [row.client for row in report.verdict] == [*own.clients]
    assert [row.difference for row in report.verdict] == [
        line.difference.mean for line in own.verdict.clients
    ]
    assert {*report.candidates} == {*own.verdict.candidates}
    assert [client.client for client in report.traffic] == [*own.clients]
    sent = {tensor.name for client in report.traffic for tensor in client.tensors}
    assert sent >= {f"flic: {name}" for name in own.shared}
    kept = {client.candidate for client in own.clients.values()}
    assert {name.partition(": ")[0] for name in sent} <= {*kept, "flic", "linked"}
    assert report.latent is not None
    assert {point.client for point in report.latent.points} == {*own.clients}
    if task == "classes":
        assert {point.label for point in report.latent.points} == {"well", "ill"}
    assert [row.kept_score for row in report.verdict] == [
        line.kept_score for line in own.verdict.clients
    ]
    assert report.group == ("class" if task == "classes" else "range")
    page = unescape(render(report))
    assert all(prose(line.sentence) in page for line in own.verdict.clients)


@pytest.mark.parametrize("task", ["classes", "responses"])
def test_scores_over_rounds_are_of_held_out_rows_of_the_first_split(
    fitted, fitted_stays, tmp_path, task
):
    own, label = (fitted, "ill") if task == "classes" else (fitted_stays, "stay")
    save(own, tmp_path / "fitted")
    report = report_of_fit(tmp_path / "fitted")
    assert [r.number for r in report.rounds if r.test is not None] == [0, 1, 2, 3]
    assert "held-out rows of the first split" in report.rounds_note
    more = {"labels": {"well": (0,), "ill": (1,)}} if task == "classes" else {"range": (0, 25)}
    kind = "classification" if task == "classes" else "regression"
    tables = tables_from_frames(wards(label), label=label, task=kind, **more)
    evaluator = Evaluator(tables, own.settings.model_copy(update={"candidates": ("flic",)}))
    [first, *_] = outer_splits(tables.tables, own.settings)
    predicted = evaluator.predictions(first, seed=own.settings.seed)["flic"]
    y = {t.name: t.y[first[t.name][1]] for t in tables.tables}
    found = [figures(own.task, predicted[c], y[c])[own.verdict.metric] for c in y]
    assert report.rounds[-1].test == pytest.approx(np.mean(found), abs=1e-5)


def test_curves_of_a_fit_for_tensorboard(fitted, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    save(fitted, tmp_path / "fitted")
    write_scalars(report_of_fit(tmp_path / "fitted"), tmp_path / "logs")
    events = EventAccumulator(str(tmp_path / "logs"))
    events.Reload()
    assert [event.step for event in events.Scalars("accuracy/test")] == [0, 1, 2, 3]


def test_a_fit_without_flic_has_no_curve(fitted, tmp_path):
    save(replace(fitted, report_data=ReportData(), records=()), tmp_path / "lone")
    report = report_of_fit(tmp_path / "lone")
    assert (report.rounds, report.latent) == ([], None)


def with_traffic(fitted, *names):
    traffic = ClientTraffic("north", [SentTensor(name, [2], bytes=8, times=1) for name in names])
    own = fitted.report_data.model_copy(update={"traffic": [traffic]})
    return replace(fitted, report_data=own)


@pytest.mark.parametrize("task", ["classes", "responses"])
def test_what_never_left_depends_on_what_did(fitted, fitted_stays, tmp_path, task):
    own = fitted if task == "classes" else fitted_stays
    sent = {"flic": ("flic: anchor.0.mean",), "both": ("flic: anchor.0.mean", "linked: moments.x")}
    for name, tensors in sent.items():
        save(with_traffic(own, *tensors), tmp_path / name)
    alone, both = (report_of_fit(tmp_path / name) for name in sent)
    assert "rows and labels" in alone.never_left
    assert "rows and labels" not in both.never_left
    assert any("columns that are not linked" in what for what in both.never_left)
    [counted] = alone.traffic_notes
    assert "nothing was really sent" in counted
    assert "newcomers may join" in counted
    assert both.traffic_notes[0] == counted
    is_class = task == "classes"
    spread = "what tells the classes apart" if is_class else "variances and covariances"
    assert spread in both.traffic_notes[1]
    means = "class means" if is_class else "means and that of the response"
    assert f"linked columns reveal their {means}" in both.traffic_notes[1]
    assert "Names of shared columns" in both.traffic_notes[1]
