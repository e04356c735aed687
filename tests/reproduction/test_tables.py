"""The paper's figures stand beside the arms and federations they belong to."""

import pytest

from flic_paper.arms import configure
from flic_paper.pages import markdown
from flic_paper.studies import STUDIES
from flic_paper.study import Scope, Table, listed

# table:performance, as printed: Local, FedHeNN, FLIC-Class, FLIC-HL.
PRINTED = {
    "table-digits": {
        "100x3": (97.49, 97.45, 97.83, 97.70),
        "200x5": (86.50, 87.22, 90.66, 90.63),
    },
    "digits-authors": {
        "100x3": (97.49, 97.45, 97.83, 97.70),
        "100x5": (96.16, 96.15, 96.46, 96.31),
        "200x3": (93.33, 93.40, 94.50, 94.51),
        "200x5": (86.50, 87.22, 90.66, 90.63),
    },
    "table-modalities": {
        "100x2": (84.19, 83.99, 89.14, 89.68),
        "100x3": (76.04, 75.39, 81.27, 81.50),
        "200x2": (83.78, 83.89, 87.73, 87.74),
        "200x3": (74.95, 74.77, 79.08, 78.49),
    },
}


@pytest.mark.parametrize("name", PRINTED)
def test_the_papers_figures_are_the_printed_ones(name):
    arms = ("local-rounds", "fedhenn", "flic-class", "flic-hl")
    reported = [f for f in STUDIES[name].federations if f.paper]
    found = {f.name: tuple(f.paper[arm] for arm in arms) for f in reported}
    assert found == PRINTED[name]


@pytest.mark.parametrize("name", PRINTED)
def test_every_row_has_the_size_of_its_name(name):
    for federation in STUDIES[name].federations:
        config = configure(federation.experiment, STUDIES[name].arms[0], 0)
        data = config.data
        assert federation.name.endswith(f"{data.num_clients}x{data.classes_per_client}")
        assert (config.training.rounds, config.training.participation) == (50, 0.1)
        assert (config.training.local.epochs, config.pretraining.epochs) == (10, 100)


def test_gains_are_over_the_reference_of_each_arm():
    study = STUDIES["views"]
    scores = {"local": 0.5, "flic-class": 0.6, "local@authors": 0.8, "flic-class@authors": 0.7}
    results = {f"views/{arm}/seed0": _run(score) for arm, score in scores.items()}
    [table] = study.tables(results, Scope(seeds=(0,)))
    gains = {row[1]: row[list(table.columns).index("gain over local")] for row in table.rows}
    assert gains == {
        "local": None,
        "flic-class": 10.0,
        "local@authors": None,
        "flic-class@authors": -10.0,
    }


def test_a_row_names_its_seeds_and_the_seconds_of_a_run():
    study = STUDIES["table-digits"]
    results = {f"200x5/local/seed{seed}": _run(0.5) for seed in (0, 1, 2)}
    results["200x5/lda/seed7"] = {**_run(0.5), "seconds": 4.0}
    [table] = study.tables(results, Scope(seeds=(0, 1, 2, 7)))
    columns = [list(table.columns).index(name) for name in ("which seeds", "wall s", "CPU s")]
    assert [[row[i] for i in columns] for row in table.rows] == [["0-2", 1.0, 1.0], ["7", 4.0, 1.0]]


@pytest.mark.parametrize(
    ("seeds", "text"), [([3], "3"), ([1, 0], "0, 1"), ([0, 1, 2], "0-2"), ([0, 1, 3], "0, 1, 3")]
)
def test_seeds_are_listed_as_people_write_them(seeds, text):
    assert listed(seeds) == text


def test_bars_in_headings_and_fields_do_not_end_a_field():
    table = Table("name", "title", ["test |y|", "n"], [["|a", 1]])
    assert markdown(table).splitlines() == [
        r"| test \|y\| | n |",
        "| --- | --- |",
        r"| \|a | 1 |",
    ]


def test_the_latent_space_has_a_legend():
    [legend] = STUDIES["tsne"].figures({}, Scope())["tsne"].legends
    named = [text.get_text() for text in legend.get_texts()]
    assert named == [
        *(f"class {c}" for c in range(5)),
        *(f"client {i}" for i in range(3)),
        "anchor",
    ]


def _run(score):
    scores = {"round": 1, "clients": {"a": score, "b": score}, "weights": {"a": 1, "b": 1}}
    searched = {"chosen": scores}
    timings = {"seconds": 1.0, "cpu_seconds": 1.0, "bytes_sent": 0, "ceiling": None}
    return {"last": scores, "chosen": scores, "searched": searched, **timings}


def test_digits_have_the_mean_of_each_feature_space_and_of_all_rows():
    study = STUDIES["digits-authors"]
    clients = {"mnist-000": 0.8, "usps-001": 0.6, "mnist-002": 0.9, "usps-003": 0.5}
    weights = {"mnist-000": 10, "usps-001": 1, "mnist-002": 10, "usps-003": 1}
    scores = {"round": 1, "clients": clients, "weights": weights}
    cell = {**_run(0.5), "last": scores, "searched": {"chosen": scores}}
    [table] = study.tables({"200x5/local-rounds/seed0": cell}, Scope(seeds=(0,)))
    [row] = table.rows
    found = dict(zip(table.columns, row, strict=True))
    assert found["last round %"] == 70.0
    assert found["weighted %"] == pytest.approx(100 * 18.1 / 22, abs=0.01)
    assert (found["mnist %"], found["usps %"]) == (85.0, 55.0)


def test_the_authors_digits_are_dealt_trained_and_scored_as_by_their_program():
    study = STUDIES["digits-authors"]
    federation = study.federations[0]
    configs = {
        arm.name: configure(federation.experiment, arm, 0, federation.changes) for arm in study.arms
    }
    for name, config in configs.items():
        assert config.data.partition == "authors"
        assert config.evaluation.validation_share == 0
        if name != "linked":
            assert config.model.predict_among == "all"
            assert config.embedding.drops == "channels"
            assert config.embedding.dropout == (0.0 if "no-dropout" in name else 0.5)
    local = configs["local-rounds"]
    assert (local.embedding.latent_dim, local.embedding.activation) == (100, "leaky-relu")
    assert local.training.model_weight_decay == 1e-4
    assert configs["flic-class"].embedding.latent_dim == 64
    assert configs["local-equal-budget"].training.baseline_budget != "rounds"
