"""Ten digits in eight feature spaces: real heterogeneity beyond the paper."""

from typing import ClassVar

from flic_paper.arms import ALL, IN_BRIEF, Changes
from flic_paper.federations import FederationStudy, StudiedFederation


class Views(FederationStudy):
    """Six views of the mfeat digits, scanned digits and pen strokes."""

    name = "views"
    title = "Eight feature spaces: mfeat's six views, optical and pen digits"
    paper = "not in the paper"
    arms = ALL
    on_page = (*IN_BRIEF, "within-space", "fedavg", "linked")
    searches = True
    federations = (StudiedFederation("views", "views", 3),)
    quick: ClassVar[Changes] = {
        "data": {"num_clients": 8},
        "training": {"rounds": 2, "local": "2 epochs"},
        "pretraining": {"epochs": 2},
        "evaluation": {"every": 1},
    }


STUDY = Views()
