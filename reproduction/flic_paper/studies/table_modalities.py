"""Two modalities: the settings of the paper's TextCaps rows on fashion products.

TextCaps itself cannot be redistributed; experiments/modalities-textcaps.toml runs on it.
"""

from typing import ClassVar

from flic_paper.arms import ALL, Changes
from flic_paper.federations import FederationStudy, StudiedFederation

_PAPER = ("local-rounds", "fedhenn", "flic-class", "flic-hl")
_STRONG = ("local", "lda", "within-space", "fedavg", "linked", "permuted-anchors")


def _federation(name: str, seeds: int, *figures: float) -> StudiedFederation:
    paper: dict[str, float] = dict(zip(_PAPER, figures, strict=True))
    return StudiedFederation(name, f"modalities-{name}", seeds, paper=paper)


class TableModalities(FederationStudy):
    """Image or text vectors of the same products."""

    name = "table-modalities"
    title = "Two modalities: fashion products by season (the paper's figures: TextCaps)"
    paper = "table:performance"
    arms: ClassVar = [arm for arm in ALL if arm.name in (*_PAPER, *_STRONG)]
    reported = "paper, on TextCaps %"
    federations = (
        _federation("100x2", 3, 84.19, 83.99, 89.14, 89.68),
        _federation("100x3", 3, 76.04, 75.39, 81.27, 81.50),
        _federation("200x2", 1, 83.78, 83.89, 87.73, 87.74),
        _federation("200x3", 1, 74.95, 74.77, 79.08, 78.49),
    )
    quick: ClassVar[Changes] = {
        "data": {"num_clients": 6},
        "training": {"rounds": 2, "local": "1 epoch", "participation": 0.5},
        "pretraining": {"epochs": 1},
        "evaluation": {"every": 1},
    }


STUDY = TableModalities()
