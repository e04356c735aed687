"""Screen output: progress bars on a terminal, plain lines elsewhere, tables, error messages."""

import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from threading import Event, Thread
from types import TracebackType
from typing import Any, Self

import typer
from rich import box
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Column, Table
from rich.text import Text

from flic.notation import plain

console = Console()

PATIENCE_S = 10.0
"""Time without output after which a notice is shown."""


def say(text: str, *, err: bool = False) -> None:
    """Print a text without control characters."""
    typer.echo(plain(text), err=err)


def complain(error: Exception | str) -> None:
    """Print an error as a sentence on standard error."""
    say(f"flic: {error}", err=True)


def notice(message: str) -> None:
    """Print a notice on standard error: something a user should know that stops nothing."""
    say(f"note: {message}", err=True)


class StepDisplay:
    """Progress of one run: steps done, loss terms, score, time left."""

    def __init__(self, title: str, *, quiet: bool) -> None:
        self._title = title
        self._quiet = quiet
        self._bar: Progress | None = None
        self._task: Any = None
        self._said = 0.0

    def __enter__(self) -> Self:
        if not self._quiet and console.is_terminal:
            self._bar = Progress(
                TextColumn("{task.description}", table_column=Column(no_wrap=True)),
                BarColumn(bar_width=16),
                MofNCompleteColumn(table_column=Column(no_wrap=True)),
                TimeElapsedColumn(table_column=Column(no_wrap=True)),
                TimeRemainingColumn(table_column=Column(no_wrap=True)),
                # On a narrow terminal, the facts are cut first.
                TextColumn(
                    "{task.fields[facts]}",
                    table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis"),
                ),
                console=console,
                expand=True,
            )
            self._bar.start()
            self._task = self._bar.add_task(plain(self._title), total=None, facts="")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def step(self, record: Mapping[str, Any], total: int, done: int) -> None:
        """Show that another step of a run is done."""
        self.advance(done, total, facts_of(record), stage=record["stage"])

    def advance(self, done: int, total: int, facts: str, *, stage: str | None = None) -> None:
        """Show the progress, and facts about it."""
        if self._quiet:
            return
        if self._bar is not None:
            self._bar.update(self._task, completed=done, total=total, facts=plain(facts))
        elif done == total or time.monotonic() - self._said > 1:
            self._said = time.monotonic()
            of = f" ({stage})" if stage else ""
            say(f"{self._title}: step {done} of {total}{of}{': ' if facts else ''}{facts}")


@contextmanager
def latest_line(*, quiet: bool) -> Generator[Callable[[str], None]]:
    """Shows lines: the latest in one place on a terminal, one every few seconds elsewhere."""
    if quiet:
        yield lambda line: None
    elif console.is_terminal:
        with console.status("") as status:
            yield lambda line: status.update(Text(plain(line)))
    else:
        said = float("-inf")

        def tell(line: str) -> None:
            nonlocal said
            if time.monotonic() - said > 5:
                said = time.monotonic()
                say(line)

        yield tell


@contextmanager
def still(doing: str) -> Generator[None]:
    """Show a notice every few seconds while something takes long."""
    done, begun = Event(), time.monotonic()

    def tell() -> None:
        while not done.wait(PATIENCE_S):
            notice(f"still {doing}, {time.monotonic() - begun:.0f} s so far")

    Thread(target=tell, daemon=True).start()
    try:
        yield
    finally:
        done.set()


def facts_of(record: Mapping[str, Any]) -> str:
    """Loss terms and score of a step."""
    terms = [f"{term} {value:.3g}" for term, value in record.get("losses", {}).items()]
    if record.get("scores"):  # under masks there are none if too few silos answer
        from flic.runs.metrics import scores_at

        scores = scores_at(record)
        terms.append(f"{scores.measure} {percent(scores.mean)} %")
    return ", ".join(terms)


def table(title: str, columns: list[str], rows: list[list[str]]) -> None:
    """Print a table, the first column left-aligned and the others right-aligned.

    Cells are never cut; on a narrow terminal, headings wrap. Square brackets are no markup, since
    a client may have them in its name.
    """
    columns, rows = [*map(plain, columns)], [[*map(plain, row)] for row in rows]
    # If the output is not a terminal, it is wide enough for every column.
    out = Console(width=None if console.is_terminal else _needed_width(columns, rows))
    shown = Table(title=Text(plain(title)), title_justify="left", box=box.SIMPLE, show_edge=False)
    shown.padding = (0, 1, 0, 0)
    cells = [max((len(row[i]) for row in rows), default=0) for i in range(len(columns))]
    widths = [max(len(c), w) for c, w in zip(columns, cells, strict=True)]
    if sum(widths) + 2 * len(widths) > out.width:
        words = [max(map(len, column.split()), default=0) for column in columns]
        widths = [max(*pair) for pair in zip(words, cells, strict=True)]
    for i, (column, width) in enumerate(zip(columns, widths, strict=True)):
        shown.add_column(Text(column), justify="left" if i == 0 else "right", width=width)
    for row in rows:
        shown.add_row(*map(Text, row))
    out.print(shown)


def _needed_width(columns: list[str], rows: list[list[str]]) -> int:
    """Width at which no cell is cut, for output that is not a terminal."""
    cells = [max((len(row[i]) for row in rows), default=0) for i in range(len(columns))]
    words = [max(map(len, column.split()), default=0) for column in columns]
    return max(120, sum(max(*pair) + 2 for pair in zip(words, cells, strict=True)))


def percent(share: float | None) -> str:
    """A share as a percentage, or a dash."""
    return "–" if share is None else f"{100 * share:.1f}"
