"""`flic join`: a new site learns from what the federation shares, and sends nothing."""

from pathlib import Path
from typing import Annotated

import typer

from flic.cli.check import need_pandas
from flic.cli.fit import show_verdict
from flic.cli.predict import Encoding, Fitted
from flic.cli.run import Workers
from flic.cli.screen import notice
from flic.errors import ConfigError


def join(
    folder: Fitted,
    name: Annotated[str, typer.Option(help="Name of the new client.")],
    data: Annotated[Path, typer.Option(metavar="FILE", help="Its table.")],
    label: Annotated[str, typer.Option(metavar="COLUMN", help="Its label column.")],
    missing: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COLUMN=VALUE", help='A value that means "not measured"; may be repeated.'
        ),
    ] = None,
    drop: Annotated[
        list[str] | None, typer.Option(metavar="COLUMN", help="No feature; may be repeated.")
    ] = None,
    encoding: Encoding = "utf-8",
    workers: Workers = 1,
) -> None:
    """Add a new site: it gets the shared anchors, learns its own part, and has a verdict."""
    need_pandas("join")
    from flic.data.tables import Client, load_client
    from flic.silos import folder as folders
    from flic.silos.joining import declared_missing, label_names
    from flic.silos.joining import join as join_table

    _refuse_name(name)
    fitted = folders.load(folder)
    client = Client(
        name=name,
        data=str(data.absolute()),
        encoding=encoding,
        label=label,
        labels=label_names(fitted),
        drop=tuple(drop or ()),
        missing=declared_missing(missing or []),
    )
    table, notices = load_client(client, Path.cwd(), task=fitted.task, labels=fitted.labels)
    for message in notices:
        notice(message)
    joined = join_table(fitted, table, workers=workers)
    folders.update(joined, folder)
    show_verdict(joined.verdict, only=name)
    typer.echo(f"{name} is in {folder}; nothing left it.")


def _refuse_name(name: str) -> None:
    """Refuse the names that a federation file refuses."""
    if not name or name.startswith(".") or "/" in name or not name.isprintable():
        raise ConfigError(
            f"client name '{name}' cannot name a folder; expected letters, no dot in front, no "
            "slash and no control letters. Choose another with --name."
        )
