"""Named bundles of settings; a configuration overrides single keys of them.

`paper`        settings of the text and append:models, for the toy problems
`authors`      settings of the authors' published program (docs/departures.md)
`recommended`  settings that measured best for a FLIC network at equal budget
"""

import math

PRESETS: dict[str, dict[str, dict[str, object]]] = {
    "paper": {
        "training": {"local": "100 epochs"},
    },
    "authors": {
        "training": {
            "local": "100 epochs",
            "shared_schedule": "last",
            "shared_from_round": 21,
            "model_weight_decay": 1e-3,
        },
        "model": {"hidden_dim": 100},
        "anchors": {
            "scale": 10.0,
            "variance": math.e,
            "average_over": "participants",
        },
        "alignment": {"target": "samples", "realign_epochs": 1},
    },
    "recommended": {
        "embedding": {"dropout": 0.2},
        "anchors": {"scale": 3.0},
        "model": {"predict_by": "nearest-anchor"},
    },
}
