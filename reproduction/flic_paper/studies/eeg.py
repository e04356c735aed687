"""Motor imagery of forty people: the authors' published EEG file."""

from typing import ClassVar

from flic_paper.arms import ALL, IN_BRIEF, Changes
from flic_paper.federations import FederationStudy, StudiedFederation


class Eeg(FederationStudy):
    """Forty users with six features each."""

    name = "eeg"
    title = "EEG: forty users, three imagined movements"
    paper = "not in the paper; the authors' program"
    arms = ALL
    on_page = (
        *IN_BRIEF,
        *(f"{arm}@recommended" for arm in ("local", "flic-class", "flic-hl", "permuted-anchors")),
    )
    searches = True
    reported = "authors' program %"
    clients_repeat = True  # the file has one split into training and test trials
    # From the authors' program, one seed, at its own settings.
    federations = (
        StudiedFederation(
            "eeg",
            "eeg",
            3,
            paper={"local-rounds": 72.0, "fedhenn": 71.5, "flic-class": 72.6, "flic-hl": 72.2},
        ),
    )
    quick: ClassVar[Changes] = {
        "training": {"rounds": 2, "local": "2 epochs"},
        "pretraining": {"epochs": 2},
        "evaluation": {"every": 1},
    }


STUDY = Eeg()
