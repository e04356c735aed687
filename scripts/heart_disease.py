#!/usr/bin/env python3
"""Four hospitals that record different columns, as four CSV files and a federation.toml.

Usage: scripts/heart_disease.py DIR

The UCI Heart Disease data (Janosi, Steinbrunn, Pfisterer, Detrano). They are taken from the folder
that FLIC_DATA names, or else fetched from the UCI repository.
"""

import csv
import io
import os
import sys
import urllib.request
import zipfile
from pathlib import Path

SOURCE = "https://archive.ics.uci.edu/static/public/45/heart+disease.zip"
SITES = ("cleveland", "hungarian", "switzerland", "va")
COLUMNS = (
    *("age", "sex", "cp", "trestbps", "chol", "fbs", "restecg"),
    *("thalach", "exang", "oldpeak", "slope", "ca", "thal", "num"),
)

FEDERATION = """\
# Does joining help a hospital? Four of them, each with the columns it records.
label = "num"
labels = { healthy = [0], disease = [1, 2, 3, 4] }
categories = ["sex", "cp", "fbs", "restecg", "exang", "slope", "thal"]
missing = { chol = [0] }  # not measured

"""


def rows_of_site(archive: zipfile.ZipFile, site: str) -> list[list[str]]:
    """Rows of one hospital in the original's form, "?" where missing."""
    text = archive.read(f"processed.{site}.data").decode("latin-1")
    return [row for row in csv.reader(io.StringIO(text)) if row]


def from_uci() -> dict[str, list[list[str]]]:
    """Rows of all hospitals from the repository."""
    with urllib.request.urlopen(SOURCE, timeout=60) as answer:
        archive = zipfile.ZipFile(io.BytesIO(answer.read()))
    return {site: rows_of_site(archive, site) for site in SITES}


def from_folder(folder: Path) -> dict[str, list[list[str]]]:
    """Rows of all hospitals from one file with a site column."""
    found: dict[str, list[list[str]]] = {site: [] for site in SITES}
    with (folder / "heart_disease" / "heart_disease_4sites.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            found[row["site"]].append([row[column] for column in COLUMNS])
    return found


def without_empty_columns(rows: list[list[str]]) -> tuple[list[str], list[list[str]]]:
    """Columns that a hospital records for at least half of its patients."""
    kept = [
        place
        for place in range(len(COLUMNS))
        if sum(row[place] in ("", "?") for row in rows) <= len(rows) / 2
    ]
    return [COLUMNS[p] for p in kept], [[row[p] for p in kept] for row in rows]


def write(folder: Path, sites: dict[str, list[list[str]]]) -> None:
    """One CSV file per hospital, and the federation of them."""
    folder.mkdir(parents=True, exist_ok=True)
    description = FEDERATION
    for site, rows in sites.items():
        columns, kept = without_empty_columns(rows)
        with (folder / f"{site}.csv").open("w", newline="") as file:
            csv.writer(file).writerows([columns, *kept])
        description += f'[[clients]]\nname = "{site}"\ndata = "{site}.csv"\n\n'
        print(f"{site}: {len(rows)} rows, {len(columns) - 1} columns")
    (folder / "federation.toml").write_text(description.rstrip() + "\n")


def main() -> int:
    """The command."""
    if len(sys.argv) != 2 or sys.argv[1] in ("-h", "--help"):
        print(__doc__)
        return 0 if "-h" in sys.argv[1:] or "--help" in sys.argv[1:] else 2
    given = os.environ.get("FLIC_DATA")
    try:
        sites = from_folder(Path(given)) if given else from_uci()
    except OSError as error:
        todo = "Check the network, or set FLIC_DATA to a folder with them (docs/data.md)."
        print(f"The data could not be had: {error}. {todo}", file=sys.stderr)
        return 1
    write(Path(sys.argv[1]), sites)
    return 0


if __name__ == "__main__":
    sys.exit(main())
