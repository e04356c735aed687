"""MNIST and USPS: the upper half of the paper's table, beside honest baselines."""

from typing import ClassVar

from flic_paper.arms import ALL, Changes
from flic_paper.federations import Federation, FederationStudy

_PAPER = ("local-rounds", "fedhenn", "flic-class", "flic-hl")


def _federation(name: str, seeds: int, *figures: float) -> Federation:
    paper: dict[str, float] = dict(zip(_PAPER, figures, strict=True))
    return Federation(name, f"digits-{name}", seeds, paper=paper)


class TableDigits(FederationStudy):
    """Digits at 28×28 and 16×16 pixels, the paper's CNN."""

    name = "table-digits"
    title = "Digits: MNIST and USPS clients, clients × classes per client"
    paper = "table:performance"
    arms = ALL
    federations = (
        _federation("200x5", 3, 86.50, 87.22, 90.66, 90.63),
        _federation("100x3", 1, 97.49, 97.45, 97.83, 97.70),
        _federation("100x5", 1, 96.16, 96.15, 96.46, 96.31),
        _federation("200x3", 1, 93.33, 93.40, 94.50, 94.51),
    )
    quick: ClassVar[Changes] = {
        "data": {"num_clients": 6, "train_rows_per_class": 40, "test_rows_per_class": 20},
        "training": {"rounds": 2, "local": "2 epochs", "participation": 0.5},
        "pretraining": {"epochs": 2},
        "evaluation": {"every": 1},
    }


STUDY = TableDigits()
