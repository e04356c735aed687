"""Files: bounded reading, atomic writing, folder locks; all for their owner alone."""

import errno
import fcntl
import io
import json
import os
import stat
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from flic.errors import RunFolderError

PRIVATE = 0o600
FOR_ALL = 0o666
"""Whoever the umask lets: for pages that are made to be shown."""

MOST_BYTES = 2**30
"""Of a file that is read as a whole: no settings or results of flic come near it."""

MOST_LEVELS = 64
"""Of values within values: none of flic's own come near it, and a few hundred end Python."""


class Counted(io.FileIO):
    """An ordinary file, open for reading, that ends in an error after `most` bytes.

    Pipes and devices are refused: they have no end, or make whoever opens them wait. Bytes are
    counted as they are read, since a file may grow meanwhile.

    Raises:
        OSError: no such file, or not an ordinary one; while reading, `EFBIG`.
    """

    def __init__(self, path: Path, *, most: int | None = None) -> None:
        super().__init__(path, opener=_open_ordinary)
        self._most = most

    def readinto(self, buffer: Any, /) -> int | None:
        """Number of bytes read."""
        count = super().readinto(buffer)
        if self._most is not None and self.tell() > self._most:
            raise OSError(errno.EFBIG, f"it has more than {self._most:,} bytes")
        return count

    # What FileIO has for these passes by the counting.
    def read(self, size: int | None = -1, /) -> Any:
        """Bytes, at most so many."""
        return io.RawIOBase.read(self, -1 if size is None else size)

    def readall(self) -> Any:
        """All bytes that are left."""
        return io.RawIOBase.readall(self)


def _open_ordinary(path: str, flags: int) -> int:
    # A plain open would wait for somebody to write into a pipe.
    handle = os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY)
    if stat.S_ISREG(mode := os.fstat(handle).st_mode) or stat.S_ISDIR(mode):
        return handle  # of folders, Python says so itself
    os.close(handle)
    raise OSError(errno.EINVAL, "it is a pipe or a device, and no ordinary file")


def read_bytes(path: Path, *, most: int = MOST_BYTES) -> bytes:
    """Content of an ordinary file.

    Raises:
        OSError: no such file, not an ordinary one, or a larger one.
    """
    with Counted(path, most=most) as file:
        return file.readall()


def read_json(path: Path) -> Any:
    """Values of a JSON file.

    Raises:
        OSError: it cannot be read.
        ValueError: it is no JSON, or nested too deep.
    """
    return parse_json(read_bytes(path))


def parse_json(content: str | bytes) -> Any:
    """Values of a JSON text.

    Raises:
        ValueError: it is no JSON, or nested too deep.
    """
    try:
        value = json.loads(content)
    except RecursionError:
        raise too_deep() from None
    refuse_deep(value)
    return value


def refuse_deep(value: object) -> None:
    """Refuse values in so many levels that who walks through them runs out of stack.

    Raises:
        ValueError: there are more than `MOST_LEVELS`.
    """
    level = [value]
    for _ in range(MOST_LEVELS):
        level = [v for own in level for v in _within(own) if isinstance(v, dict | list)]
        if not level:
            return
    raise too_deep()


def too_deep() -> ValueError:
    """What is said of values in too many levels."""
    return ValueError(f"it has values within values in more than {MOST_LEVELS} levels")


def _within(value: object) -> Any:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


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


@contextmanager
def alone_in(folder: Path, *, patience_s: float = 0.0) -> Generator[None]:
    """Keep a second process out of a run folder; the lock ends with the process that holds it."""
    until = time.monotonic() + patience_s
    with open_with(folder / ".lock", "w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= until:
                    raise RunFolderError(
                        f"{folder} is being worked on by another process; expected to be alone "
                        "there. Wait for it to end, or stop it."
                    ) from None
                time.sleep(0.2)
        yield


def _sync_folder(folder: Path) -> None:
    """Make a rename last through a power cut, where the system can."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
