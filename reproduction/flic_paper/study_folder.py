"""Work on a study: cell by cell, in one process or several, each kept once done.

OUT/
  study.json       name of the study, and whether it is the quick one
  environment.json versions and machine
  cells/KEY.json   result and seconds of every finished cell
  work/KEY/        files of an unfinished cell, to resume it
  NAME.csv         each table; results.md has all of them, with the figures
  NAME.png         each figure
"""

import json
import multiprocessing
import os
import re
import shutil
import signal
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

from flic.config import validate
from flic.digests import environment
from flic.engine.runners import leave_with_parent
from flic.errors import ConfigError, FlicError, RunFolderError
from flic.files import lock, write_atomically, write_json
from flic.settings import read_object
from flic_paper.studies import STUDIES
from flic_paper.study import Cell, CellContext, Scope, Study

Tell = Callable[[str], None]


def open_folder(study: Study, scope: Scope, folder: Path) -> None:
    """Make the folder of a study, or accept one of the same study."""
    wanted = {"study": study.name, "quick": scope.quick}
    path = folder / "study.json"
    if path.exists():
        found = _read_object(path)
        if found != wanted:
            raise RunFolderError(
                f"{folder} holds {_describe(found)}; expected {_describe(wanted)} or an empty "
                "folder. Choose another with --out."
            )
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        above = (folder, *folder.parents)
        file = next((path for path in above if path.exists() and not path.is_dir()), folder)
        raise RunFolderError(
            f"--out: got {folder}, but {file} is a file; expected a folder. Name another."
        ) from None
    write_json(folder / "environment.json", {**environment(), "cores": os.cpu_count()})
    write_json(path, wanted)


def _describe(found: dict[str, Any]) -> str:
    return f"the {'quick' if found.get('quick') else 'full'} study {found.get('study')!r}"


def _read_object(path: Path) -> dict[str, Any]:
    return read_object(path, remedy="Delete it to have its part done again.")


def work_through(
    study: Study, scope: Scope, folder: Path, *, workers: int, tell: Tell, only: str = ""
) -> None:
    """Do all remaining cells with that many processes; `only` is part of their key."""
    spawn = multiprocessing.get_context("spawn")
    helpers = [
        spawn.Process(target=_help, args=(study.name, scope, folder, only), daemon=True)
        for _ in range(workers - 1)
    ]
    for helper in helpers:
        helper.start()
    _work(study, scope, folder, only, tell)
    for helper in helpers:
        helper.join()
    # Cells that a helper that died has left undone.
    _work(study, scope, folder, only, tell)


def _help(name: str, scope: Scope, folder: Path, only: str) -> None:
    threading.Thread(target=leave_with_parent, daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends, and this process with it
    # The parent meets the same error when it comes to the cell, and reports it.
    with suppress(FlicError):
        _work(STUDIES[name], scope, folder, only, lambda line: None)


def _work(study: Study, scope: Scope, folder: Path, only: str, tell: Tell) -> None:
    """Do all cells that no other process has done or is working on."""
    torch.set_num_threads(1)
    cells = [cell for cell in study.cells(scope) if only in cell.key]
    for number, cell in enumerate(cells, start=1):
        if kept(folder, cell) is not None:
            continue
        with alone_at(work_folder(folder, cell)) as alone:
            if alone and kept(folder, cell) is None:
                _do(cell, folder, lambda line, n=number: tell(f"[{n}/{len(cells)}] {line}"))


def _do(cell: Cell, folder: Path, tell: Tell) -> None:
    tell(cell.key)
    own = work_folder(folder, cell)
    keep(folder, cell, worked(cell, CellContext(own, lambda line: tell(f"{cell.key}: {line}"))))


def worked(cell: Cell, context: CellContext) -> bytes:
    """Do a cell; returns the content of its file."""
    started = time.perf_counter(), time.process_time()
    result = cell.work(context)
    seconds = time.perf_counter() - started[0], time.process_time() - started[1]
    found = {"result": result, "seconds": seconds[0], "cpu_seconds": seconds[1]}
    found |= {"settings": cell.settings, "revision": cell.revision}
    return json.dumps(found, allow_nan=False).encode()


def keep(folder: Path, cell: Cell, content: bytes) -> None:
    """Write the file of a finished cell, and remove those of its work."""
    path = _result_file(folder, cell)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, content)
    shutil.rmtree(work_folder(folder, cell), ignore_errors=True)


@contextmanager
def alone_at(folder: Path) -> Generator[bool]:
    """Lock a cell inside the block; False if another process has it."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f".{folder.name}.lock").open("w") as file:
        yield lock(file)


def finished(study: Study, scope: Scope, folder: Path) -> dict[str, dict[str, Any]]:
    """Stored results of the finished cells of a study, by key."""
    found = {cell.key: kept(folder, cell) for cell in study.cells(scope)}
    return {key: own for key, own in found.items() if own is not None}


def missing(study: Study, scope: Scope, folder: Path) -> Sequence[str]:
    """Keys of the remaining cells."""
    return [cell.key for cell in study.cells(scope) if kept(folder, cell) is None]


def outdated(study: Study, scope: Scope, folder: Path) -> Sequence[str]:
    """Keys of the cells whose results come from another revision of their method."""
    undone = [cell for cell in study.cells(scope) if kept(folder, cell) is None]
    return [cell.key for cell in undone if _result_file(folder, cell).exists()]


def scope_of_kept(scope: Scope, folder: Path) -> Scope:
    """The scope with the seeds of all cells in the folder, requested or not."""
    stems = (path.stem for path in (folder / "cells").rglob("*.json"))
    seeds = {int(match[0]) for stem in stems if (match := re.search(r"\d+$", stem))}
    return Scope(scope.quick, tuple(sorted(seeds)))


def kept(folder: Path, cell: Cell) -> dict[str, Any] | None:
    """Stored result of a cell, or None; refused if its settings differ."""
    path = _result_file(folder, cell)
    if not path.exists():
        return None
    found = _read_object(path)
    if found.get("revision", 1) != cell.revision:
        return None
    if not _same(found.get("settings"), json.loads(json.dumps(cell.settings))):
        raise RunFolderError(
            f"{path} holds a result of other settings than cell {cell.key!r} has now; expected the "
            "same. Delete the file to have it done again, or choose another folder with --out."
        )
    return found


def _same(kept: Any, wanted: Any) -> bool:
    """Return whether settings are the same, with defaults in the kept ones for keys added since."""
    if isinstance(kept, list) and isinstance(wanted, list):
        return len(kept) == len(wanted) and all(map(_same, kept, wanted))
    if kept == wanted or not isinstance(kept, dict):
        return kept == wanted
    try:
        return validate(kept, source="kept settings").model_dump(mode="json") == wanted
    except ConfigError:
        return False


def work_folder(folder: Path, cell: Cell) -> Path:
    """Folder of a cell's work; each revision has its own, since it cannot resume another's."""
    suffix = f"@revision{cell.revision}" if cell.revision > 1 else ""
    return folder / "work" / f"{_path(cell)}{suffix}"


def _result_file(folder: Path, cell: Cell) -> Path:
    return folder / "cells" / f"{_path(cell)}.json"


def _path(cell: Cell) -> str:
    """A cell's key as a path that every file system accepts."""
    return re.sub(r"[^\w./@-]+", "-", cell.key)
