"""First federation.toml for files that nobody has described yet, commented and ready to edit.

`flic init` writes it. Certain facts become settings, suspicions become comments.
"""

import math
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from flic.data.task import TaskName
from flic.errors import ConfigError, DataError
from flic.notation import counted, toml_key, toml_list, toml_text
from flic.tables.declared import KINDS
from flic.tables.federation_file import Client, FederationFile
from flic.tables.loading import examine
from flic.tables.overview import Check, ClientCheck, check_tables
from flic.tables.reading import read_table
from flic.tables.table import TableFederation
from flic.tables.values import is_code, parse_number

_LISTED_VALUES = 20
_LINE = 96  # letters of a comment


def draft(
    folder: Path, files: Sequence[Path], *, label: str, site: str | None, task: TaskName
) -> tuple[str, Sequence[str]]:
    """Text of a federation.toml in `folder` that describes the files, and what would stop a fit.

    Raises:
        FlicError: a file is absent, no file can be read, or no file has such a label.
    """
    _refuse_count(files, site)
    _refuse_absent(files)
    range = _range(files, label) if task == "regression" else None
    description = _description(files, label=label, site=site, task=task, range=range)
    examined = examine(description, Path())
    if examined.federation is None or not examined.federation.tables:
        raise DataError("\n".join(["No federation can be drafted:", *examined.problems]))
    check = check_tables(examined.federation, examined.problems)
    lines = _lines(description, folder, examined.federation, check)
    return "\n".join(lines) + "\n", examined.problems


def _refuse_absent(files: Sequence[Path]) -> None:
    absent = [str(file) for file in files if not file.exists()]
    if absent:
        raise DataError(
            f"flic init: no such file: {', '.join(absent)}; expected tables. Correct the paths."
        )


def _refuse_count(files: Sequence[Path], site: str | None) -> None:
    if site is not None and len(files) > 1:
        raise ConfigError(
            f"flic init --site: got {len(files)} files; expected one that holds all clients. Leave "
            "out --site if each file is a client."
        )
    if site is None and len(files) < 2:
        raise ConfigError(
            "flic init: got one file; expected one per client, or one with --site COLUMN, the "
            "column that names each row's client."
        )


def _description(
    files: Sequence[Path],
    *,
    label: str,
    site: str | None,
    task: TaskName,
    range: tuple[float, float] | None,
) -> FederationFile:
    if site is not None:
        return FederationFile(task=task, label=label, range=range, data=str(files[0]), site=site)
    named = zip(_names(files), files, strict=True)
    clients = tuple(Client(name=name, data=str(file)) for name, file in named)
    return FederationFile(task=task, label=label, range=range, clients=clients)


def _names(files: Sequence[Path]) -> list[str]:
    """A name per file: its stem, after the folder's name where two files have the same."""
    stems = Counter(file.stem for file in files)
    return [
        file.stem if stems[file.stem] == 1 else f"{file.resolve().parent.name}-{file.stem}"
        for file in files
    ]


def _range(files: Sequence[Path], label: str) -> tuple[float, float]:
    """Round numbers around all responses seen, for a person to correct."""
    seen: list[float] = []
    for file in files:
        frame = read_table(file)
        if label not in frame.columns:
            continue  # reported later, with all other problems
        numbers = (parse_number(str(value).strip()) for value in frame[label])
        seen += [number for number in numbers if number is not None]
    if not seen:
        raise DataError(
            f"No file has numbers in a column '{label}'; expected responses for a regression. "
            "Correct --label, or leave out --task."
        )
    step = 10.0 ** math.floor(math.log10(max(max(seen) - min(seen), 1e-9)))
    return step * math.floor(min(seen) / step), step * math.ceil(max(seen) / step)


# ---- text ------------------------------------------------------------------------------------


def _lines(
    file: FederationFile, folder: Path, federation: TableFederation, check: Check
) -> Iterator[str]:
    def path_of(data: str) -> str:
        relative = os.path.relpath(Path(data).resolve(), folder.resolve())
        return toml_text(Path(relative).as_posix())

    yield "# A federation of tables, drafted by `flic init`. Look it through, edit it, then run:"
    yield "#   flic check federation.toml"
    yield ""
    yield f'task = "{file.task}"'
    yield f"label = {toml_text(file.label or '')}"
    yield from _task_lines(file, federation, check)
    yield ""
    yield from _suggestions(check)
    by_name = {client.name: client for client in check.clients}
    if file.data is not None:
        yield f"data = {path_of(file.data)}"
        yield f"site = {toml_text(file.site or '')}  # one client per value of this column"
        yield f"empty_share = {file.empty_share}  # columns emptier than this are not a site's own"
        for client in check.clients:
            yield ""
            yield from _facts(client)
    for client in file.clients:
        yield "[[clients]]"
        yield f"name = {toml_text(client.name)}"
        yield f"data = {path_of(client.data)}"
        if client.name in by_name:
            yield from _facts(by_name[client.name])
        yield ""


def _task_lines(file: FederationFile, federation: TableFederation, check: Check) -> Iterator[str]:
    if file.range is not None:
        low, high = (repr(float(end)) for end in file.range)
        yield f"range = [{low}, {high}]  # seen in the rows; widen it to what is possible"
        return
    counts: Counter[str] = Counter()
    for client in check.clients:
        counts.update({name: int(rows) for name, rows in client.labels.items()})
    found = [f"{_plain(name)} ({counted(counts[name], 'row')})" for name in federation.labels]
    more = len(found) - _LISTED_VALUES
    rest = [f"and {more} more"] if more > 0 else []
    yield from _comment("Found", [*found[:_LISTED_VALUES], *rest])
    values = [_value(name) for name in federation.labels]
    yield f"labels = [{', '.join(values)}]"
    if len(values) > 2 and all(parse_number(name) is not None for name in federation.labels):
        yield "# To ask for groups of values instead, name them:"
        yield f"# labels = {{ no = [{values[0]}], yes = [{', '.join(values[1:])}] }}"


def _value(name: str) -> str:
    is_number = parse_number(name) is not None and not is_code(name)
    return name.removeprefix("+") if is_number and name[0] in "-0123456789" else toml_text(name)


def _suggestions(check: Check) -> Iterator[str]:
    """Suspicions as comments, which become settings once the # is removed."""
    for problem in check.problems:
        yield f"# To be solved: {_plain(problem)}"
    columns = [column for client in check.clients for column in client.columns]
    ids = dict.fromkeys(column.name for column in columns if column.looks_like_id)
    if ids:
        yield "# All values are distinct: ids, which tell nothing about new rows?"
        yield f"# ids = {toml_list([*ids])}"
    leaks = [column.name for column in columns if column.leaks_label]
    constant = [c.name for c in columns if all(o.is_constant for o in columns if o.name == c.name)]
    if leaks:
        yield "# Predict the label (nearly) perfectly: known only afterwards?"
        yield f"# drop = {toml_list([*dict.fromkeys(leaks)])}"
    if constant:
        yield "# The same in all rows, wherever it is:"
        yield f"# drop = {toml_list([*dict.fromkeys(constant)])}"
    odd = {c.name: c.suspicious_value for c in columns if c.suspicious_value is not None}
    if odd:
        listed = ", ".join(f"{toml_key(name)} = [{value:g}]" for name, value in odd.items())
        yield '# Frequent, and apart from all other values: does it mean "not measured"?'
        yield f"# missing = {{ {listed} }}"
    if check.problems or ids or leaks or constant or odd:
        yield ""


def _facts(client: ClientCheck) -> Iterator[str]:
    rows = counted(client.rows, "row")
    yield f"# {_plain(client.name)}: {rows}, {client.missing_share:.0%} missing"
    for kind in KINDS:
        names = [_plain(column.name) for column in client.columns if column.kind == kind]
        if names:
            yield from _comment(kind, names)


def _comment(heading: str, words: Sequence[str]) -> Iterator[str]:
    """A comment that lists words, wrapped over several lines if needed."""
    line = f"#   {heading}:"
    for i, word in enumerate(words):
        word += "," if i < len(words) - 1 else ""
        if len(line) + len(word) >= _LINE:
            yield line
            line = "#    "
        line += f" {word}"
    yield line


def _plain(text: str) -> str:
    """A text that stays on its line."""
    return text if text.isprintable() else toml_text(text)
