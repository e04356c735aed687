"""Tables of all clients from a description or from frames, with all problems reported at once.

Files and frames take one path, so they meet the same refusals.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from flic.data.findings import Finding
from flic.data.task import Classification, Regression, Task, TaskName
from flic.errors import DataError
from flic.notation import quoted
from flic.tables.columns import as_others, conform, look_at_columns
from flic.tables.declared import Declared, Kind
from flic.tables.federation_file import Client, FederationFile, refuse_unclear
from flic.tables.labels import (
    Labelling,
    LabelNames,
    class_names,
    kind_of_labels,
    label_texts,
    positions,
    sort_values,
)
from flic.tables.problems import (
    LEAST_ROWS,
    about_clients,
    about_common,
    about_common_classes,
    about_labels,
    about_links,
    about_own,
    about_same_rows,
    about_unnamed,
)
from flic.tables.reading import as_pandas
from flic.tables.sources import RawClient, fatal, notice, raw_client, raw_clients
from flic.tables.table import Column, SiloTable, TableFederation
from flic.tables.values import column_of


@dataclass(frozen=True)
class DeclaredTask:
    """The task that all clients share, as it is declared."""

    task: TaskName
    labels: LabelNames | None
    range: tuple[float, float] | None


@dataclass(frozen=True)
class Examined:
    """The clients that can be read, and the findings about all of them."""

    federation: TableFederation | None
    findings: tuple[Finding, ...]

    @property
    def problems(self) -> list[str]:
        """Problems that stop a fit."""
        return [finding.message for finding in self.findings if finding.fatal]


def load_tables(file: FederationFile, root: Path) -> TableFederation:
    """Tables of all clients of a federation file in the folder `root`.

    Raises:
        DataError: listing every problem of every client.
    """
    refuse_unclear(file)
    return _sound(examine(file, root))


def tables_from_frames(
    frames: Mapping[str, Any],
    *,
    label: str,
    task: TaskName = "classification",
    labels: LabelNames | None = None,
    range: tuple[float, float] | None = None,
    declared: Declared | None = None,
) -> TableFederation:
    """Tables of clients from their pandas or polars frames.

    Raises:
        DataError: listing every problem of every client.
    """
    if not frames:
        raise DataError("got no frames; expected at least two clients. Add them.")
    if task == "regression" and (range is None or not range[0] < range[1]):
        raise DataError(
            f"a regression got the range {range}; expected (low, high) of its responses. Add it."
        )
    declared = declared or Declared()
    if declared.contradictions():
        raise DataError(". ".join([*declared.contradictions(), ""]).strip())
    raw: list[RawClient] = []
    findings: list[Finding] = []
    for name, frame in frames.items():
        try:
            own = as_pandas(frame)
            raw.append(RawClient(name, own, label, declared.apart(own.columns)))
        except DataError as error:
            findings.append(fatal(name, str(error)))
    declared_task = DeclaredTask(task, labels, range)
    return _sound(_assembled(raw, declared_task, declared, findings, len(frames)))


def load_client(
    client: Client,
    root: Path,
    *,
    task: Task,
    labels: tuple[str, ...],
    kinds: Mapping[str, Kind] | None = None,
) -> tuple[SiloTable, list[str]]:
    """Table of one more client for a known task, and notices about it.

    `kinds` are other clients' kinds, for columns that are not declared.

    Raises:
        DataError: listing every problem of the client.
    """
    file = FederationFile(clients=(client,))
    return _newcomer(raw_client(client, file, root), task, labels, kinds or {})


def client_from_frame(
    name: str,
    frame: Any,
    *,
    label: str,
    task: Task,
    labels: tuple[str, ...],
    own_labels: LabelNames | None = None,
    declared: Declared | None = None,
    kinds: Mapping[str, Kind] | None = None,
) -> tuple[SiloTable, list[str]]:
    """The same from a pandas or polars frame; `own_labels` says how its labels are read.

    Raises:
        DataError: listing every problem of the client.
    """
    own = as_pandas(frame)
    declared = (declared or Declared()).apart(own.columns)
    raw = RawClient(name, own, label, declared, labels=own_labels)
    return _newcomer(raw, task, labels, kinds or {})


def _newcomer(
    raw: RawClient, task: Task, labels: tuple[str, ...], kinds: Mapping[str, Kind]
) -> tuple[SiloTable, list[str]]:
    own = {name: raw.declared.shared_name(name, raw.name) for name in raw.frame.columns}
    theirs: dict[str, Kind] = {n: kinds[s] for n, s in own.items() if s in kinds and n != raw.label}
    raw = replace(raw, declared=as_others(raw.frame, raw.declared, theirs))
    table, findings = _table(raw, task, labels, raw.labels or labels)
    problems = [finding.message for finding in findings if finding.fatal]
    if problems or table is None:
        raise DataError("\n".join(problems))
    return table, [finding.message for finding in findings]


def examine(file: FederationFile, root: Path) -> Examined:
    """Examine all clients of a federation file."""
    raw, findings = raw_clients(file, root)
    declared_task = DeclaredTask(file.task, file.labels, file.range)
    return _assembled(raw, declared_task, file, findings, len(file.clients) or len(raw))


def _sound(examined: Examined) -> TableFederation:
    problems = examined.problems
    if problems or examined.federation is None:
        raise DataError(
            "\n".join([f"The tables cannot be used; problems: {len(problems)}.", *problems])
        )
    return examined.federation


# ---- tables ----------------------------------------------------------------------------------


def _assembled(
    raw: Sequence[RawClient],
    declared_task: DeclaredTask,
    common: Declared,
    findings: Sequence[Finding],
    expected: int,
) -> Examined:
    """Tables of the clients that have no problem, and all findings."""
    said = [*about_clients(raw, expected), *about_common(raw, common), *findings]
    task, names = None, ()
    try:
        names = _class_names(raw, declared_task)
        task = _task(declared_task, names)
    except DataError as error:
        # If no client has the label column, each client reports that itself.
        if any(client.label in client.frame.columns for client in raw):
            said.append(fatal(None, str(error)))
    tables: list[SiloTable] = []
    for client in raw:
        table, own = _table(client, task, names, client.labels or declared_task.labels or names)
        said += own
        if table is not None:
            tables.append(table)
    said += about_same_rows(tables)
    if isinstance(task, Classification) and len(tables) == expected > 1:
        said += about_common_classes(tables, names)
    if task is None:
        return Examined(None, tuple(said))
    notices = tuple(finding.message for finding in said if not finding.fatal)
    return Examined(TableFederation(task, names, tuple(tables), notices), tuple(said))


def _class_names(raw: Sequence[RawClient], declared_task: DeclaredTask) -> tuple[str, ...]:
    """Names of the classes: declared, or else all values seen, in order."""
    if declared_task.task == "regression":
        return ()
    if declared_task.labels is not None:
        names = class_names(declared_task.labels)
        positions(declared_task.labels, names)  # refuses a value that means two classes
        return names
    seen: set[str] = set()
    for client in raw:
        if client.labels is not None:
            seen.update(class_names(client.labels))
        elif client.label in client.frame.columns:
            values = label_texts(client.frame, client.label, client.declared)
            seen.update(value for value in values if value is not None)
    _refuse_endless(seen, sum(len(client.frame) for client in raw))
    return tuple(sort_values(seen))


def _refuse_endless(seen: set[str], rows: int) -> None:
    if len(seen) > LEAST_ROWS and 2 * len(seen) >= rows:
        raise DataError(
            f"the labels have {len(seen)} different values in {rows} rows, such as "
            f"{quoted(sort_values(seen)[:3])}; expected a few classes. Write task = "
            '"regression" and a range, correct `label`, or group the values in `labels`.'
        )


def _task(declared_task: DeclaredTask, names: tuple[str, ...]) -> Task | None:
    if declared_task.task == "classification":
        if len(names) < 2:
            raise DataError(
                f"the federation has the classes {quoted(names) or 'none'}; expected at least two. "
                "Correct `label` or `labels`."
            )
        return Classification(len(names))
    if declared_task.range is None or not declared_task.range[0] < declared_task.range[1]:
        return None  # reported before, as a setting
    return Regression(*declared_task.range)


def _table(
    raw: RawClient, task: Task | None, names: tuple[str, ...], labels: LabelNames
) -> tuple[SiloTable | None, list[Finding]]:
    """Table of one client unless it has a problem, and all findings about it.

    Without a task its labels cannot be read, but everything else is still checked.
    """
    findings = [fatal(raw.name, problem) for problem in about_own(raw)]
    labelling, y, rows = None, np.empty(0), np.arange(len(raw.frame))
    try:
        if task is None:
            label_texts(raw.frame, raw.label, raw.declared)
        else:
            labelling = _labelling(raw, task, names, labels)
            y, rows = labelling.read(raw.frame, raw.declared)
            findings += about_labels(raw, y, task, names)
    except DataError as error:
        findings.append(fatal(raw.name, str(error)))
    columns, frame, about_columns = _features(raw, rows)
    findings += about_columns
    findings += [fatal(raw.name, problem) for problem in about_links(raw, columns)]
    findings += [notice(raw.name, message) for message in about_unnamed(raw, columns)]
    if labelling is None or any(finding.fatal for finding in findings):
        return None, findings
    return SiloTable(raw.name, columns, frame, y, raw.declared, labelling), findings


def _labelling(raw: RawClient, task: Task, names: tuple[str, ...], labels: LabelNames) -> Labelling:
    by_value = positions(labels, names) if isinstance(task, Classification) else None
    if raw.label not in raw.frame.columns:
        return Labelling(column=raw.label, positions=by_value, site=raw.site)
    values = kind_of_labels(column_of(raw.frame, raw.label))
    return Labelling(column=raw.label, positions=by_value, site=raw.site, values=values)


def _features(
    raw: RawClient, rows: np.ndarray
) -> tuple[tuple[Column, ...], pd.DataFrame, list[Finding]]:
    """Feature columns of some rows, the rows in their form, and findings about them."""
    kept = raw.frame.drop(columns=raw.label, errors="ignore").iloc[rows].reset_index(drop=True)
    found = look_at_columns(kept, raw.declared)
    findings = [fatal(raw.name, problem) for problem in found.problems]
    findings += [notice(raw.name, message) for message in found.notices]
    frame, _ = conform(kept, found.columns, raw.declared)
    missing = frame.isna().mean().to_dict()
    sparse = [name for name, share in missing.items() if share > raw.empty_share]
    if sparse:
        unused = (
            f"{quoted(sparse)} not used: missing in more than {raw.empty_share:.0%} of its rows "
            "(`empty_share`)."
        )
        findings.append(notice(raw.name, unused))
    columns = tuple(column for column in found.columns if column.name not in sparse)
    if not columns and not found.problems:
        problem = (
            "has no feature column left; expected at least one. Drop fewer columns, or leave this "
            "client out."
        )
        findings.append(fatal(raw.name, problem))
    return columns, frame.drop(columns=sparse), findings
