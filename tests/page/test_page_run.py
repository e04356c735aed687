"""The report of a run of the core, held to what the run itself recorded."""

import importlib.metadata
import json
import shutil
from collections import Counter

import pyarrow.parquet as pq
import pytest
import torch

from flic.config import resolve
from flic.engine.checkpoint import Commit, DiskJournal
from flic.errors import Damaged, RunFolderError
from flic.methods.flic import algorithm
from flic.methods.flic.meta import MetaClassView, meta_scores
from flic.methods.flic.scheme import ByClass
from flic.page.from_run import report_of_run
from flic.runs import loaded, run_folder
from flic.runs.latent import read

RAW = {
    "method": "flic-hl",
    "seed": 3,
    "data": {
        "problem": "noisy-features",
        "num_clients": 4,
        "num_classes": 5,
        "classes_per_client": 2,
        "train_rows_per_class": 40,
        "test_rows_per_class": 10,
    },
    "training": {"rounds": 2, "participation": 0.5, "local": "1 epochs"},
    "embedding": {"latent_dim": 4, "hidden": [4]},
    "model": {"hidden_dim": 4},
    "pretraining": {"epochs": 1},
}
REGRESSION = {"problem": "diabetes", "num_clients": 4}


@pytest.fixture
def finished(tmp_path):
    def make(name="run", **changes):
        folder = tmp_path / name
        run_folder.create(folder, resolve({**RAW, **changes}))
        run_folder.resume(folder)
        return folder

    return make


@pytest.mark.parametrize(
    "changes",
    [
        {"method": "flic-class"},
        {"method": "flic-hl"},
        {"method": "flic-class", "anchors": {"covariance": "full"}},
        {"method": "flic-class", "anchors": {"meta_classes": 2}},
        {"method": "permuted-anchors"},
        {"method": "within-space"},
        {"method": "hetfedrep"},
        {"method": "fedhenn"},
        {"method": "local"},
        {"method": "lda"},
    ],
    ids=lambda changes: "-".join(map(str, changes.values())),
)
def test_traffic_is_what_the_rounds_counted(finished, changes):
    report = report_of_run(finished(**changes))
    total = sum(own.total for own in report.traffic)
    assert total == sum(r.bytes_sent for r in report.rounds)
    assert (total == 0) == (changes["method"] in ("local", "lda"))
    assert len(report.traffic) == 4


def test_what_leaves_and_what_never_does(finished):
    folder = finished()
    report = report_of_run(folder)
    rounds = json.loads((folder / "rounds.json").read_text())
    active = [name for r in rounds for name in r.get("active", ())]
    for own in report.traffic:
        assert {t.times for t in own.tensors} <= {active.count(own.client)}
    gone = {t.name for own in report.traffic for t in own.tensors}
    assert {"hidden.weight", "hidden.bias"} < gone
    kept = " ".join(report.never_left)
    assert "rows and labels" in kept
    assert "embedding.0.weight" in kept
    assert "head.weight" in kept
    assert not any(name in kept for name in gone)


def test_rounds_scores_and_versions(finished):
    folder = finished()
    report = report_of_run(folder)
    rounds = json.loads((folder / "rounds.json").read_text())
    assert [r.test for r in report.rounds] == [r["test_accuracy"] for r in rounds]
    assert report.rounds[1].losses == rounds[1]["losses"]
    summary = json.loads((folder / "summary.json").read_text())
    own = report.candidates["flic-hl"]
    assert sum(own.values()) / len(own) == pytest.approx(summary["last_round"]["mean"])
    assert report.versions["torch"] == importlib.metadata.version("torch")
    assert report.settings["training"]["rounds"] == 2


def test_the_view_has_every_row_once(finished):
    folder = finished()
    view, config = report_of_run(folder).latent, run_folder.read_config(folder)
    data = config.data.make(seed=config.seed).with_validation(0.2, seed=config.seed)
    expected = Counter(
        (client.name, split, str(label))
        for client in data.clients
        for split in ("train", "test")
        for label in getattr(client, split).y.tolist()
    )
    assert Counter((p.client, p.split, p.label) for p in view.points) == expected
    assert [anchor.label for anchor in view.anchors] == [str(c) for c in range(5)]
    assert "% of variance" in view.caption.replace("\u00a0", "")


def test_a_large_view_is_a_sample_that_comes_again(finished):
    data = {**RAW["data"], "test_rows_per_class": 800}
    folder = finished(data=data)
    first, second = report_of_run(folder).latent, report_of_run(folder).latent
    assert len(first.points) == 3000
    assert first == second
    assert "3,000 of 4,0" in first.caption


def test_embedded_rows_are_those_the_method_predicts_with(finished):
    """By the nearest anchor, so that rows and anchors alone give the recorded scores."""
    model = {"hidden_dim": 4, "predict_by": "nearest-anchor"}
    folder = finished(model=model, method="flic-class")
    config = run_folder.read_config(folder)
    engine = loaded.engine_of(config, config.data.make(seed=config.seed))
    journal = DiskJournal(folder / "checkpoints")
    found = read(engine.clients, engine.method, journal, stack_width=3)
    rows = pq.read_table(folder / "clients.parquet").to_pylist()
    right = {row["client"]: row["test_right"] for row in rows if row["round"] == 3}
    for part in found.parts:
        if part.split == "test":
            scores = [anchor.log_density(part.z) for anchor in part.anchors.values()]
            best = torch.tensor(list(part.anchors))[torch.stack(scores).argmax(0)]
            assert int((best == part.y).sum()) == right[part.client]


@pytest.mark.parametrize(("latent_dim", "known"), [(4, True), (64, False)])
def test_alignment_has_intervals_where_rows_suffice(finished, latent_dim, known):
    data = {**RAW["data"], "train_rows_per_class": 80, "test_rows_per_class": 40}
    report = report_of_run(finished(data=data, embedding={"latent_dim": latent_dim, "hidden": [4]}))
    assert len(report.alignment) == 4 * 2 * 2
    assert all((cell.low is not None) == known for cell in report.alignment)
    assert all(0 <= (cell.low or 0) <= cell.w2sq for cell in report.alignment)


def test_a_regression(finished):
    report = report_of_run(finished(data=REGRESSION))
    assert (report.measure.name, report.measure.percent) == ("R²", False)
    assert report.alignment == []
    labels = {point.label for point in report.latent.points}
    assert {anchor.label for anchor in report.latent.anchors} < labels
    assert len(labels) == 4


def test_meta_classes_have_their_own_anchors(finished):
    report = report_of_run(finished(method="flic-class", anchors={"meta_classes": [0, 0, 1, 1, 1]}))
    labels = [anchor.label for anchor in report.latent.anchors]
    assert labels == ["meta-class 0", "meta-class 1"]


class InPairs(ByClass):
    """An anchor for classes 0 and 1, one for 2 and 3, and so on, which nobody needs to be told."""

    pair_of = torch.tensor([0, 0, 1, 1, 2])
    num_anchors = 3

    def seen(self, context):
        return MetaClassView.view(context.data, self.pair_of)

    def anchor_scores(self, context, scores):
        return meta_scores(scores, self.pair_of)

    def anchors_of_classes(self, shared, classes):
        return {c: c // 2 for c in classes}


def test_any_scheme_with_fewer_anchors_than_classes_is_shown_as_meta_classes_are(
    finished, monkeypatch
):
    """All that a report has to know of a scheme is asked of it."""
    known = finished("meta", method="flic-class", anchors={"meta_classes": [0, 0, 1, 1, 2]})
    expected = report_of_run(known)
    monkeypatch.setattr(algorithm, "SCHEMES", (InPairs,))
    report = report_of_run(finished("pairs", method="flic-class"))
    assert [anchor.label for anchor in report.latent.anchors] == ["0", "1", "2"]
    for own, other in zip(report.latent.anchors, expected.latent.anchors, strict=True):
        assert (own.x, own.y) == pytest.approx((other.x, other.y))
    distances = [cell.w2sq for cell in report.alignment]
    assert distances == pytest.approx([cell.w2sq for cell in expected.alignment])


def test_a_method_without_networks(finished):
    report = report_of_run(finished(method="lda"))
    assert report.latent is None
    assert not report.alignment


def test_runs_side_by_side_give_gains_over_local(finished):
    local, own = finished("local-seed3", method="local"), finished("flic-hl-seed3")
    report = report_of_run(own)
    assert list(report.candidates) == ["flic-hl", "local"]
    scores = {
        name: report_of_run(folder).candidates for name, folder in (("own", own), ("local", local))
    }
    for gain in report.gains.clients:
        expected = scores["own"]["flic-hl"][gain.client] - scores["local"]["local"][gain.client]
        assert gain.gain == pytest.approx(expected)
        assert gain.low < gain.gain < gain.high
    assert report_of_run(local).gains is None


def test_another_federation_beside_it_is_no_comparison(finished):
    finished("local-seed3", method="local", data={**RAW["data"], "test_rows_per_class": 20})
    report = report_of_run(finished("flic-hl-seed3"))
    assert list(report.candidates) == ["flic-hl"]
    assert report.gains is None


FILES = ["rounds.json", "clients.parquet", "summary.json", "timings.json"]


@pytest.mark.parametrize("name", FILES)
def test_figures_are_those_of_the_checkpoints_whatever_lies_beside_them(finished, name):
    folder, other = finished(), finished("other", seed=4)
    right, theirs = report_of_run(folder), report_of_run(other)
    assert right.rounds != theirs.rounds
    assert right.candidates != theirs.candidates
    for content in ((other / name).read_bytes(), b"{"):
        (folder / name).write_bytes(content)
        assert report_of_run(folder) == right
    (folder / name).unlink()
    assert report_of_run(folder) == right


@pytest.mark.parametrize("name", FILES)
def test_so_are_those_of_a_run_beside_it(finished, name):
    local, own = finished("local-seed3", method="local"), finished("flic-hl-seed3")
    right = report_of_run(own)
    (local / name).write_bytes((own / name).read_bytes())
    assert report_of_run(own) == right


def test_a_run_beside_it_without_checkpoints_is_left_out_and_said(finished):
    local, own = finished("local-seed3", method="local"), finished("flic-hl-seed3")
    shutil.rmtree(local / "checkpoints")
    report = report_of_run(own)
    assert list(report.candidates) == ["flic-hl"]
    assert report.notes[-1].startswith("local is not compared: ")


def test_notes_are_those_that_the_run_ended_with(finished):
    folder = finished(method="linked")
    summary = json.loads((folder / "summary.json").read_text())
    assert report_of_run(folder).notes == summary["notices"] != []


@pytest.mark.parametrize("is_begun", [False, True])
def test_an_unfinished_run_is_refused(tmp_path, is_begun):
    folder = tmp_path / "run"
    run_folder.create(folder, resolve(RAW))

    def stop(record, total, done):
        raise KeyboardInterrupt

    if is_begun:
        with pytest.raises(KeyboardInterrupt):
            run_folder.resume(folder, on_step=stop)
    with pytest.raises(RunFolderError, match=r"steps are missing in checkpoints; .*flic run --res"):
        report_of_run(folder)
    run_folder.resume(folder)
    assert report_of_run(folder).rounds


DEEP = "[" * 100_000 + "]" * 100_000


@pytest.mark.slow
def test_versions_of_another_kind_are_named(finished):
    path = finished() / "run.json"
    for content in ["{", "null", "[]", '{"python": []}', DEEP]:
        path.write_text(content)
        with pytest.raises(Damaged, match=r"run\.json is damaged .*flic run --resume"):
            report_of_run(path.parent)
    path.unlink()
    with pytest.raises(Damaged, match=r"run\.json is damaged"):
        report_of_run(path.parent)
    run_folder.resume(path.parent)
    assert report_of_run(path.parent).versions


def test_a_client_of_another_run_is_named(finished):
    folder = finished()
    path = folder / "checkpoints" / "00001.json"
    commit = Commit.parse(path.read_bytes())
    record = {**commit.record, "active": ["client-99"]}
    path.write_bytes(commit.model_copy(update={"record": record}).dump())
    with pytest.raises(Damaged, match=r"step 1 names 'client-99', which is no client of the run"):
        report_of_run(folder)


def test_checkpoints_of_many_levels_are_set_aside(finished):
    folder = finished()
    for path in (folder / "checkpoints").glob("[0-9]*.json"):
        path.write_text(DEEP)
    with pytest.raises(RunFolderError, match="it is not used; the run goes on from the beginning"):
        report_of_run(folder)
    run_folder.resume(folder)
    assert report_of_run(folder).rounds


def test_a_run_whose_last_step_is_lost_is_not_shown_as_a_whole_one(finished):
    folder = finished()
    (folder / "checkpoints" / "00003.json").write_text("[]")
    with pytest.raises(RunFolderError, match=r"00003.json is damaged .*flic run --resume"):
        report_of_run(folder)
    run_folder.resume(folder)
    assert report_of_run(folder).rounds


def test_a_report_changes_nothing_in_the_run(finished):
    folder = finished()
    before = {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    report_of_run(folder)
    assert {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()} == before


def test_the_page_of_a_run_in_the_browser(finished, show):
    opened = show(report_of_run(finished()))
    for name in ("scores", "losses", "latent", "alignment"):
        assert opened.page.locator(f"#plot-{name} svg.main-svg").count() > 0
    assert (opened.complaints, opened.requests) == ([], [])
