"""`flic fit`: from a federation.toml to a verdict and a folder, as a user types it."""

import json

import pytest

from flic.silos.federation import Federation
from silos.wards import wards

FIT = """
[fit]
repeats = 2
folds = 2
scheme = "splits"
candidates = ["lda", "flic"]

[fit.network]
training = { rounds = 2, local = "3 steps", shared = "1 steps" }
pretraining = { epochs = 2 }
"""


@pytest.fixture
def federation(tmp_path):
    """federation(settings): federation.toml of three wards, and their files."""

    def write(settings=FIT, label="ill", extra=""):
        text = [f'label = "{label}"', extra]
        for name, frame in wards(label).items():
            frame.to_csv(tmp_path / f"{name}.csv", index=False)
            text += ["[[clients]]", f'name = "{name}"', f'data = "{name}.csv"']
        (tmp_path / "federation.toml").write_text("\n".join([*text, settings]))
        return "federation.toml"

    return write


def test_a_fit_is_told_and_kept(flic, federation, tmp_path):
    """In a process of its own, with the work shared among two more."""
    said = flic("fit", federation(), "--out", "fitted", "--workers", "2")
    assert (said.code, said.err) == (0, "")
    assert "Held-out accuracy, 2 splits" in said.out
    assert "Every candidate, mean over the clients it serves" in said.out
    assert "wrote the fitted federation to fitted; look at it with: flic report fitted" in said.out
    verdict = Federation.load(tmp_path / "fitted").verdict()
    for line in verdict.clients:
        assert f"{line.sentence} Why: {line.reason}" in said.out
    alone = Federation.from_file(tmp_path / "federation.toml").fit(workers=1)
    alone.save(tmp_path / "alone")
    one, two = (tmp_path / folder / "verdict.json" for folder in ("alone", "fitted"))
    assert one.read_bytes() == two.read_bytes()


@pytest.mark.parametrize("folder", ["/proc/x/out", "/dev/null/out", "north.csv/out"])
def test_an_impossible_folder_is_refused_before_work_starts(flic_here, federation, folder):
    said = flic_here("fit", federation(), "--out", folder)
    assert (said.code, said.out) == (1, "")
    assert f"{folder} cannot be made (" in said.err
    assert "expected a place for a new folder. Choose another with --out." in said.err


def test_a_free_place_is_left_as_it_is_until_the_end(flic_here, federation, tmp_path):
    file = federation(FIT.replace("repeats = 2", "repeats = 1"))
    before = {*tmp_path.rglob("*")}
    assert flic_here("fit", file, "--out", "deep/er/fitted").code == 2
    assert {*tmp_path.rglob("*")} == before


@pytest.mark.slow
def test_json_is_the_verdict_and_nothing_else(flic_here, federation, tmp_path):
    said = flic_here("fit", federation(), "--out", "fitted", "--format", "json")
    assert (said.code, said.err) == (0, "")
    assert json.loads(said.out) == json.loads((tmp_path / "fitted" / "verdict.json").read_text())


@pytest.mark.slow
def test_what_is_not_known_is_null_in_json(flic_here, federation, tmp_path):
    """One row of a class is held out once at most, so that its rank is seldom defined."""
    file = federation()
    frame = wards()["north"].assign(ill=[1] + [0] * 59)
    frame.to_csv(tmp_path / "north.csv", index=False)
    said = flic_here("fit", file, "--out", "fitted", "--format", "json", "--set", "metric=auroc")
    assert said.code == 0, said.err
    found = json.loads(said.out, parse_constant=pytest.fail)
    assert found["clients"][0]["difference"]["low"] is None
    assert flic_here("report", "fitted").code == 0


@pytest.mark.slow
def test_settings_on_the_command_line_come_last(flic_here, federation, tmp_path):
    sets = ["repeats=3", "network.training.rounds=1", 'candidates=["lda", "network", "flic"]']
    options = [part for text in sets for part in ("--set", text)]
    said = flic_here("fit", federation(), "--out", "fitted", "--quiet", *options)
    assert said.code == 0, said.err
    assert "step" not in said.out
    own = Federation.load(tmp_path / "fitted").fitted
    assert (own.verdict.splits, own.settings.folds) == (3, 2)
    assert (own.settings.method.training.rounds, own.settings.method.pretraining.epochs) == (1, 2)
    assert [*own.verdict.candidates] == ["network", "lda", "flic"]


@pytest.mark.slow
def test_numbers_are_asked_for_too(flic_here, federation):
    file = federation(
        FIT.replace('"lda"', '"ridge"'), "stay", 'task = "regression"\nrange = [0, 25]'
    )
    said = flic_here("fit", file, "--out", "fitted")
    assert said.code == 0, said.err
    assert "Held-out r2, 2 splits" in said.out


@pytest.mark.slow
def test_flic_check_knows_that_numbers_have_no_meta_classes(flic_here, federation):
    file = federation("[fit]\nmeta_classes = 2", "stay", 'task = "regression"\nrange = [0, 25]')
    for command in (["check", file], ["fit", file, "--out", "fitted"]):
        said = flic_here(*command)
        assert said.code != 0
        assert "anchors.meta_classes is set on data with real responses" in said.err
        assert "splits" not in said.out


@pytest.mark.slow
def test_what_was_left_out_is_said(flic_here, federation, tmp_path):
    file = federation()
    frame = wards()["north"].astype({"ill": object})
    frame.loc[:1, "ill"] = None
    frame.assign(lab=None).to_csv(tmp_path / "north.csv", index=False)
    said = flic_here("fit", file, "--out", "fitted")
    assert "note: Client 'north': 2 rows without a label are dropped." in said.err
    assert "note: Client 'north': 'lab' not used: all values are missing." in said.err


@pytest.mark.slow
def test_flic_check_looks_at_the_settings_of_the_fit(flic_here, federation):
    assert flic_here("check", federation()).code == 0
    file = federation('[fit]\nrepeats = 1\nfold = 2\nmetric = "r2"\n[fit.network]\nembeding = {}')
    said = flic_here("check", file)
    assert said.code == 1
    for expected in [
        "federation.toml, [fit]:",
        "repeats: got 1; expected 2 or more",
        "fold: unknown key; expected one of seed, repeats",
        "network.embeding: unknown key; expected one of training",
        "problems: 1;",
    ]:
        assert expected in said.err


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ('metric = "r2"', "metric is 'r2', and the task is classification; expected one of"),
        ("meta_classes = [0, 1, 5]", "meta_classes: got [0, 1, 5]; expected meta-classes 0, 1, …"),
        ("meta_classes = 0", "meta_classes: got 0; expected how many meta-classes to find, at"),
        ("folds = 99", "folds is 99, and client 'north' has 45 training rows; expected a row"),
        ("test_share = 0.01", "test_share is 0.01, which holds out no row of client 'north'"),
        ("meta_classes = 3", "anchors.meta_classes is 3 on data with 2 classes; expected at most"),
        (
            "network.training.participation = 0.1",
            "training.participation = 0.1 of 3 clients rounds to no client; expected at least",
        ),
        (
            "network = { embedding = { latent_dim = 1 }, anchors = { layout = 'equidistant' } }",
            "anchors.layout is 'equidistant' with 2 classes in a latent space of 1 dimension;",
        ),
        ('candidates = ["svm"]', "candidates: got 'svm'; expected some of network, lda"),
        ('candidates = ["flic"]', "none of which stays alone in a classification; expected at"),
    ],
)
def test_flic_check_refuses_what_a_fit_refuses(flic_here, federation, settings, expected):
    file = federation(f"[fit]\n{settings}")
    said = flic_here("check", file, "--format", "json")
    assert said.code == 1
    [problem] = json.loads(said.out)["problems"]
    assert expected in problem
    fitting = flic_here("fit", file, "--out", "fitted")
    assert fitting.code == 2
    assert expected in fitting.err
    assert "splits" not in fitting.out  # nothing was begun
