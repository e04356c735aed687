"""The `flic` command. Each sub-command has its own file; this one dispatches."""

import sys
from importlib.metadata import entry_points
from typing import Annotated

import typer

from flic.cli.check import check
from flic.cli.compare import compare
from flic.cli.coordinator import app as coordinator
from flic.cli.fit import fit
from flic.cli.init import init
from flic.cli.join import join
from flic.cli.link import link
from flic.cli.predict import evaluate, predict
from flic.cli.report import report
from flic.cli.run import run
from flic.cli.screen import complain
from flic.cli.silo import app as silo
from flic.errors import ConfigError, FlicError

app = typer.Typer(
    help="Personalised federated learning for organisations that do not store the same columns.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(init)
app.command()(check)
app.command()(link)
app.command()(fit)
app.command()(predict)
app.command()(evaluate)
app.command()(join)
app.command()(run)
app.command()(compare)
app.command()(report)
app.add_typer(coordinator, name="coordinator")
app.add_typer(silo, name="silo")

#: Commands of the package `flic_paper`, which adds them by entry points.
OF_THE_PAPER = ("reproduce", "bench")


def _not_installed(name: str) -> None:
    """Add a placeholder that says how to install a command of the paper's package."""

    @app.command(name, hidden=True, context_settings={"ignore_unknown_options": True})
    def _refuse(rest: Annotated[list[str] | None, typer.Argument()] = None) -> None:
        del rest
        raise ConfigError(
            f"flic {name}: it is part of the package flic-paper, which is not installed; expected "
            "it beside flic. Install it from the project's folder: pip install ./reproduction"
        )


def _add_commands() -> None:
    """Add the commands of other packages, by their entry points."""
    added = {entry.name: entry for entry in sorted(entry_points(group="flic.commands"))}
    for name, entry in added.items():
        app.command(name)(entry.load())
    for name in OF_THE_PAPER:
        if name not in added:
            _not_installed(name)


_add_commands()


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"flic {version('flic')}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    del version


def main() -> None:
    """Run the command; an error that a user can cause shows a sentence, not a traceback."""
    try:
        app(prog_name="flic")
    except ConfigError as error:
        complain(error)
        sys.exit(2)
    except FlicError as error:
        complain(error)
        sys.exit(1)
    except OSError as error:
        complain(
            f"a file could not be read or written: {error}. Check that the disk has space and that "
            "you may use the file; then run the same command again."
        )
        sys.exit(1)
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and "alloc" not in str(error):
            raise
        complain("not enough memory for this run; choose fewer classes or smaller dimensions.")
        sys.exit(1)
