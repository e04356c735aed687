"""Arms do what their names say, and validation alone chooses among their settings."""

import pytest

from flic.runs.run_folder import simulate
from flic_paper.arms import ALL, LOCAL, Arm, configure
from flic_paper.study import CellContext
from flic_paper.study_runs import outcome_of, searched_cell

ARMS = {arm.name: arm for arm in ALL}
TINY = {
    "data": {"num_clients": 8, "train_rows_per_class": 40, "test_rows_per_class": 20},
    "training": {"rounds": 3, "local": "2 epochs", "participation": 0.5},
    "pretraining": {"epochs": 1},
    "evaluation": {"every": 1},
}


@pytest.mark.parametrize("name", ARMS)
def test_an_arm_has_the_preset_and_the_reference_of_its_name(name):
    arm, config = ARMS[name], configure("toy-noisy-features", ARMS[name], 0)
    suffix = name.partition("@")[2]
    preset = {"": "paper", "shared-head": "recommended"}.get(suffix, suffix)
    assert config.preset == preset
    assert arm.reference == ("local" if preset == "paper" else f"local@{preset}")
    assert ARMS[arm.reference].method == "local"
    assert config.embedding.dropout == (0.2 if preset == "recommended" else 0.0)
    assert config.alignment.realign_epochs == (1 if preset == "authors" else 0)
    assert config.training.personalisation == ("fedavg-ft" if suffix == "shared-head" else "fedrep")
    assert config.training.baseline_budget == ("rounds" if name == "local-rounds" else "equal")
    assert config.training.rounds == 50
    assert config.pretraining.epochs == 100


def test_controls_have_the_network_of_flic_class():
    for name in ("local-rounds", *[n for n in ARMS if n.startswith("permuted")]):
        assert not configure("toy-noisy-features", ARMS[name], 0).model.hidden_layer


@pytest.mark.slow
@pytest.mark.parametrize("arm", [LOCAL, ARMS["logistic"]], ids=lambda arm: arm.name)
def test_settings_and_round_are_those_with_the_best_validation_score(arm: Arm, tmp_path):
    cell = searched_cell("key", "toy-noisy-features", arm, 0, TINY)
    found = cell.work(CellContext(tmp_path, lambda line: None))
    scores = found["searched"]["validation"]
    best = scores.index(max(scores))
    tried = [{}, *[s for s in arm.search if configure_with(s, arm) != configure_with({}, arm)]]
    assert found["searched"]["settings"] == tried[best]
    outcome = simulate(configure_with(tried[best], arm))
    assert outcome_of(found, tuned=True).last.clients == outcome.chosen.clients
    assert (
        outcome_of(found, tuned=False).last.clients
        == simulate(configure_with({}, arm)).last.clients
    )
    assert len(cell.settings) == len(tried) == len(scores)


def configure_with(own, arm: Arm):
    return configure("toy-noisy-features", arm, 0, own, TINY)
