"""`flic check`: checks the tables of a federation before a fit."""

import json
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from flic.cli.screen import complain, notice, percent, say, still, table
from flic.errors import ConfigError
from flic.notation import counted

if TYPE_CHECKING:
    from flic.tables.declared import Kind
    from flic.tables.overview import Check, Checked, ClientCheck

LISTED_CLASSES = 4
LISTED_COLUMNS = 20
_TOO_FEW = 2  # clients with a column, for sums of it to hide either

FederationPath = Annotated[
    Path, typer.Argument(metavar="FEDERATION.toml", help="Description of the federation.")
]

Format = Annotated[
    Literal["text", "json"], typer.Option(help="Text for people, or JSON for programs.")
]


def need_tables(command: str) -> None:
    """Refuse a command if flic was installed without the packages for tables."""
    missing = [name for name in ("pandas", "skops") if find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"flic {command} works on tables with {' and '.join(missing)}, which "
            f"{'is' if len(missing) == 1 else 'are'} not installed. Run: pip install 'flic[tables]'"
        )


def check(
    federation: FederationPath,
    format: Format = "text",
) -> None:
    """Check the tables of a federation: facts, suspicions, and every problem at once.

    The exit code is 1 if something would stop a fit.
    """
    need_tables("check")
    from flic.tables.overview import check_federation

    with still("looking at the tables"):
        found = _with_settings(check_federation(federation), federation)
    if format == "json":
        say(json.dumps(found.summary(), indent=1, ensure_ascii=False))
    else:
        _show(found)
    if found.problems:
        raise typer.Exit(1)


def _with_settings(checked: "Checked", path: Path) -> "Check":
    """The check with the problems of `[fit]`, by itself or with these tables."""
    from flic.silos.fit_settings import fit_settings
    from flic.silos.splits import outer_splits

    found, file, federation = checked.check, checked.file, checked.federation
    if file is None:
        return found
    try:
        settings = fit_settings(file.fit, task=file.task, source=f"{path}, [fit]")
        if federation is not None and not found.problems:
            outer_splits(federation.tables, settings)
            if not settings.has_usual_candidates:
                from flic.silos.fitting import refuse  # imports all methods

                refuse(federation, settings)
    except ConfigError as error:
        return replace(found, problems=(*found.problems, str(error)))
    return found


def _show(found: "Check") -> None:
    if found.clients:
        _show_clients(found)
        _show_shared(found)
    for message in [*found.notices, *found.warnings]:
        notice(message)
    for problem in found.problems:
        complain(problem)
    if found.problems:
        complain(f"problems: {len(found.problems)}; nothing can be fitted before they are solved.")
    else:
        say("no problems: this federation can be fitted")


def _show_clients(found: "Check") -> None:
    from flic.tables.declared import KINDS

    used: list[Kind] = [
        kind for kind in KINDS if any(client.kinds[kind] for client in found.clients)
    ]
    what = "classes" if found.task == "classification" else "responses"
    columns = ["client", "rows", "columns", *used, "missing %", "encoded", what]
    rows = [
        [
            client.name,
            str(client.rows),
            str(len(client.columns)),
            *(str(client.kinds[kind]) for kind in used),
            percent(client.missing_share),
            str(client.encoded_features),
            _labels(client, found),
        ]
        for client in found.clients
    ]
    table(f"{found.task}, {counted(len(rows), 'client')}", columns, rows)


def _labels(client: "ClientCheck", found: "Check") -> str:
    if found.task == "regression":
        return f"{client.labels['low']:g} to {client.labels['high']:g}"
    held = {name: int(count) for name, count in client.labels.items() if count}
    if len(held) > LISTED_CLASSES:
        return f"{len(held)} classes of {min(held.values())}-{max(held.values())}"
    return ", ".join(f"{name} {count}" for name, count in held.items())


def _show_shared(found: "Check") -> None:
    """Show columns of the same name and kind, by the number of clients that have them."""
    total = len(found.clients)
    for count in range(total, 1, -1):
        names = [column.name for column in found.shared if len(column.clients) == count]
        if names:
            more = f" and {len(names) - LISTED_COLUMNS} more" if len(names) > LISTED_COLUMNS else ""
            listed = ", ".join(names[:LISTED_COLUMNS])
            say(f"shared by {count} of {total}: {listed}{more}")
        if names and count == _TOO_FEW:
            say(
                "columns of two clients are linked by flic fit, and not by a federation between "
                "machines (min_holders = 3): each could read the other's sums from the total"
            )
