"""`flic init`: drafts a first federation.toml from the files."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from flic.cli.check import need_tables
from flic.cli.screen import notice, say, still
from flic.errors import ConfigError
from flic.files import FOR_ALL, write_atomically


def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder for federation.toml.")],
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILES...", help="One table per client, or one table for all."),
    ],
    label: Annotated[str, typer.Option(help="Column that holds the labels.")],
    site: Annotated[
        str | None,
        typer.Option(help="Column that names the client of each row, if one table is for all."),
    ] = None,
    task: Annotated[
        Literal["classification", "regression"], typer.Option(help="Predict classes, or numbers.")
    ] = "classification",
) -> None:
    """Write a first federation.toml for some files, commented and ready to edit."""
    need_tables("init")
    from flic.tables.draft import draft

    if folder.is_file():
        raise ConfigError(
            f"flic init: got the file {folder} as DIR; expected the folder for federation.toml "
            "first, then the files. Name a folder, such as: flic init federation FILES..."
        )
    path = folder / "federation.toml"
    if path.exists():
        raise ConfigError(
            f"{path} exists already; expected none, since it would be overwritten. Edit it, move "
            "it away, or choose another folder."
        )
    with still("looking at the tables"):
        text, problems = draft(folder, files, label=label, site=site, task=task)
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(path, text.encode(), mode=FOR_ALL)
    for problem in problems:
        notice(problem)
    say(f"wrote {path}; look it through, then run: flic check {path}")
