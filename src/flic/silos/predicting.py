"""Predictions for files of any length, part by part, in the order of their rows."""

import csv
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd

from flic.data.task import Classification
from flic.errors import ConfigError, DataError
from flic.files import open_with
from flic.notation import quoted
from flic.silos.fitted import FittedClient, Predicted
from flic.silos.measures import figures
from flic.silos.trained_rows import Trained, row_digests
from flic.tables import stream_table
from flic.tables.columns import BadValues, about_bad

CHUNK_ROWS = 20_000
EXAMPLES = 3

Tell = Callable[[str], None]


def predict_file(
    client: FittedClient, source: Path, target: Path, *, tell: Tell, encoding: str = "utf-8"
) -> int:
    """Write predictions of a file's rows, whole or not at all; returns their number."""
    target = target.resolve()
    refuse_target(target)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    count = 0
    try:
        with open_with(temporary, "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(_header(client))
            rows = stream_table(source, chunk_rows=CHUNK_ROWS, encoding=encoding)
            for _, predicted in _parts(client, rows, tell):
                writer.writerows(_rows(predicted))
                count += len(predicted.values)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)
    return count


def refuse_target(target: Path) -> None:
    """Refuse a target that no file can be renamed to: a device, a folder, or in no folder."""
    if target.exists() and not target.is_file():
        raise ConfigError(
            f"--out is {target}, which is not an ordinary file; expected a new file or one to "
            "replace. Choose another."
        )
    if not target.parent.is_dir():
        raise ConfigError(
            f"--out is {target}, and there is no folder {target.parent}; expected one that exists. "
            "Make it, or choose another."
        )


@dataclass(frozen=True)
class Measured:
    """Metrics of a model on labelled rows of a file."""

    rows: int
    figures: Mapping[str, float]
    trained: int = 0  # rows among these that the model was trained on: all or none
    left_out: int = 0  # other rows of the file, left out since it was trained on them


def evaluate_file(
    client: FittedClient,
    source: Path,
    *,
    tell: Tell,
    encoding: str = "utf-8",
) -> Measured:
    """Metrics of the client's predictions for its labelled rows in a file.

    Rows that the model was trained on are left out if there are any others.
    """
    rows = stream_table(source, chunk_rows=CHUNK_ROWS, encoding=encoding)
    left = Counter(client.trained or {})
    scores: list[np.ndarray] = []
    labels: list[np.ndarray] = []
    seen: list[np.ndarray] = []
    for frame, predicted in _parts(client, _own(client, rows), tell):
        y, known = _labels(client, frame, source)
        scores.append(predicted.scores[known])
        labels.append(y)
        seen.append(_known_again(client, frame, known, y, left))
    if not sum(map(len, labels)):
        raise DataError(
            f"{source}: no row of client '{client.name}' has a label in column "
            f"'{client.labelling.column}'; expected at least one. Give rows with known labels."
        )
    y, was_seen = np.concatenate(labels), np.concatenate(seen)
    kept = ~was_seen if not was_seen.all() else was_seen
    found = figures(client.task, np.concatenate(scores)[kept], y[kept])
    rest = int(was_seen.sum() - was_seen[kept].sum())
    return Measured(int(kept.sum()), found, trained=int(was_seen[kept].sum()), left_out=rest)


def _known_again(
    client: FittedClient,
    frame: pd.DataFrame,
    known: np.ndarray,
    y: np.ndarray,
    left: Trained,
) -> np.ndarray:
    """Mark the labelled rows that are in `left`, and take them out of it."""
    found = np.zeros(len(y), bool)
    digests = row_digests(client.encoded(frame)[known], y) if left else []
    for i, digest in enumerate(digests):
        if left[digest] > 0:
            left[digest] -= 1
            found[i] = True
    return found


def _labels(
    client: FittedClient, frame: pd.DataFrame, source: Path
) -> tuple[np.ndarray, np.ndarray]:
    """Labels of the rows that have one; errors name the file and the client."""
    try:
        return client.labelling.read(frame, client.declared)
    except DataError as error:
        raise DataError(f"{source}, client '{client.name}': {error}") from None


def _own(client: FittedClient, frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    """The client's own rows of a file that may hold other sites' rows."""
    for frame in frames:
        is_own = client.labelling.is_own(frame, client.declared)
        if is_own.any():
            yield frame.loc[is_own].reset_index(drop=True)


def _parts(
    client: FittedClient, frames: Iterator[pd.DataFrame], tell: Tell
) -> Iterator[tuple[pd.DataFrame, Predicted]]:
    """Raw and predicted rows, part by part; notes on several parts are given once."""
    told: set[str] = set()
    unseen: dict[str, list[str]] = {}
    bad: dict[str, BadValues] = {}
    rows = 0
    for frame in frames:
        predicted = client.predict(frame)
        for note in predicted.notes:
            if note not in told:
                told.add(note)
                tell(note)
        for column, own in predicted.bad.items():
            first = bad.get(column) or replace(own, count=0, row=rows + own.row)
            bad[column] = replace(first, count=first.count + own.count)
        for column, levels in predicted.unseen.items():
            own_levels = unseen.setdefault(column, [])
            new = [level for level in levels if level not in own_levels]
            own_levels += new[: EXAMPLES - len(own_levels)]
        rows += len(frame)
        yield frame, predicted
    for column, own in bad.items():
        tell(f"client '{client.name}': {about_bad(column, own)}")
    for column, levels in unseen.items():
        by_letters = column in client.encoder.read_by_letters
        how = "are read by their letters" if by_letters else "count as none of its levels"
        tell(
            f"client '{client.name}': column '{column}' has levels that no training row had, such "
            f"as {quoted(levels)}; they {how}."
        )


def _header(client: FittedClient) -> list[str]:
    if not isinstance(client.task, Classification):
        return ["prediction"]
    return ["prediction", *(f"p({label})" for label in client.labels)]


def _rows(predicted: Predicted) -> Iterator[list[object]]:
    if predicted.probabilities is None:
        for value in predicted.values:
            yield [f"{value:.6g}"]
        return
    for value, own in zip(predicted.values, predicted.probabilities, strict=True):
        yield [value, *(f"{p:.6f}" for p in own)]
