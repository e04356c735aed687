"""Events in a folder's log, a line of JSON each; a line torn by a power cut is passed over."""

import json
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from flic.files import open_with, parse_json, read_bytes

LOG = "log.jsonl"

MOST_LOG = 2**36
"""Most bytes of a log that is read; one of many years is smaller."""


def note(folder: Path, event: str, **facts: Any) -> None:
    """Add one line to the folder's log, and have it on the disk."""
    line = {"time": datetime.now(UTC).isoformat(timespec="seconds"), "event": event, **facts}
    # Reasons of failures may quote rows: nobody else may read them.
    with open_with(folder / LOG, "ab") as file:
        # A path may hold half of a pair, which would make the line one that is passed over.
        file.write(json.dumps(line, ensure_ascii=False).encode(errors="replace") + b"\n")
        file.flush()
        os.fsync(file.fileno())


def events(folder: Path) -> Iterator[dict[str, Any]]:
    """Lines of the folder's log, oldest first."""
    path = folder / LOG
    for line in read_bytes(path, most=MOST_LOG).splitlines() if path.exists() else ():
        try:
            yield parse_json(line)
        except ValueError:
            continue
