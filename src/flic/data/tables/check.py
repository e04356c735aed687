"""What a person should know about the tables before a fit: facts, suspicions and all problems.

Part 1 of the flow, for tables: `flic check` shows it, `flic init` takes its suggestions from it.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.model_selection import KFold, StratifiedKFold, cross_val_score
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

from flic.data.tables.declared import Kind
from flic.data.tables.encoder import TableEncoder
from flic.data.tables.federation_file import describe
from flic.data.tables.labels import quoted
from flic.data.tables.loading import examine
from flic.data.tables.table import Column, SiloTable, TableFederation
from flic.data.tables.values import column_of
from flic.data.task import Classification, Task
from flic.errors import ConfigError
from flic.settings import read_toml

FEW_ROWS = 3
JUDGED_ROWS = 20  # fewer say nothing about leaks and ids
ID_ROWS = 50
LOOKED_AT_ROWS = 5_000  # enough to judge a column by
PERFECT = 0.999
TREE_DEPTH = 8
FOLDS = 5
OFTEN = 0.01  # share of the rows from which a value is suspected to mean "not measured"
LARGE = 10
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
SENTINELS = (-999.0, -99.0, -9.0, -1.0, 99.0, 999.0, 9999.0)


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
    """Everything that `flic check` says."""

    task: str | None
    classes: tuple[str, ...]
    clients: tuple[ClientCheck, ...]
    shared: tuple[SharedColumn, ...]
    problems: tuple[str, ...]  # each stops a fit
    warnings: tuple[str, ...]
    notices: tuple[str, ...]

    def summary(self) -> dict[str, Any]:
        """All of it as plain values."""
        return {"sound": not self.problems, **asdict(self)}


def check_federation(path: Path) -> Check:
    """What there is to say about the federation that a file describes."""
    try:
        file, problems = describe(read_toml(path))
    except ConfigError as error:
        return _nothing([str(error)])
    problems = [f"{path}: {problem}." for problem in problems]
    if file is None:
        return _nothing(problems)
    examined = examine(file, path.parent)
    problems += examined.problems
    notices = [finding.message for finding in examined.findings if not finding.fatal]
    if examined.federation is None:
        return _nothing(problems, notices)
    return check_tables(examined.federation, problems, notices)


def _nothing(problems: Sequence[str], notices: Sequence[str] = ()) -> Check:
    return Check(None, (), (), (), tuple(problems), (), tuple(notices))


def check_tables(
    federation: TableFederation, problems: Sequence[str] = (), notices: Sequence[str] = ()
) -> Check:
    """What there is to say about tables that were read."""
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
    known = values.dropna()
    distinct = int(known.nunique())
    is_id = looks_like_id(known, column.kind)
    suspicious = suspicious_value(known.to_numpy()) if column.kind == "number" else None
    often = 0.0 if suspicious is None else float((values == suspicious).mean())
    return ColumnCheck(
        name=column.name,
        kind=column.kind,
        missing_share=float(values.isna().mean()),
        distinct=distinct,
        is_constant=distinct < 2 and not values.isna().any(),
        leaks_label=not is_id and leaks_label(values, column.kind, table.y, task),
        looks_like_id=is_id,
        suspicious_value=suspicious,
        suspicious_share=often,
    )


def looks_like_id(known: pd.Series, kind: Kind) -> bool:
    """Whether the values only tell rows apart: whole numbers or words, all of them distinct."""
    if len(known) < JUDGED_ROWS or not known.is_unique:
        return False
    if kind == "number":  # few whole numbers can be distinct by chance, but hardly in a row
        in_a_row = bool(known.max() - known.min() + 1 == len(known))
        return bool((known % 1 == 0).all()) and (in_a_row or len(known) >= ID_ROWS)
    return kind in ("category", "text") and not any(" " in value for value in known)


def suspicious_value(known: np.ndarray) -> float | None:
    """A value that probably means "not measured", if there is one.

    It is frequent and apart from the others: 0 where all others are positive and large, a
    negative number where all others are not, 999 where all others are far smaller.
    """
    for value in (0.0, *SENTINELS):
        share = float((known == value).mean()) if len(known) else 0.0
        rest = known[known != value]
        if share > OFTEN and len(rest) >= JUDGED_ROWS and _is_apart(value, rest):
            return value
    return None


def _is_apart(value: float, rest: np.ndarray) -> bool:
    low, high = float(rest.min()), float(rest.max())
    if value == 0:
        return low >= LARGE and low > float(np.median(rest)) / 4
    if value < 0:
        return low >= 0
    return value - high > high - low


def leaks_label(values: pd.Series, kind: Kind, y: np.ndarray, task: Task) -> bool:
    """Whether the column alone predicts the label perfectly, or nearly so."""
    if len(y) < JUDGED_ROWS or kind == "text":
        return False
    rng = np.random.default_rng(0)
    rows = rng.permutation(len(y))[:LOOKED_AT_ROWS]
    values, y = values.iloc[rows].reset_index(drop=True), y[rows]
    if kind == "category":
        return _levels_tell(values.fillna(""), y, task)
    x = values.astype("int64") if kind == "date" else values
    x = np.where(values.isna(), np.nan, x.to_numpy(dtype=float))[:, None]
    if isinstance(task, Classification):
        return _tree_tells_class(x, y)
    return _tree_tells_response(x, y)


def _levels_tell(values: pd.Series, y: np.ndarray, task: Task) -> bool:
    """Whether every level goes with one label, in levels of several rows each."""
    levels, distinct = pd.factorize(values)
    if 4 * len(distinct) > len(y) or len(distinct) < 2:
        return False
    groups = [y[levels == level] for level in range(len(distinct))]
    if isinstance(task, Classification):
        pure = sum(_majority(own) * len(own) for own in groups) / len(y)
        return pure >= PERFECT > _majority(y)
    within = sum(float(np.var(own)) * len(own) for own in groups) / len(y)
    return within <= (1 - PERFECT) * float(np.var(y))


def _majority(y: np.ndarray) -> float:
    return float(np.unique(y, return_counts=True)[1].max() / len(y))


def _tree_tells_class(x: np.ndarray, y: np.ndarray) -> bool:
    counts = np.bincount(y)
    keep = counts[y] > 1  # a class of one row cannot be both learnt and tested
    x, y = x[keep], y[keep]
    if len(np.unique(y)) < 2 or _majority(y) >= PERFECT:
        return False
    folds = StratifiedKFold(min(FOLDS, int(counts[counts > 1].min())))
    tree = DecisionTreeClassifier(max_depth=TREE_DEPTH, random_state=0)
    if tree.fit(x, y).score(x, y) < PERFECT:  # what it cannot learn it cannot tell
        return False
    return float(cross_val_score(tree, x, y, cv=folds).mean()) >= PERFECT


def _tree_tells_response(x: np.ndarray, y: np.ndarray) -> bool:
    # A tree follows a straight line only in steps.
    varies = not np.isnan(x).any() and np.ptp(x) > 0 and np.ptp(y) > 0
    if varies and np.corrcoef(x[:, 0], y)[0, 1] ** 2 >= PERFECT:
        return True
    tree = DecisionTreeRegressor(max_depth=TREE_DEPTH, random_state=0)
    if tree.fit(x, y).score(x, y) < PERFECT:  # what it cannot learn it cannot tell
        return False
    folds = KFold(FOLDS)
    return float(cross_val_score(tree, x, y, cv=folds, scoring="r2").mean()) >= PERFECT


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
                f"column '{name}' is of another kind elsewhere ({listed}) and does not count as "
                "shared. If it means the same, declare its kind for all."
            )


def _about_classes(clients: Sequence[ClientCheck], federation: TableFederation) -> Iterator[str]:
    """Classes that a mistyped label may have made: nearly of one name, or of very few rows."""
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


def toml_list(names: Sequence[str]) -> str:
    """Texts as a list in TOML."""
    return f"[{', '.join(map(toml_text, names))}]"


def toml_text(text: str) -> str:
    """A text in TOML, whose basic strings are those of JSON."""
    return json.dumps(text, ensure_ascii=False)


def toml_key(name: str) -> str:
    """A key in TOML, in quotes only where it needs them."""
    return name if _BARE_KEY.fullmatch(name) else toml_text(name)
