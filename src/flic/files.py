"""Files that are whole whatever interrupts a write, and that only their owner may read."""

import os
from pathlib import Path
from typing import IO, Any

PRIVATE = 0o600
FOR_ALL = 0o666
"""Whoever the umask lets: for pages that are made to be shown."""


def write_atomically(path: Path, content: bytes, *, mode: int = PRIVATE) -> None:
    """Write a file so that it is either the old one or the new one, whole."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open_with(temporary, "wb", mode=mode) as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    _sync_folder(path.parent)


def open_with(path: Path, how: str, *, mode: int = PRIVATE, **options: Any) -> IO[Any]:
    """A file opened as `open` does; a new one has this mode from its first moment."""
    return open(path, how, opener=lambda name, flags: os.open(name, flags, mode), **options)


def make_folder(folder: Path) -> None:
    """Make a folder, and those missing above it, that only its owner may enter."""
    missing = [place for place in (folder, *folder.parents) if not place.exists()]
    for place in [*reversed(missing), folder]:
        place.mkdir(0o700, exist_ok=True)


def _sync_folder(folder: Path) -> None:
    """Make a rename last through a power cut, where the system can."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
