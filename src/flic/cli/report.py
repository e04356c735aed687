"""`flic report`: writes the results of a run or a fitted federation as one HTML file."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flic.cli.screen import say
from flic.errors import RunFolderError
from flic.files import make_folder, write_atomically

if TYPE_CHECKING:
    from flic.page.contents import Report


def report(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="A finished run, or a fitted federation.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", metavar="FILE.html", help="File to write; DIR/report.html if not given."
        ),
    ] = None,
    tensorboard: Annotated[
        Path | None,
        typer.Option(metavar="LOGDIR", help="Also write the metrics per round for TensorBoard."),
    ] = None,
) -> None:
    """Write a report that opens in any browser, also offline: verdict, curves, traffic."""
    contents = _contents(folder)
    from flic.page.html import render

    page = render(contents)
    if tensorboard is not None:
        from flic.page.tensorboard import write_scalars

        say(f"metrics for TensorBoard: {write_scalars(contents, tensorboard)}")
    path = folder / "report.html" if out is None else out
    make_folder(path.parent)
    write_atomically(path, page.encode())
    say(f"report: {path}")


def _contents(folder: Path) -> "Report":
    # Each kind of folder needs many other modules of the package.
    if (folder / "federation.json").exists():
        from flic.page.from_fit import report_of_fit as report_of
    elif (folder / "config.json").exists():
        from flic.page.from_run import report_of_run as report_of
    else:
        raise RunFolderError(
            f"{folder} holds neither a run nor a fitted federation; expected a folder that flic "
            "run or flic fit made, with a config.json or a federation.json in it."
        )
    return report_of(folder)
