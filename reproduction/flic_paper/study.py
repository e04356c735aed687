"""What a reproduction is: cells of work that are kept once done, then tables and a figure.

A study is one table or figure of the paper, in a file beside this one that defines `STUDY`. Its
cells do not depend on each other; each one's result is a JSON value of its own.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Value = str | int | float | None
"""What stands in a field of a table."""

Results = Mapping[str, Any]
"""Results of finished cells by key."""


@dataclass(frozen=True)
class Scope:
    """How much of a study to do."""

    quick: bool = False  # a minute's version of the same code path
    seeds: tuple[int, ...] | None = None  # None: the study's own number

    def seeds_or(self, number: int) -> tuple[int, ...]:
        """The seeds asked for, or the first `number`; one where it must be quick."""
        return self.seeds or tuple(range(1 if self.quick else number))


@dataclass(frozen=True)
class Desk:
    """Where a cell does its work: a folder of its own, which may hold an earlier attempt."""

    folder: Path
    tell: Callable[[str], None]  # a line of progress


@dataclass(frozen=True)
class Cell:
    """One unit of work. `key` names its result, with `/` between its parts; it ends in the seed.

    A kept result is taken for the cell's own only while `settings`, a JSON value, are the same.
    One of another `revision` of the work counts as not done.
    """

    key: str
    work: Callable[[Desk], Any]
    settings: Any = None
    revision: int = 1


@dataclass(frozen=True)
class Table:
    """Figures people read; `name` is the file's name, without suffix."""

    name: str
    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Value]]
    note: str = ""


WHICH = "which seeds"
"""Column that says what a row rests on."""


def listed(seeds: Iterable[int]) -> str:
    """Seeds as a row names them: 0-4, or 0, 3, 7."""
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
        """All work of the study, in the order it is done."""

    @abstractmethod
    def tables(self, results: Results, scope: Scope) -> Sequence[Table]:
        """Tables from the cells finished so far; the scope's seeds are those of any of them."""

    @abstractmethod
    def figures(self, results: Results, scope: Scope) -> Mapping[str, "Figure"]:
        """Figures by file name, without suffix, from the cells finished so far."""
