"""The folder of a fitted federation: whole or not there, and refused where it was touched."""

import json
import platform
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from wards import wards

from flic.digests import digest, digest_of
from flic.errors import Damaged, RunFolderError
from flic.page.from_fit import report_of_fit
from flic.silos import folder as folders
from flic.silos.fitted import FittedFederation
from flic.silos.report_data import ReportData
from flic.silos.results import Results
from flic.silos.verdict import Difference
from flic.tables.declared import Link

FILES = [
    "README.md",
    "verdict.json",
    "results.parquet",
    "rounds.json",
    "report_data.json",
    "shared.safetensors",
    "linked.safetensors",
    "clients/00-north/client.json",
    "clients/00-north/model.json",
    "clients/00-north/model.safetensors",
    "clients/00-north/trained.digests",
    "clients/01-south/client.json",
    "clients/01-south/model.json",
    "clients/01-south/model.skops",
    "clients/01-south/trained.digests",
    "clients/02-east/client.json",
    "clients/02-east/model.json",
    "clients/02-east/model.safetensors",
    "clients/02-east/trained.digests",
]


def files_of(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_round_trip(fitted, folder):
    again = folders.load(folder)
    assert (again.task, again.labels, again.settings) == (
        fitted.task,
        fitted.labels,
        fitted.settings,
    )
    assert again.verdict == fitted.verdict
    assert again.known == fitted.known
    assert {n: t.tolist() for n, t in again.shared.items()} == {
        n: t.tolist() for n, t in fitted.shared.items()
    }
    for name, rows in wards().items():
        one, two = fitted.client(name), again.client(name)
        assert (one.columns, one.encoder, one.declared) == (two.columns, two.encoder, two.declared)
        assert one.predict(rows).scores.tobytes() == two.predict(rows).scores.tobytes()


def test_round_trip_of_a_regression(fitted_stays, tmp_path):
    folders.save(fitted_stays, tmp_path / "stays")
    again = folders.load(tmp_path / "stays")
    assert again.verdict == fitted_stays.verdict
    for name, rows in wards("stay").items():
        one, two = (f.client(name).predict(rows).values for f in (fitted_stays, again))
        assert one.tobytes() == two.tobytes()


def test_a_loaded_folder_is_written_alike(folder, tmp_path):
    folders.save(folders.load(folder), tmp_path / "copy")
    assert files_of(tmp_path / "copy") == files_of(folder)


def test_versions_are_those_of_the_fit_whoever_reports_or_joins(fitted, tmp_path):
    assert fitted.environment["python"] == platform.python_version()
    folder = tmp_path / "elsewhere"
    elsewhere = {**fitted.environment, "python": "3.99.0", "machine": "abacus"}
    folders.save(replace(fitted, environment=elsewhere), folder)
    folders.update(with_newcomer(folders.load(folder)), folder)
    manifest = json.loads((folder / "federation.json").read_text())
    assert manifest["federation"]["environment"] == elsewhere
    assert report_of_fit(folder).versions == elsewhere


def test_figures_that_are_not_known_stay_so(fitted, tmp_path):
    first, *rest = fitted.verdict.clients
    unknown = Difference(0.0, -np.inf, np.inf)
    line = replace(first, alone_score=np.nan, difference=unknown)
    table = fitted.verdict.results.table
    auroc = table["value"].mask(table["metric"] == "auroc")
    results = Results(table.assign(value=auroc))
    verdict = replace(fitted.verdict, clients=(line, *rest), results=results)
    folders.save(replace(fitted, verdict=verdict), tmp_path / "unknown")
    again = folders.load(tmp_path / "unknown").verdict
    assert again.clients[0].difference == unknown
    assert np.isnan(again.clients[0].alone_score)
    assert np.isnan(again.candidates["lda"]["north"]["auroc"])


def test_all_files_are_known(folder):
    assert {*files_of(folder)} == {*FILES, "federation.json"}


def test_only_its_owner_may_read_it(modes, fitted, tmp_path):
    folder = tmp_path / "above" / "fitted"
    folders.save(fitted, folder)
    folders.update(with_newcomer(folders.load(folder)), folder)
    assert modes(folder.parent) == {"folder 700", "file 600"}


def edited(content):
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


DAMAGES = {
    "edited": edited,
    "cut": lambda content: content[:-1],
    "longer": lambda content: content + b"\n",
    "empty": lambda content: b"",
    "removed": None,
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_touched_file_is_named_and_refused(folder, damage):
    for name in FILES:
        path = folder / name
        content = path.read_bytes()
        if damage is None:
            path.unlink()
        else:
            path.write_bytes(damage(content))
        with pytest.raises(Damaged) as refusal:
            folders.load(folder)
        path.write_bytes(content)
        assert f"{folder} is damaged ({name} " in str(refusal.value)
        assert "Restore the folder from a copy, or fit" in str(refusal.value)
    assert isinstance(folders.load(folder), FittedFederation)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "federation.json cannot be read"),
        (b"[]", r"federation.json cannot be read \(a part of it is of the wrong kind"),
        (b"{}", r"federation.json cannot be read \('version' is missing"),
        (b'{"version": 2', "federation.json cannot be read"),
        (b"\xff\xfe", "federation.json cannot be read"),
    ],
)
def test_a_manifest_that_is_none(folder, content, expected):
    (folder / "federation.json").write_bytes(content)
    with pytest.raises(Damaged, match=expected):
        folders.load(folder)


def change_manifest(folder, change):
    path = folder / "federation.json"
    manifest = json.loads(path.read_text())
    change(manifest)
    path.write_text(json.dumps(manifest))


def test_an_edited_manifest_is_refused(folder):
    change_manifest(folder, lambda m: m["federation"]["temperatures"].update(lda=2.0))
    with pytest.raises(Damaged, match=r"federation.json was changed after it was written"):
        folders.load(folder)


def test_another_version_is_refused_with_what_to_do(folder):
    change_manifest(folder, lambda m: m.update(version=99))
    with pytest.raises(
        RunFolderError, match=f"has version 99; this flic reads version {folders.VERSION}. Fit"
    ):
        folders.load(folder)


def test_a_folder_that_holds_none(tmp_path):
    with pytest.raises(RunFolderError, match=r"holds no fitted federation: federation.json is"):
        folders.load(tmp_path)


def forge(folder, name, change):
    """Change a JSON file and every checksum with it, as whoever knows the format could."""
    path = folder / name
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))

    def tell(manifest):
        body = manifest["federation"]
        body["files"][name] = digest(path.read_bytes())
        manifest["sha256"] = digest_of(body)

    change_manifest(folder, tell)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("clients/00-north/model.json", lambda c: c.update(kind="pickle")),
        ("clients/00-north/client.json", lambda c: c.pop("encoder")),
        ("clients/00-north/client.json", lambda c: c["columns"][0].update(kind="x", more=1)),
        ("clients/00-north/client.json", lambda c: c["columns"].pop()),
        ("clients/02-east/model.json", lambda c: c["facts"].update(inputs=[0])),
        ("clients/02-east/model.json", lambda c: c["facts"].update(method="os.system")),
        ("verdict.json", lambda c: c.update(clients=3)),
        ("verdict.json", lambda c: c.pop("best")),
        ("verdict.json", lambda c: c.update(metric="r2")),
    ],
)
def test_parts_that_do_not_fit_together_are_refused(folder, name, change):
    forge(folder, name, change)
    with pytest.raises(Damaged):
        folders.load(folder)


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m["federation"].pop("files"),
        lambda m: m["federation"].update(files=["verdict.json"]),
        lambda m: m["federation"].update(files={}),
        lambda m: m["federation"].pop("clients"),
        lambda m: m["federation"].update(clients=[]),
        lambda m: m.update(federation=[]),
    ],
)
def test_a_resealed_manifest_without_its_parts_is_refused(folder, change):
    def reseal(manifest):
        change(manifest)
        manifest["sha256"] = digest_of(manifest["federation"])

    change_manifest(folder, reseal)
    with pytest.raises(Damaged, match="its parts do not fit together"):
        folders.load(folder)


def test_a_resealed_manifest_with_wrong_settings_is_refused_in_plain_words(folder):
    def reseal(manifest):
        manifest["federation"]["settings"]["repeats"] = 1
        manifest["sha256"] = digest_of(manifest["federation"])

    change_manifest(folder, reseal)
    with pytest.raises(Damaged, match=r"settings.repeats: got 1; expected 2 or more\)"):
        folders.load(folder)


@pytest.mark.parametrize("client", ["00-north", "01-south", "02-east"])
def test_a_model_of_other_features_than_the_encoder_has_is_refused(folder, client):
    """Linear, boosted and a network, each of which would fail at the first prediction only."""

    def lose_a_column(facts):
        numbers = facts["encoder"]["parts"][0]
        assert numbers["kind"] == "numbers"
        numbers["columns"].pop()
        numbers["medians"].pop()
        for scale in numbers["scale"].values():
            scale.pop(len(numbers["columns"]))

    forge(folder, f"clients/{client}/client.json", lose_a_column)
    with pytest.raises(Damaged, match="reads other features than its encoder writes"):
        folders.load(folder)


@pytest.mark.parametrize("positions", [None, {"0": 0, "1": 7}, {"0": -1, "1": 0}])
def test_labels_of_another_task_are_refused(folder, positions):
    """They would fail at the first evaluation only."""

    def change(facts):
        facts["labelling"]["positions"] = positions

    forge(folder, "clients/00-north/client.json", change)
    with pytest.raises(Damaged, match="labels of client 'north' are not those of the task"):
        folders.load(folder)


@pytest.mark.parametrize("what", ["file", "other"])
def test_an_occupied_path_is_refused_and_left_alone(fitted, tmp_path, what):
    taken = tmp_path / "taken"
    if what == "file":
        taken.write_text("mine")
    else:
        taken.mkdir()
        (taken / "mine").write_text("mine")
    with pytest.raises(RunFolderError, match="already holds something; expected a new or empty"):
        folders.save(fitted, taken)
    assert [*tmp_path.rglob("*")] == [taken, *([taken / "mine"] if what == "other" else [])]


@pytest.mark.parametrize("name", ["new", "deep/er/new", "empty", "."])
def test_paths_that_are_free(fitted, tmp_path, monkeypatch, name):
    (tmp_path / "here" / "empty").mkdir(parents=True)
    if name == ".":
        (tmp_path / "here" / "empty").rmdir()
    monkeypatch.chdir(tmp_path / "here")
    folders.save(fitted, (path := type(tmp_path)(name)))
    target = tmp_path / "here" / path
    assert folders.load(target).labels == fitted.labels
    assert not [p for p in tmp_path.rglob(".*") if p.name.endswith(".partial")]


HOSTILE = ["../x", "a/b", "/etc/passwd", "..", "漢字 ß", "n" * 200, "a\nb", "-", "CON", "x|y"]


@pytest.mark.slow
def test_hostile_names_stay_inside(fitted, tmp_path):
    """Names that the files of a federation refuse can still come from Python."""
    models = [*fitted.clients.values()]

    def renamed(model, name):
        """With private columns under the names that they had."""
        private = [c.name for c in model.columns if c.kind in ("date", "text")]
        links = {column: Link(name=f"{column} of {model.name}") for column in private}
        return replace(
            model, name=name, declared=model.declared.model_copy(update={"links": links})
        )

    clients = {
        name: renamed(models[i % 3], name) for i, name in enumerate([*HOSTILE, "x y", "x-y"])
    }
    folders.save(replace(fitted, clients=clients), tmp_path / "in" / "fitted")
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert all(path.is_relative_to(tmp_path / "in" / "fitted") for path in written)
    assert len([path for path in written if path.name == "client.json"]) == len(clients)
    assert [*folders.load(tmp_path / "in" / "fitted").clients] == [*clients]


# ---- a full disk -----------------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 1, 7, len(FILES)])
def test_a_full_disk_leaves_nothing(fitted, tmp_path, full_disk, count):
    full_disk(count)
    with pytest.raises(OSError, match="No space left"):
        folders.save(fitted, tmp_path / "fitted")
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("count", [0, 1, 2, 3])
def test_a_full_disk_leaves_a_folder_as_it_was(fitted, folder, full_disk, count):
    before = files_of(folder)
    full_disk(count)
    with pytest.raises(OSError, match="No space left"):
        folders.update(with_newcomer(fitted), folder)
    assert files_of(folder) == before
    assert not (folder / ".partial").exists()


def with_newcomer(fitted):
    newcomer = replace(fitted.clients["north"], name="new")
    verdict = replace(fitted.verdict, splits=99)
    return replace(fitted, clients={**fitted.clients, "new": newcomer}, verdict=verdict)


def stop_after(monkeypatch, folder, count):
    """Stop as a user does when so many files of an update have taken their places."""
    real, left = Path.replace, [count]

    def rename(self, target):
        if self.is_relative_to(folder / ".partial") and not target.is_relative_to(
            folder / ".partial"
        ):
            left[0] -= 1
            if left[0] < 0:
                raise KeyboardInterrupt
        return real(self, target)

    monkeypatch.setattr(Path, "replace", rename)


# The verdict, the card, three files of the newcomer and the manifest.
@pytest.mark.parametrize("count", range(6))
def test_a_stop_between_two_files_loses_nothing(folder, tmp_path, monkeypatch, count):
    changed = with_newcomer(folders.load(folder))
    folders.save(changed, tmp_path / "whole")
    with monkeypatch.context() as patch:
        stop_after(patch, folder, count)
        with pytest.raises(KeyboardInterrupt):
            folders.update(changed, folder)
    after = files_of(folder)
    again = folders.load(folder)
    assert files_of(folder) == after  # whoever may only read can load it too
    assert (again.verdict.splits, [*again.clients][-1]) == (99, "new")
    folders.update(again, folder)
    assert files_of(folder) == files_of(tmp_path / "whole")
    assert not (folder / ".partial").exists()


def test_an_update_that_was_killed_while_writing_is_not_looked_at(fitted, folder):
    before = files_of(folder)
    (folder / ".partial").mkdir()
    (folder / ".partial" / "verdict.json").write_text("half of")
    again = folders.load(folder)
    assert again.verdict == fitted.verdict
    folders.update(again, folder)
    assert files_of(folder) == before


def test_what_an_interrupted_write_left_is_no_obstacle(fitted, tmp_path):
    left = tmp_path / ".fitted.partial" / "clients"
    left.mkdir(parents=True)
    folders.save(fitted, tmp_path / "fitted")
    assert [path.name for path in tmp_path.iterdir()] == ["fitted"]


def test_an_empty_shared_part_is_written_too(fitted, tmp_path):
    folders.save(
        replace(fitted, shared={}, report_data=ReportData(), records=()), tmp_path / "lone"
    )
    again = folders.load(tmp_path / "lone")
    assert (again.shared, again.report_data, [*again.records]) == ({}, ReportData(), [])
