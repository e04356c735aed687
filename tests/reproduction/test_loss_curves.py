"""Figures of the loss curves, by hand; losses are kept, tabled and drawn unrounded."""

import json
from pathlib import Path

import numpy as np
import pytest

from flic.config import resolve
from flic.method_settings import TrainingConfig
from flic_paper.studies.loss_curves import _SITUATIONS, STUDY, _figures, _key, _means, _trace
from flic_paper.study import CellContext, Scope

# Data loss and whole loss of each epoch. The shared part trains in the last two of four epochs,
# from round 3 on: the drop from 5 to 2 is where it starts.
CLIENT = {
    "rounds": [1, 4],
    "epochs": [
        [[9.0, 10.0], [8.0, 9.0], [4.0, 5.0], [4.0, 5.0]],
        [[7.0, 8.0], [5.0, 6.0], [2.0, 3.0], [1.0, 1.5]],
    ],
}


def training(shared: str) -> TrainingConfig:
    return TrainingConfig.model_validate(
        {"local": "4 epochs", "shared": shared, "shared_from_round": 2}
    )


def test_drops_are_those_of_rounds_that_train_the_shared_part():
    found = _figures(CLIENT, training("2 epochs"))
    assert found == pytest.approx([9.0, 1.0, 1.5, 3.0, 3.0, 1.5])


def test_without_a_shared_part_there_is_no_drop_to_speak_of():
    assert _means([CLIENT, CLIENT], training("0 epochs")) == [9.0, 1.0, 1.5, 3.0, None, None]


# Of the last epochs of a long run, where six decimals would leave one digit or none.
TINY = {
    "rounds": [1, 4],
    "epochs": [
        [[3.0000001, 3.5], [1.23456789e-4, 0.1]],
        [[2.3456789e-7, 0.12], [3.456789e-8, 0.117]],
    ],
}


@pytest.mark.parametrize(("situation", "column"), [("classifier alone", 0), ("everything", 1)])
def test_every_loss_is_drawn_as_it_was_kept(situation, column):
    kept = json.loads(json.dumps({"one": TINY}))
    figure = STUDY.figures({_key(situation, 0): kept}, Scope(seeds=(0,)))["loss-curves"]
    axes = figure.axes[list(_SITUATIONS).index(situation)]
    [line] = axes.lines
    assert axes.get_yscale() == "log"
    assert list(line.get_ydata()) == [e[column] for visit in TINY["epochs"] for e in visit]
    assert axes.get_ylim()[0] < min(line.get_ydata())


def test_the_table_has_means_of_unrounded_losses():
    clients = {"one": TINY, "two": TINY, "three": TINY}
    [table] = STUDY.tables({_key("classifier alone", 0): clients}, Scope(seeds=(0,)))
    [row] = table.rows
    assert row[2:4] == pytest.approx([3.0000001, 3.456789e-8], rel=1e-12)


def test_a_loss_is_kept_as_training_had_it(tmp_path):
    """An epoch of one step keeps that step's loss: each is a number of single precision."""
    config = resolve(
        {
            "method": "flic-hl",
            "data": {"problem": "linear-mapping", "num_clients": 4, "train_rows_per_class": 20},
            "training": {
                "rounds": 2,
                "participation": 1.0,
                "local": "2 epochs",
                "batch_size": 1000,
            },
            "pretraining": {"epochs": 1},
        }
    )
    clients = _trace(config, CellContext(Path(tmp_path), lambda line: None))
    losses = [e[0] for client in clients.values() for visit in client["epochs"] for e in visit]
    assert len(losses) >= 12
    assert [float(np.float32(loss)) for loss in losses] == losses
    assert all(round(loss, 6) != loss for loss in losses)
