"""MNIST and USPS as the authors' program deals them out, trains on them and scores them.

Images are shared between clients, test rows repeat, and the score weighs clients by test rows: at
b = 200 five sixths of the weight lie on MNIST, at b = 100 nine tenths on USPS. The arms of
200×5 beyond the paper's take one habit of the program away each.
"""

from typing import ClassVar

from flic.settings import merge
from flic_paper.arms import Arm, Changes
from flic_paper.federations import FederationStudy, StudiedFederation
from flic_paper.studies.table_digits import A_PART, COLUMNS, PAPER, QUICK

_PROGRAM: Changes = {
    "preset": "authors",
    "embedding": {"dropout": 0.5, "drops": "channels"},
    "model": {"predict_among": "all"},
}
_LOCAL: Changes = merge(
    _PROGRAM,
    {
        "training": {"baseline_budget": "rounds", "model_weight_decay": 1e-4},
        "embedding": {"latent_dim": 100, "activation": "leaky-relu"},
        "model": {"hidden_layer": False},
    },
)
_NO_DROPOUT: Changes = {"embedding": {"dropout": 0.0}}
_NO_DECAY: Changes = {"training": {"model_weight_decay": 0.0}}
_NO_HIDDEN: Changes = {"model": {"hidden_layer": False}}
_OWN_NETWORK: Changes = {"embedding": {"latent_dim": 64, "activation": "none"}}

_ARMS = [
    Arm("local-rounds", "local", _LOCAL, "local-rounds"),
    Arm("fedhenn", "fedhenn", _LOCAL, "local-rounds"),
    Arm("flic-class", "flic-class-authors", _PROGRAM, "local-rounds"),
    Arm("flic-hl", "flic-hl-authors", _PROGRAM, "local-rounds"),
]
_MORE = [
    Arm("local-no-dropout", "local", merge(_LOCAL, _NO_DROPOUT), "local-rounds"),
    Arm("local-no-decay", "local", merge(_LOCAL, _NO_DECAY), "local-rounds"),
    Arm("local-flic-network", "local", merge(_LOCAL, _OWN_NETWORK), "local-rounds"),
    Arm("local-equal-budget", "local", merge(_PROGRAM, _NO_HIDDEN), "local-rounds"),
    Arm(
        "flic-class-no-dropout", "flic-class-authors", merge(_PROGRAM, _NO_DROPOUT), "local-rounds"
    ),
    Arm(
        "permuted-anchors", "permuted-anchors-authors", merge(_PROGRAM, _NO_HIDDEN), "local-rounds"
    ),
    Arm("within-space", "within-space", _PROGRAM, "local-rounds"),
    Arm("linked", "linked", {}, "local-rounds"),
]


class DigitsAuthors(FederationStudy):
    """The four rows of the paper's table on the federation of the authors' program."""

    name = "digits-authors"
    title = "Digits as the authors' program has them, a fifth of clients × classes per client"
    paper = "table:performance"
    arms: ClassVar = [*_ARMS, *_MORE]
    quick_arms = ("local-rounds", "flic-class")
    spaces = ("mnist", "usps")
    federations = tuple(
        StudiedFederation(
            name,
            f"digits-{name}",
            3,
            {
                "data": {"partition": "authors", "taken": int(name[:3]) // A_PART},
                "evaluation": {"validation_share": 0.0},
            },
            dict(zip(COLUMNS, PAPER[name], strict=True)),
            () if name == "200x5" else COLUMNS,
        )
        for name in ("200x5", "100x3", "200x3", "100x5")
    )
    # Every class of a client has fifty shards of two rows.
    quick: ClassVar[Changes] = merge(
        QUICK, {"data": {"train_rows_per_class": 6, "test_rows_per_class": 6}}
    )


STUDY = DigitsAuthors()
