"""`flic report`: what a run or a federation came to, as one HTML file."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flic.cli.screen import say
from flic.errors import RunFolderError
from flic.files import make_folder, write_atomically

if TYPE_CHECKING:
    from flic.report.page.story import Story


def report(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="A finished run, or a fitted federation.")
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FILE.html", help="Without it, DIR/report.html."),
    ] = None,
    tensorboard: Annotated[
        Path | None,
        typer.Option(metavar="LOGDIR", help="Also write the metrics per round for TensorBoard."),
    ] = None,
) -> None:
    """Write a report that opens in any browser, without a network: verdict, curves, traffic."""
    story = _story_of(folder)
    from flic.report.page.html import render

    page = render(story)
    if tensorboard is not None:
        from flic.report.tensorboard import write_scalars

        say(f"metrics for TensorBoard: {write_scalars(story, tensorboard)}")
    path = folder / "report.html" if out is None else out
    make_folder(path.parent)
    write_atomically(path, page.encode())
    say(f"report: {path}")


def _story_of(folder: Path) -> "Story":
    # Each kind of folder brings a good part of the package with it.
    if (folder / "federation.json").exists():
        from flic.silos.story import story_of
    elif (folder / "config.json").exists():
        from flic.report.page.from_run import story_of
    else:
        raise RunFolderError(
            f"{folder} holds neither a run nor a fitted federation; expected a folder that flic "
            "run or flic fit made, with a config.json or a federation.json in it."
        )
    return story_of(folder)
