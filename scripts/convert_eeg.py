#!/usr/bin/env python3
"""The authors' file of EEG features, rewritten as plain arrays that flic reads.

Usage: scripts/convert_eeg.py SOURCE [DEST]

SOURCE is their bci_users40_5c_common.npz. It holds pickled Python objects, and unpickling runs
whatever a file says: convert only a file you trust. DEST is a folder of data sets such as
FLIC_DATA names; without it, the cache is meant.
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from flic_paper.problems.store import cache_folder, save_arrays


def flatten(users: Mapping[int, Sequence[np.ndarray]], meta: Mapping[int, Mapping[str, object]]):
    """Arrays with a row per trial, and the collection of every user."""
    parts: dict[str, list[np.ndarray]] = {"x": [], "y": [], "user": [], "is_test": []}
    for user in range(len(users)):
        x_train, y_train, x_test, y_test = users[user]
        for x, y, is_test in ((x_train, y_train, False), (x_test, y_test, True)):
            parts["x"].append(np.asarray(x, dtype=np.float64))
            parts["y"].append(np.asarray(y).astype(np.int64))
            parts["user"].append(np.full(len(y), user))
            parts["is_test"].append(np.full(len(y), is_test))
    arrays = {name: np.concatenate(part) for name, part in parts.items()}
    return arrays | {"collection": np.array([str(meta[u]["code"]) for u in range(len(users))])}


def convert(source: Path, folder: Path) -> Path:
    """File below `folder` with the plain arrays of `source`."""
    with np.load(source, allow_pickle=True) as file:
        users, meta = file["user"].item(), file["meta_info"].item()
    return save_arrays("eeg", flatten(users, meta), folder)


def main(arguments: Sequence[str]) -> None:
    """Convert the file that the command line names."""
    if {"-h", "--help"} & set(arguments):
        print(__doc__)
        return
    if len(arguments) not in (1, 2):
        sys.exit(__doc__)
    source = Path(arguments[0])
    if not source.is_file():
        sys.exit(f"{source}: no such file; expected the authors' bci_users40_5c_common.npz.")
    folder = Path(arguments[1]) if len(arguments) == 2 else cache_folder()
    print(f"Wrote {convert(source, folder)}")


if __name__ == "__main__":
    main(sys.argv[1:])
