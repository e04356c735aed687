#!/usr/bin/env python3
"""Forty silos that read digits in eight feature spaces, as CSV files and a federation.toml.

Usage: scripts/digit_silos.py DIR [SEED]

Five silos in each space: six descriptions of the same scanned digits (Multiple Features), optical
digits and pen digits. A silo has 40 rows, eight of each of five digits; no two share a row.
"""

import csv
import sys
from pathlib import Path

import numpy as np

from flic_paper.problems.store import load_arrays

SILOS, DIGITS, ROWS = 5, 5, 8  # silos of a space, digits of a silo, rows of a digit


def spaces() -> dict[str, tuple[np.ndarray, np.ndarray, int]]:
    """Rows and labels of each space, and which collection of digits they describe."""
    views, pair = load_arrays("mfeat"), load_arrays("digits_optical_pen")
    names = ("fou", "fac", "kar", "pix", "zer", "mor")
    found = {name: (views[name], views["y"], 0) for name in names}
    found["optical"] = (pair["x_optdigits"], pair["y_optdigits"], 1)
    found["pen"] = (pair["x_penbased"], pair["y_penbased"], 2)
    return found


def write(folder: Path, seed: int) -> None:
    """A CSV file per silo, and the federation of them."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    unused: dict[tuple[int, int], list[int]] = {}
    description = 'label = "digit"\n\n'
    for space, (x, y, collection) in spaces().items():
        y = y.ravel()
        for number in range(SILOS):
            chosen: list[int] = []
            for digit in rng.choice(10, DIGITS, replace=False):
                left = unused.setdefault(
                    (collection, digit), rng.permutation(np.flatnonzero(y == digit)).tolist()
                )
                chosen += [left.pop() for _ in range(ROWS)]
            name = f"{space}-{number + 1}"
            with (folder / f"{name}.csv").open("w", newline="") as file:
                writer = csv.writer(file)
                writer.writerow([*(f"{space}{i}" for i in range(x.shape[1])), "digit"])
                writer.writerows([*map(float, x[row]), int(y[row])] for row in chosen)
            description += f'[[clients]]\nname = "{name}"\ndata = "{name}.csv"\n\n'
    (folder / "federation.toml").write_text(description.rstrip() + "\n")
    print(f"{SILOS * len(spaces())} silos: {folder}")


def main() -> int:
    """The command."""
    arguments = sys.argv[1:]
    if not 1 <= len(arguments) <= 2 or arguments[0] in ("-h", "--help"):
        print(__doc__)
        return 0 if arguments[:1] in (["-h"], ["--help"]) else 2
    write(Path(arguments[0]), int(arguments[1]) if len(arguments) == 2 else 0)
    return 0


if __name__ == "__main__":
    sys.exit(main())
