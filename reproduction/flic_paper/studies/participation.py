"""Accuracy against the share of clients in a round, at the last round and the best one."""

from typing import ClassVar

from flic_paper.arms import LOCAL, Arm, Changes
from flic_paper.sweeps import SweepStudy, along

_RATES = (0.1, 0.2, 0.4, 0.8)


class Participation(SweepStudy):
    """FLIC-Class, and Local with the same budget."""

    name = "participation"
    title = "Participation: accuracy against the share of clients active in a round"
    paper = "fig:participation"
    setting = "participation"
    in_words = (
        "its text says that the last round gets worse with participation on the toys and not on "
        "TextCaps, and that the best round is stable on all."
    )
    measures = ("last", "best")
    arms = (Arm("flic-class", "flic-class"), LOCAL)
    federations = along(
        _RATES,
        lambda rate: {"training": {"participation": rate}, "evaluation": {"every": 5}},
        seeds=3,
    )
    quick: ClassVar[Changes] = {
        "data": {"num_clients": 20, "train_rows_per_class": 50, "test_rows_per_class": 50},
        "training": {"rounds": 4, "local": "2 epochs"},
        "pretraining": {"epochs": 1},
        "evaluation": {"every": 1},
    }


STUDY = Participation()
