"""Request that a coordinator's run goes on: the empty file DIR/wanted, while it is there."""

from pathlib import Path

WANTED = "wanted"


def request_run(folder: Path) -> None:
    """Have the run go on, whatever is killed meanwhile."""
    (folder / WANTED).touch(mode=0o600)


def is_requested(folder: Path) -> bool:
    """Return whether the run is to go on."""
    return (folder / WANTED).exists()


def clear_request(folder: Path) -> None:
    """Have the run begun no more: it is done, or must stop."""
    (folder / WANTED).unlink(missing_ok=True)
