"""Made trials in the form of the EEG data set."""

import numpy as np


def trials(seed):
    """Made trials of two people."""
    rng = np.random.default_rng(seed)
    rows = np.arange(48)
    return {
        "x": rng.normal(size=(48, 6)),
        "y": rows % 2 + rows // 24,
        "user": rows // 24,
        "is_test": rows % 4 < 2,
        "collection": np.array(["first", "second"]),
    }


def changed(what, trials):
    if what == "a value":
        trials["x"][0, 0] += 1e-3
    else:
        trials["y"][0] ^= 1
    return trials
