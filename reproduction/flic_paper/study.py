"""Study: cells of work that are kept once done, then tables and figures from them.

A study is one table or figure of the paper, in a file of `studies` that defines `STUDY`. Its
cells do not depend on each other; the result of each is a JSON value.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Value = str | int | float | None
"""Value in a field of a table."""

Results = Mapping[str, Any]
"""Results of finished cells by key."""


@dataclass(frozen=True)
class Scope:
    """Scope of a study: quick or full, and its seeds."""

    quick: bool = False  # a minute's version of the same code path
    seeds: tuple[int, ...] | None = None  # None: the study's own number

    def seeds_or(self, number: int, *, first: int = 0) -> tuple[int, ...]:
        """The seeds asked for, or else `number` of them from `first` on; one seed if quick."""
        return self.seeds or tuple(range(first, first + (1 if self.quick else number)))


@dataclass(frozen=True)
class CellContext:
    """The folder of a cell, which may have files of an earlier attempt, and its progress line."""

    folder: Path
    tell: Callable[[str], None]  # a line of progress


@dataclass(frozen=True)
class Cell:
    """One unit of work. `key` names its result, with `/` between its parts; it ends in the seed.

    A kept result is the cell's own only if its `settings`, a JSON value, are the same. A result of
    another `revision` of the work counts as not done.
    """

    key: str
    work: Callable[[CellContext], Any]
    settings: Any = None
    revision: int = 1


@dataclass(frozen=True)
class Table:
    """A table of results; `name` is the file's name, without suffix."""

    name: str
    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Value]]
    note: str = ""
    brief: "Table | None" = None  # what a page shows in its place, the rest being in the file

    def cut(
        self, columns: Collection[str], is_shown: Callable[[Mapping[str, Value]], bool]
    ) -> "Table":
        """The table with a brief form: some of its columns, and the rows that answer its question.

        A column without any value is left out.
        """
        lines = [dict(zip(self.columns, row, strict=True)) for row in self.rows]
        shown = [line for line in lines if is_shown(line)]
        kept = [c for c in self.columns if c in columns and any(x[c] is not None for x in shown)]
        rows = [[line[column] for column in kept] for line in shown]
        return replace(self, brief=replace(self, columns=kept, rows=rows))


WHICH = "which seeds"
"""Column with the seeds behind a row."""


def listed(seeds: Iterable[int]) -> str:
    """Seeds as text: 0-4, or 0, 3, 7."""
    numbers = sorted(seeds)
    least, most = numbers[0], numbers[-1]
    if len(numbers) > 2 and most - least == len(numbers) - 1:
        return f"{least}-{most}"
    return ", ".join(map(str, numbers))


class Study(ABC):
    """One table or figure of the paper."""

    name: ClassVar[str]  # what a user types
    title: ClassVar[str]  # one line for `--list`
    paper: ClassVar[str]  # its label in the paper, or where it comes from

    @abstractmethod
    def cells(self, scope: Scope) -> Sequence[Cell]:
        """All cells of the study, in the order in which they are done."""

    @abstractmethod
    def tables(self, results: Results, scope: Scope) -> Sequence[Table]:
        """Tables from the cells finished so far; the scope has the seeds of all of them."""

    @abstractmethod
    def figures(self, results: Results, scope: Scope) -> Mapping[str, "Figure"]:
        """Figures by file name, without suffix, from the cells finished so far."""
