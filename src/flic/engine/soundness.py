"""Tensors of a checkpoint that no step of its run writes, though their checksums are right."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from flic.settings import damaged
from flic.shapes import Named, unlike_forms

_ODD = "is missing, unknown or not what the settings make"


def wrong_in_shared(unsound: Iterable[str], shared: Named) -> Iterator[str]:
    """Sentences on a shared part; `unsound` names its tensors of other forms than expected."""
    yield from (f"the shared {name[:40]!r} {_ODD}" for name in unsound)
    yield from (f"the shared {name!r} is not finite" for name in _infinite(shared))


def wrong_in_state(client: str, known: Named, state: Named) -> Iterator[str]:
    """Sentences on a client's private state, whose tensors are known before its first visit."""
    wrong = unlike_forms(known, state) or _infinite(state)
    yield from (f"{name[:40]!r} of client {client!r} {_ODD}" for name in wrong)


def refuse_wrong(folder: Path, wrong: Iterator[str]) -> None:
    """Refuse the checkpoints of a run if there is anything wrong with them."""
    first = next(wrong, None)
    if first is not None:
        raise damaged(folder, first, remedy="Start the run anew in another folder.")


def _infinite(tensors: Named) -> list[str]:
    return [name for name, value in tensors.items() if not bool(value.isfinite().all())]
