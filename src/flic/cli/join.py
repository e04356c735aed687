"""`flic join`: adds a new site, which uses the shared parameters and sends nothing."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flic.cli.assignments import Classes, Dropped, Missing, missing_values, values_of_classes
from flic.cli.check import need_tables
from flic.cli.fit import show_verdict
from flic.cli.predict import Encoding
from flic.cli.run import Workers
from flic.cli.screen import notice, say
from flic.errors import ConfigError

if TYPE_CHECKING:
    from flic.silos.joining import SharedPart
    from flic.silos.verdict import Verdict
    from flic.tables import Client, SiloTable

    Read = Callable[[SharedPart], SiloTable]  # reads the site's table as its peers read theirs
    Joined = tuple[Path, Verdict, Sequence[str]]  # folder of the model, verdict, notices


def join(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="DIR", help="Folder of flic fit, or of a run of flic-class or flic-hl."
        ),
    ],
    name: Annotated[str, typer.Option(help="Name of the new client.")],
    data: Annotated[Path, typer.Option(metavar="FILE", help="Table of the new client.")],
    label: Annotated[str, typer.Option(metavar="COLUMN", help="Its label column.")],
    meaning: Classes = None,
    missing: Missing = None,
    drop: Dropped = None,
    query: Annotated[
        str | None,
        typer.Option(metavar="SQL", help="Query for the rows, if the table is a database."),
    ] = None,
    encoding: Encoding = "utf-8",
    workers: Workers = 1,
) -> None:
    """Add a new site: it takes the shared part, trains its own part, and gets a verdict."""
    need_tables("join")
    from flic.tables import Client
    from flic.tables.federation_file import unusable_name

    if problem := unusable_name(name):
        raise ConfigError(problem)
    join_folder = _join_run if (folder / "config.json").exists() else _join_fitted

    def table(part: "SharedPart") -> "SiloTable":
        client = Client(
            name=name,
            data=str(data.absolute()),
            query=query,
            encoding=encoding,
            label=label,
            labels=part.label_names(values_of_classes(meaning)),
            drop=tuple(drop or ()),
            missing=missing_values(missing),
        )
        return _table(client, part)

    made, found, notices = join_folder(folder, name, table, workers)
    show_verdict(found, only=name)
    for message in notices:
        notice(message)
    say(f"wrote {name} to {made}; nothing was sent from {name}.")
    if (report := made / "report.html").exists():
        notice(f"{report} was written before {name} joined. Renew it with: flic report {folder}")


def _join_fitted(folder: Path, _name: str, table: "Read", workers: int) -> "Joined":
    """Add the site to a fitted folder."""
    from flic.silos import folder as folders
    from flic.silos import joining

    fitted = folders.load(folder)
    joined = joining.join(fitted, table(joining.SharedPart.of(fitted)), workers=workers)
    folders.update(joined, folder)
    return folder, joined.verdict, joined.notices[len(fitted.notices) :]


def _join_run(folder: Path, name: str, table: "Read", workers: int) -> "Joined":
    """Make a fitted folder of the site alone, below the run's."""
    from flic.silos import folder as folders
    from flic.silos import joining

    made = folder / "joined" / name
    if made.exists():
        raise ConfigError(
            f"name is {name!r}, which has joined {folder} already; expected a new one. Choose "
            "another with --name."
        )
    part = joining.shared_by_run(folder)
    joined = joining.join_run(part, table(part), workers=workers)
    folders.save(joined, made)
    return made, joined.verdict, joined.notices


def _table(client: "Client", part: "SharedPart") -> "SiloTable":
    """The newcomer's table; says what is odd about it."""
    from flic.tables import load_client

    kinds = part.kinds_of_columns()
    table, notices = load_client(
        client, Path.cwd(), task=part.task, labels=part.labels, kinds=kinds
    )
    for message in notices:
        notice(message)
    return table
