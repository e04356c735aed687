"""Accuracy against the epochs of pre-training, with φ updated in the rounds or frozen."""

from typing import ClassVar

from flic_paper.arms import Arm, Changes
from flic_paper.sweeps import SweepStudy, along

_EPOCHS = (1, 5, 10, 20, 50, 100, 200)


class Pretraining(SweepStudy):
    """FLIC-Class after 1 to 200 epochs of pre-training, φ updated or frozen."""

    name = "pretraining"
    title = "Pre-training: accuracy against its epochs, φ updated in rounds or frozen"
    paper = "fig:pretraining"
    setting = "epochs of pre-training"
    in_words = (
        "its text says that more epochs help up to a point, and that 10 to 50 are enough on linear "
        "mapping."
    )
    is_logarithmic = True
    quick_arms = ("updated", "frozen")
    arms = (
        Arm("updated", "flic-class"),
        Arm("frozen", "flic-class", {"embedding": {"frozen": True}}),
    )
    federations = along(
        _EPOCHS,
        lambda epochs: {"pretraining": {"epochs": epochs}, "evaluation": {"every": 10}},
        seeds=3,
    )
    quick: ClassVar[Changes] = {
        "data": {"num_clients": 20, "train_rows_per_class": 50, "test_rows_per_class": 50},
        "training": {"rounds": 2, "local": "2 epochs"},
    }


STUDY = Pretraining()
