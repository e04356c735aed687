"""`flic join`: adds a new site, which uses the shared parameters and sends nothing."""

from pathlib import Path
from typing import Annotated

import typer

from flic.cli.assignments import Classes, Missing, missing_values, values_of_classes
from flic.cli.check import need_pandas
from flic.cli.fit import show_verdict
from flic.cli.predict import Encoding, Fitted
from flic.cli.run import Workers
from flic.cli.screen import notice, say
from flic.errors import ConfigError


def join(
    folder: Fitted,
    name: Annotated[str, typer.Option(help="Name of the new client.")],
    data: Annotated[Path, typer.Option(metavar="FILE", help="Its table.")],
    label: Annotated[str, typer.Option(metavar="COLUMN", help="Its label column.")],
    meaning: Classes = None,
    missing: Missing = None,
    drop: Annotated[
        list[str] | None, typer.Option(metavar="COLUMN", help="No feature; may be repeated.")
    ] = None,
    query: Annotated[
        str | None, typer.Option(metavar="SQL", help="Which rows, where the table is a database.")
    ] = None,
    encoding: Encoding = "utf-8",
    workers: Workers = 1,
) -> None:
    """Add a new site: it takes the shared part, trains its own part, and gets a verdict."""
    need_pandas("join")
    from flic.silos import folder as folders
    from flic.silos.joining import join as join_table
    from flic.silos.joining import kinds_of_columns, label_names
    from flic.tables import Client, load_client
    from flic.tables.federation_file import unusable_name

    if problem := unusable_name(name):
        raise ConfigError(problem)
    fitted = folders.load(folder)
    client = Client(
        name=name,
        data=str(data.absolute()),
        query=query,
        encoding=encoding,
        label=label,
        labels=label_names(fitted, values_of_classes(meaning)),
        drop=tuple(drop or ()),
        missing=missing_values(missing),
    )
    table, notices = load_client(
        client,
        Path.cwd(),
        task=fitted.task,
        labels=fitted.labels,
        kinds=kinds_of_columns(fitted),
    )
    for message in notices:
        notice(message)
    joined = join_table(fitted, table, workers=workers)
    folders.update(joined, folder)
    show_verdict(joined.verdict, only=name)
    for message in joined.notices[len(fitted.notices) :]:
        notice(message)
    say(f"{name} is in {folder}; nothing left it.")
    if (report := folder / "report.html").exists():
        notice(f"{report} is of before {name} joined. Renew it with: flic report {folder}")
