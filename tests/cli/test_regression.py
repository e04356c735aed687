"""`flic run` and `flic compare` on real responses."""

import json

import pyarrow.parquet as pq
import pytest

TINY = """
method = "flic-hl"

[data]
problem = "made-regression"
num_clients = 6
test_rows = 20

[training]
rounds = 2
participation = 0.5
local = "2 epochs"
batch_size = 8

[embedding]
latent_dim = 8
hidden = [8]

[alignment]
anchor_samples = 5

[pretraining]
epochs = 1
"""


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "responses.toml"
    path.write_text(TINY)
    return path


def test_a_run_tells_r2_and_errors(flic_here, config, tmp_path):
    said = flic_here("run", config, "--out", "run")
    assert said.code == 0, said.err
    assert "test R²" in said.out
    assert "accuracy" not in said.out + said.err
    assert {"RMSE", "MAE"} <= set(said.out.split())
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert summary["last_round"].keys() == {"round", "mean", "worst", "weighted", "rmse", "mae"}
    rounds = json.loads((tmp_path / "run/rounds.json").read_text())
    assert {"test_r2", "validation_r2"} <= rounds[-1].keys()
    assert rounds[-1]["test_r2"] == summary["last_round"]["mean"]
    table = pq.read_table(tmp_path / "run/clients.parquet").to_pylist()
    last = [row for row in table if row["round"] == 3]
    r2 = [1 - row["test_squared_error"] / row["test_spread"] for row in last]
    assert sum(r2) / len(r2) == pytest.approx(summary["last_round"]["mean"])


@pytest.mark.process
def test_workers_change_roundings_and_resumption_no_bit(flic_here, config, tmp_path, nearly):
    double = ["--set", "engine.dtype=float64", "--quiet"]
    flic_here("run", config, "--out", "one", *double)
    flic_here("run", config, "--out", "two", *double, "--workers", "2")
    tables = [pq.read_table(tmp_path / n / "clients.parquet").to_pylist() for n in ("one", "two")]
    assert tables[0] == nearly(tables[1])
    files = ("rounds.json", "clients.parquet", "summary.json")
    before = [(tmp_path / "one" / name).read_bytes() for name in files]
    for path in sorted((tmp_path / "one/checkpoints").glob("00003*")):  # as if killed before it
        path.unlink()
    assert flic_here("run", "--resume", "one", "--quiet").code == 0
    assert before == [(tmp_path / "one" / name).read_bytes() for name in files]


@pytest.mark.slow
@pytest.mark.parametrize("problem", ["made-regression", "diabetes"])
def test_a_comparison(flic_here, config, problem, tmp_path):
    if problem == "diabetes":
        made = 'problem = "made-regression"\nnum_clients = 6\ntest_rows = 20\n'
        config.write_text(TINY.replace(made, 'problem = "diabetes"\n'))
    methods = "local,ridge,boosting,flic-class,permuted-anchors,within-space"
    said = flic_here("compare", config, "--methods", methods, "--out", "all", "--quiet")
    assert said.code == 0, said.err
    assert f"Test R², {problem}, 1 seed" in said.out
    assert ("Bayes R², the ceiling" in said.out) == (problem == "made-regression")
    rows = json.loads((tmp_path / "all/comparison.json").read_text())
    assert [row["method"] for row in rows] == methods.split(",")
    ridge = rows[1]
    assert ridge["gain"] == pytest.approx(ridge["mean"] - rows[0]["mean"])


def test_a_method_for_the_other_task_is_refused_before_any_run_starts(flic_here, config, tmp_path):
    said = flic_here("compare", config, "--methods", "local,lda", "--out", "all")
    assert said.code == 2
    assert "method is 'lda', which does classification; these data ask for regression" in said.err
    assert not (tmp_path / "all").exists()


def test_ridge_refuses_classes(flic_here, config, tmp_path):
    config.write_text('method = "ridge"\n\n[data]\nproblem = "noisy-features"\n')
    said = flic_here("run", config, "--out", "run")
    assert said.code == 2
    assert "method is 'ridge', which does regression" in said.err
    assert not (tmp_path / "run").exists()


def test_the_authors_preset_is_refused(flic_here, config):
    said = flic_here("run", config, "--set", "preset=authors")
    assert said.code == 2
    assert "alignment.target is 'samples' on data with real responses" in said.err
