"""MNIST and USPS with every image at one client: the paper's table, made honestly."""

from typing import ClassVar

from flic_paper.arms import ALL, Changes
from flic_paper.federations import FederationStudy, StudiedFederation

PAPER = {  # table:performance, as printed
    "100x3": (97.49, 97.45, 97.83, 97.70),
    "100x5": (96.16, 96.15, 96.46, 96.31),
    "200x3": (93.33, 93.40, 94.50, 94.51),
    "200x5": (86.50, 87.22, 90.66, 90.63),
}
A_PART = 5  # a fifth of the clients is trained: with all of them, a table takes days on two cores
COLUMNS = ("local-rounds", "fedhenn", "flic-class", "flic-hl")

# A USPS client of 75 rows would take one step an epoch, and learn little in ten.
STEPS = 5

QUICK: Changes = {
    "data": {
        "num_clients": 4,
        "taken": None,
        "train_rows_per_class": 40,
        "test_rows_per_class": 20,
    },
    "training": {"rounds": 2, "local": "1 epoch", "participation": 0.5},
    "pretraining": {"epochs": 1},
    "evaluation": {"every": 1},
}


class TableDigits(FederationStudy):
    """Digits at 28×28 and 16×16 pixels, the paper's CNN, no image at two clients."""

    name = "table-digits"
    title = "Digits, each image at one client, a fifth of clients × classes per client"
    paper = "table:performance"
    arms: ClassVar = [
        arm
        for arm in ALL
        if arm.name in (*COLUMNS, "local", "permuted-anchors", "within-space", "linked", "lda")
    ]
    spaces = ("mnist", "usps")
    federations = tuple(
        StudiedFederation(
            name,
            f"digits-{name}",
            3,
            {
                "data": {"taken": int(name[:3]) // A_PART},
                "training": {"min_steps_per_epoch": STEPS},
            },
            dict(zip(COLUMNS, PAPER[name], strict=True)),
        )
        for name in ("200x5", "100x3")
    )
    quick: ClassVar[Changes] = QUICK


STUDY = TableDigits()
