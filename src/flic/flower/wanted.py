"""The mark in a coordinator's folder that its run is to go on: DIR/wanted, while it is there."""

from pathlib import Path

WANTED = "wanted"


def want(folder: Path) -> None:
    """Have the run go on, whatever is killed meanwhile."""
    (folder / WANTED).touch(mode=0o600)


def is_wanted(folder: Path) -> bool:
    """Return whether the run is to go on."""
    return (folder / WANTED).exists()


def release(folder: Path) -> None:
    """Have the run begun no more: it is done, or must stop."""
    (folder / WANTED).unlink(missing_ok=True)
