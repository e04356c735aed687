"""The toy problems against the number of clients."""

from typing import ClassVar

from flic_paper.arms import HONEST, PAPER, Changes
from flic_paper.federations import StudiedFederation
from flic_paper.sweeps import SweepStudy

_CLIENTS = (50, 100, 200)
_STRONG = ("local", "lda", "permuted-anchors")


class Toy(SweepStudy):
    """Both toys, three classes per client, with the text's 10 local epochs."""

    name = "toy"
    title = "Toy problems: accuracy against the number of clients"
    paper = "fig:toyperf"
    setting = "clients"
    in_words = (
        "its text says that FLIC is about 3 points above FedHeNN on noisy features, and about 4 "
        "above the others on linear mapping, less with more clients."
    )
    arms = (*PAPER, *[arm for arm in HONEST if arm.name in _STRONG])
    federations = tuple(
        StudiedFederation(
            f"{problem}/{number}",
            f"toy-{problem}",
            5,
            {"data": {"num_clients": number}, "evaluation": {"every": 10}},
        )
        for problem in ("noisy-features", "linear-mapping")
        for number in _CLIENTS
    )
    quick: ClassVar[Changes] = {
        "data": {"train_rows_per_class": 400, "test_rows_per_class": 200},
        "training": {"rounds": 2, "local": "2 epochs"},
        "pretraining": {"epochs": 1},
    }


STUDY = Toy()
