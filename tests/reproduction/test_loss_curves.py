"""Figures of the loss curves, by hand."""

import pytest

from flic.method_settings import TrainingConfig
from flic_paper.studies.loss_curves import _figures, _means

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
