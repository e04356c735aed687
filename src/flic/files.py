"""Files: bounded reading, atomic writing, locks; only the owner has access."""

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
"""Mode of files that everyone may read, as far as the umask allows: pages to be shown."""

MOST_BYTES = 2**30
"""Most bytes of a file that is read as a whole; files of flic are far smaller."""

MOST_BITS = 4096
"""Most bits of a whole number in settings; one of four times as many Python cannot even print."""

MOST_LEVELS = 64
"""Most levels of nested values; flic's own have far fewer, and a few hundred crash Python."""


class BoundedFile(io.FileIO):
    """An ordinary file, open for reading, that raises an error after `most` bytes.

    Pipes and devices are refused: they may have no end, or block. Bytes are counted as they are
    read, since a file may grow meanwhile.

    Raises:
        OSError: no such file, or not an ordinary one; while reading, `EFBIG`.
    """

    def __init__(self, path: Path, *, most: int | None = None) -> None:
        super().__init__(path, opener=_open_ordinary)
        self._most = most

    def readinto(self, buffer: Any, /) -> int | None:
        """Read into a buffer; returns the number of bytes."""
        count = super().readinto(buffer)
        if self._most is not None and self.tell() > self._most:
            raise OSError(errno.EFBIG, f"it has more than {self._most:,} bytes")
        return count

    # FileIO's own versions of these do not count.
    def read(self, size: int | None = -1, /) -> Any:
        """Read at most `size` bytes."""
        return io.RawIOBase.read(self, -1 if size is None else size)

    def readall(self) -> Any:
        """Read all remaining bytes."""
        return io.RawIOBase.readall(self)


def _open_ordinary(path: str, flags: int) -> int:
    # A plain open would wait until someone writes into a pipe.
    handle = os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY)
    if stat.S_ISREG(mode := os.fstat(handle).st_mode) or stat.S_ISDIR(mode):
        return handle  # Python itself refuses folders
    os.close(handle)
    raise OSError(errno.EINVAL, "it is a pipe or a device, and no ordinary file")


def read_bytes(path: Path, *, most: int = MOST_BYTES) -> bytes:
    """Content of an ordinary file.

    Raises:
        OSError: no such file, not an ordinary one, or a larger one.
    """
    with BoundedFile(path, most=most) as file:
        return file.readall()


def read_json(path: Path) -> Any:
    """Values of a JSON file.

    Raises:
        OSError: it cannot be read.
        ValueError: it is no JSON, or nested too deep.
    """
    return parse_json(read_bytes(path))


def _whole(digits: str) -> int:
    """A whole number of up to 64 bits, as Flower's numbers of nodes have; flic writes no larger."""
    value = int(digits)
    if not -(2**63) <= value < 2**64:
        raise ValueError(f"a number of {len(digits)} digits; expected at most 64 bits")
    return value


def parse_json(content: str | bytes) -> Any:
    """Values of a JSON text.

    Raises:
        ValueError: it is no JSON, nested too deep, or has text or numbers that no file can hold.
    """
    # Bytes would be read with halves of pairs, which no text may have.
    content = content.decode() if isinstance(content, bytes) else content
    try:
        value = json.loads(content, parse_int=_whole)
    except RecursionError:
        raise too_deep() from None
    refuse_deep(value)
    if "\\u" in content:
        json.dumps(value, ensure_ascii=False).encode()  # half of a pair of \u escapes fails here
    return value


def refuse_deep(value: object) -> None:
    """Refuse values nested so deep that a recursion through them runs out of stack.

    Raises:
        ValueError: there are more than `MOST_LEVELS`.
    """
    level = [value]
    for _ in range(MOST_LEVELS):
        level = [v for own in level for v in _within(own) if isinstance(v, dict | list)]
        if not level:
            return
    raise too_deep()


def refuse_large(value: object) -> None:
    """Refuse whole numbers of more than `MOST_BITS` within values that are not nested too deep.

    Raises:
        ValueError: there is one.
    """
    if isinstance(value, int) and value.bit_length() > MOST_BITS:
        raise too_large()
    for own in _within(value):
        refuse_large(own)


def too_large() -> ValueError:
    """Error for a whole number that is too large."""
    return ValueError(f"it has a whole number of more than {MOST_BITS} bits; expected fewer")


def too_deep() -> ValueError:
    """Error for values nested too deep."""
    return ValueError(f"it has values within values in more than {MOST_LEVELS} levels")


def _within(value: object) -> Any:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def write_atomically(path: Path, content: bytes, *, mode: int = PRIVATE) -> None:
    """Write a file so that it is always either the whole old one or the whole new one."""
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


def write_json(path: Path, value: object) -> None:
    """Write plain values as a JSON file, whole."""
    write_atomically(path, json_bytes(value))


def json_bytes(value: object) -> bytes:
    """Plain values as the content of a JSON file."""
    return json.dumps(value, indent=1, ensure_ascii=False).encode()


def open_with(path: Path, how: str, *, mode: int = PRIVATE, **options: Any) -> IO[Any]:
    """Open a file as `open` does; a new file has this mode from the start."""
    return open(path, how, opener=lambda name, flags: os.open(name, flags, mode), **options)


def make_folder(folder: Path) -> None:
    """Make a folder, and those missing above it, that only its owner may enter."""
    missing = [own for own in (folder, *folder.parents) if not own.exists()]
    for own in [*reversed(missing), folder]:
        own.mkdir(0o700, exist_ok=True)


def refuse_occupied(
    folder: Path, *, remedy: str, holds: str = "something", ignored: str | None = None
) -> None:
    """Refuse a folder with anything in it, or a file of that name.

    Args:
        folder: where a new folder is to be.
        remedy: what to do, for the error.
        holds: what the folder holds, for the error.
        ignored: pattern of the names of files that do not count.

    Raises:
        RunFolderError: it is not free.
    """
    if not folder.exists():
        return
    if folder.is_dir() and all(ignored and path.match(ignored) for path in folder.iterdir()):
        return
    raise RunFolderError(
        f"{folder} already holds {holds}; expected a new or empty folder. {remedy}"
    )


@contextmanager
def alone_in(folder: Path, *, patience_s: float = 0.0) -> Generator[None]:
    """Lock a folder against a second process; the lock ends with the process that holds it."""
    with open_with(folder / ".lock", "w") as file:
        if not lock(file, patience_s=patience_s):
            raise RunFolderError(
                f"{folder} is being worked on by another process; expected to be alone there. Wait "
                "for it to end, or stop it."
            )
        yield


def is_worked_on(folder: Path) -> bool:
    """Return whether a process is `alone_in` the folder."""
    with open_with(folder / ".lock", "w") as file:
        return is_locked(file)


def lock(file: IO[Any] | int, *, patience_s: float = 0.0) -> bool:
    """Lock an open file until it is closed; False if another process keeps it all that time."""
    until = time.monotonic() + patience_s
    while not _takes(file, fcntl.LOCK_EX):
        if time.monotonic() >= until:
            return False
        time.sleep(0.05)
    return True


def is_locked(file: IO[Any]) -> bool:
    """Return whether another process has locked an open file; the caller closes it at once."""
    return not _takes(file, fcntl.LOCK_SH)  # shared, so that two who look do not meet each other


def _takes(file: IO[Any] | int, kind: int) -> bool:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _sync_folder(folder: Path) -> None:
    """Make a rename survive a power cut, if the system can."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
