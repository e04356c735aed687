"""Check of the tables before a fit: facts, suspicions and all problems.

`flic check` shows it; `flic init` takes its suggestions from it.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from flic.data.task import Classification, Task
from flic.errors import ConfigError
from flic.notation import quoted, toml_key, toml_list
from flic.settings import read_toml
from flic.tables.declared import Kind
from flic.tables.encoder import TableEncoder
from flic.tables.federation_file import FederationFile, describe
from flic.tables.loading import examine
from flic.tables.suspicions import leaks_label, looks_like_id, suspicious_value
from flic.tables.table import Column, SiloTable, TableFederation
from flic.tables.values import column_of

FEW_ROWS = 3


@dataclass(frozen=True)
class ColumnCheck:
    """One feature column of one client."""

    name: str
    kind: Kind
    missing_share: float
    distinct: int
    is_constant: bool
    leaks_label: bool
    looks_like_id: bool
    suspicious_value: float | None  # probably means "not measured"
    suspicious_share: float


@dataclass(frozen=True)
class ClientCheck:
    """One client that can be read."""

    name: str
    rows: int
    missing_share: float
    encoded_features: int  # k_i
    labels: dict[str, float]  # class → rows; or low, mean and high of the responses
    columns: tuple[ColumnCheck, ...]

    @property
    def kinds(self) -> Counter[Kind]:
        """Columns by kind."""
        return Counter(column.kind for column in self.columns)


@dataclass(frozen=True)
class SharedColumn:
    """A column of one name and kind at several clients."""

    name: str
    kind: Kind
    clients: tuple[str, ...]


@dataclass(frozen=True)
class Check:
    """Everything that `flic check` reports."""

    task: str | None
    classes: tuple[str, ...]
    clients: tuple[ClientCheck, ...]
    shared: tuple[SharedColumn, ...]
    problems: tuple[str, ...]  # each stops a fit
    warnings: tuple[str, ...]
    notices: tuple[str, ...]

    def summary(self) -> dict[str, Any]:
        """The whole check as plain values."""
        return {"sound": not self.problems, **asdict(self)}


@dataclass(frozen=True)
class Checked:
    """A check, with the file and the tables that were read for it."""

    check: Check
    file: FederationFile | None = None
    federation: TableFederation | None = None


def check_federation(path: Path) -> Checked:
    """Check the federation that a file describes."""
    try:
        file, problems = describe(read_toml(path))
    except ConfigError as error:
        return Checked(_nothing([str(error)]))
    problems = [f"{path}: {problem}." for problem in problems]
    if file is None:
        return Checked(_nothing(problems))
    examined = examine(file, path.parent)
    problems += examined.problems
    notices = [finding.message for finding in examined.findings if not finding.fatal]
    if examined.federation is None:
        return Checked(_nothing(problems, notices), file)
    check = check_tables(examined.federation, problems, notices)
    return Checked(check, file, examined.federation)


def _nothing(problems: Sequence[str], notices: Sequence[str] = ()) -> Check:
    return Check(None, (), (), (), tuple(problems), (), tuple(notices))


def check_tables(
    federation: TableFederation, problems: Sequence[str] = (), notices: Sequence[str] = ()
) -> Check:
    """Check tables that were read."""
    clients = tuple(_client(table, federation) for table in federation.tables)
    shared = _shared(federation.tables)
    warnings = [*_about_kinds(federation.tables), *_about_classes(clients, federation)]
    for client in clients:
        warnings += [f"Client '{client.name}': {warning}" for warning in _about_client(client)]
    return Check(
        task=federation.task.name,
        classes=federation.labels,
        clients=clients,
        shared=shared,
        problems=tuple(problems),
        warnings=tuple(warnings),
        notices=tuple(notices),
    )


def _client(table: SiloTable, federation: TableFederation) -> ClientCheck:
    return ClientCheck(
        name=table.name,
        rows=len(table),
        missing_share=float(table.frame.isna().to_numpy().mean()),
        encoded_features=len(TableEncoder.fit(table).features),
        labels=_labels(table, federation),
        columns=tuple(_column(table, column, federation.task) for column in table.columns),
    )


def _labels(table: SiloTable, federation: TableFederation) -> dict[str, float]:
    if isinstance(federation.task, Classification):
        counts = np.bincount(table.y, minlength=len(federation.labels))
        return dict(zip(federation.labels, counts.tolist(), strict=True))
    y = table.y
    return {"low": float(y.min()), "mean": float(y.mean()), "high": float(y.max())}


# ---- one column ------------------------------------------------------------------------------


def _column(table: SiloTable, column: Column, task: Task) -> ColumnCheck:
    values = column_of(table.frame, column.name)
    gaps = values.isna().to_numpy()
    known = values.dropna() if gaps.any() else values
    distinct = int(known.nunique())
    is_id = looks_like_id(known, column.kind)
    suspicious = suspicious_value(known.to_numpy()) if column.kind == "number" else None
    often = 0.0 if suspicious is None else float((values == suspicious).mean())
    return ColumnCheck(
        name=column.name,
        kind=column.kind,
        missing_share=float(gaps.mean()),
        distinct=distinct,
        is_constant=distinct < 2 and not gaps.any(),
        leaks_label=not is_id and leaks_label(values, column.kind, table.y, task),
        looks_like_id=is_id,
        suspicious_value=suspicious,
        suspicious_share=often,
    )


# ---- between clients -------------------------------------------------------------------------


def _shared(tables: Sequence[SiloTable]) -> tuple[SharedColumn, ...]:
    holders: dict[Column, list[str]] = {}
    for table in tables:
        for column in table.shared:
            holders.setdefault(column, []).append(table.name)
    return tuple(
        SharedColumn(column.name, column.kind, tuple(names))
        for column, names in holders.items()
        if len(names) > 1
    )


def _about_kinds(tables: Sequence[SiloTable]) -> Iterator[str]:
    kinds: dict[str, dict[Kind, list[str]]] = {}
    for table in tables:
        for column in table.shared:
            kinds.setdefault(column.name, {}).setdefault(column.kind, []).append(table.name)
    for name, holders in kinds.items():
        if len(holders) > 1:
            listed = "; ".join(f"{kind} at {quoted(who)}" for kind, who in holders.items())
            yield (
                f"column '{name}' has different kinds ({listed}) and does not count as "
                "shared. If it means the same, declare its kind for all."
            )


def _about_classes(clients: Sequence[ClientCheck], federation: TableFederation) -> Iterator[str]:
    """Classes that may come from a mistyped label: nearly the same name, or very few rows."""
    if not isinstance(federation.task, Classification):
        return
    by_word: dict[str, list[str]] = {}
    for name in federation.labels:
        by_word.setdefault(name.casefold(), []).append(name)
    for names in by_word.values():
        if len(names) > 1:
            yield (
                f"the classes {quoted(names)} differ in capital letters alone. If they are one, "
                "say so in `labels`."
            )
    for name in federation.labels:
        holders = [client for client in clients if client.labels[name]]
        if len(holders) == 1 and holders[0].labels[name] < FEW_ROWS:
            yield (
                f"class '{name}' is in {holders[0].labels[name]:g} row(s) of '{holders[0].name}' "
                "alone. If it is mistyped, correct it there, or say in `labels` which class it "
                "means."
            )


def _about_client(client: ClientCheck) -> Iterator[str]:
    def named(which: str) -> list[str]:
        return [column.name for column in client.columns if getattr(column, which)]

    if leaks := named("leaks_label"):
        yield (
            f"{quoted(leaks)} predict(s) the label (nearly) perfectly. If it is known only "
            f"afterwards, write drop = {toml_list(leaks)}."
        )
    if ids := named("looks_like_id"):
        yield (
            f"{quoted(ids)} look(s) like an id: all values are distinct. If so, write ids = "
            f"{toml_list(ids)}."
        )
    if constant := named("is_constant"):
        yield f"{quoted(constant)}: the same in all rows, so nothing can be learnt from it."
    for column in client.columns:
        if column.suspicious_value is not None:
            value = column.suspicious_value
            yield (
                f"'{column.name}' is {value:g} in {column.suspicious_share:.0%} of the rows, apart "
                'from all other values. If that means "not measured", write missing = '
                f"{{ {toml_key(column.name)} = [{value:g}] }}."
            )
