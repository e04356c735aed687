"""A log that nobody can flood or forge: few lines of one kind a minute, each of them one line."""

import logging
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

PER_SOURCE, IN_ALL = 5, 30  # warnings of one kind between two counts, of one address and of all
LONGEST = 500  # characters of a warning
COUNTED = "counted"  # marks the lines that say what was left out

CodeLine = tuple[str, int]
"""A file of code and the number of a line."""


@dataclass
class Lines:
    """Warnings of one kind since the last count."""

    example: str
    passed: Counter[str] = field(default_factory=Counter)
    left_out: Counter[str] = field(default_factory=Counter)

    def take(self, source: str) -> bool:
        """Count a line about this source, and return whether it is written."""
        everyone = self.passed.total() >= IN_ALL
        if everyone or self.passed[source] >= PER_SOURCE:
            # Of sources beyond those that were named, only how many: there may be very many.
            self.left_out[source if source in self.passed else "others"] += 1
            return False
        self.passed[source] += 1
        return True


class Quota(logging.Filter):
    """Passes the first warnings of each kind on, cut and without line ends; counts the others.

    A kind is a line of the code. A record names its source as `extra={"peer": …}`.
    """

    def __init__(self) -> None:
        super().__init__()
        self._kinds: dict[CodeLine, Lines] = {}

    def limit(self, handlers: Iterable[logging.Handler]) -> None:
        """Stand before these handlers."""
        for handler in handlers:
            handler.addFilter(self)

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a record is written."""
        if record.levelno < logging.WARNING or hasattr(record, COUNTED):
            return True
        record.msg, record.args = one_line(record.getMessage(), LONGEST), ()
        kind = (record.pathname, record.lineno)
        lines = self._kinds.setdefault(kind, Lines(record.msg))
        if lines.passed:  # one traceback of a kind is enough
            record.exc_info = record.exc_text = record.stack_info = None
        return lines.take(getattr(record, "peer", ""))

    def tell(self, log: logging.Logger) -> None:
        """Say how many lines were left out since the last time, and count anew."""
        kinds, self._kinds = self._kinds, {}
        for lines in kinds.values():
            if lines.left_out:
                counts = [f"{n} of {source or 'them'}" for source, n in lines.left_out.items()]
                told = (lines.example, ", ".join(counts))
                log.warning("left out lines like “%s”: %s", *told, extra={COUNTED: True})


def one_line(text: str, longest: int) -> str:
    """The beginning of a text without characters that move the cursor or end the line."""
    shown = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text[:longest])
    return shown if len(text) <= longest else f"{shown}…"
