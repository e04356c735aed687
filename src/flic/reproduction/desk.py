"""How a study is worked through: cell by cell, in one process or several, each kept once done.

OUT/
  study.json       which study, and whether it is the quick one
  environment.json versions and machine
  cells/KEY.json   result and seconds of every finished cell
  work/KEY/        what an unfinished cell needs to go on
  NAME.csv         each table; results.md has all of them, with the figures
  NAME.png         each figure
"""

import fcntl
import json
import multiprocessing
import os
import re
import shutil
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from flic.errors import RunFolderError
from flic.federation.checkpoint import write_atomically
from flic.report.run_folder import environment
from flic.reproduction.studies import STUDIES
from flic.reproduction.study import Cell, Desk, Scope, Study

Tell = Callable[[str], None]


def open_folder(study: Study, scope: Scope, folder: Path) -> None:
    """Folder of a study, new or made by the same study before."""
    wanted = {"study": study.name, "quick": scope.quick}
    path = folder / "study.json"
    if path.exists():
        found = json.loads(path.read_bytes())
        if found != wanted:
            raise RunFolderError(
                f"{folder} holds {_describe(found)}; expected {_describe(wanted)} or an empty "
                "folder. Choose another with --out."
            )
        return
    folder.mkdir(parents=True, exist_ok=True)
    _write_json(folder / "environment.json", {**environment(), "cores": os.cpu_count()})
    _write_json(path, wanted)


def _describe(found: dict[str, Any]) -> str:
    return f"the {'quick' if found['quick'] else 'full'} study {found['study']!r}"


def work_through(
    study: Study, scope: Scope, folder: Path, *, workers: int, tell: Tell, only: str = ""
) -> None:
    """Do all cells that are not done yet, with that many processes; `only` is part of their key."""
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
    # What a helper that died has left undone.
    _work(study, scope, folder, only, tell)


def _help(name: str, scope: Scope, folder: Path, only: str) -> None:
    _work(STUDIES[name], scope, folder, only, lambda line: None)


def _work(study: Study, scope: Scope, folder: Path, only: str, tell: Tell) -> None:
    """All cells that no other process has done or is at; theirs are passed over."""
    torch.set_num_threads(1)
    cells = [cell for cell in study.cells(scope) if only in cell.key]
    for number, cell in enumerate(cells, start=1):
        if _result_file(folder, cell).exists():
            continue
        with _alone_at(folder / "work" / _path(cell)) as alone:
            if alone and not _result_file(folder, cell).exists():
                _do(cell, folder, lambda line, n=number: tell(f"[{n}/{len(cells)}] {line}"))


def _do(cell: Cell, folder: Path, tell: Tell) -> None:
    place = folder / "work" / _path(cell)
    started = time.perf_counter(), time.process_time()
    tell(cell.key)
    result = cell.work(Desk(place, lambda line: tell(f"{cell.key}: {line}")))
    seconds = time.perf_counter() - started[0], time.process_time() - started[1]
    path = _result_file(folder, cell)
    path.parent.mkdir(parents=True, exist_ok=True)
    found = {"result": result, "seconds": seconds[0], "cpu_seconds": seconds[1]}
    write_atomically(path, json.dumps(found, allow_nan=False).encode())
    shutil.rmtree(place, ignore_errors=True)


@contextmanager
def _alone_at(place: Path) -> Generator[bool]:
    """Whether this process is the only one at a cell; it stays so inside the block."""
    place.parent.mkdir(parents=True, exist_ok=True)
    with place.with_name(f".{place.name}.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True


def finished(study: Study, scope: Scope, folder: Path) -> dict[str, dict[str, Any]]:
    """What the finished cells of a study left, by key."""
    found = {}
    for cell in study.cells(scope):
        path = _result_file(folder, cell)
        if path.exists():
            found[cell.key] = json.loads(path.read_bytes())
    return found


def missing(study: Study, scope: Scope, folder: Path) -> Sequence[str]:
    """Keys of the cells still to be done."""
    return [c.key for c in study.cells(scope) if not _result_file(folder, c).exists()]


def _result_file(folder: Path, cell: Cell) -> Path:
    return folder / "cells" / f"{_path(cell)}.json"


def _path(cell: Cell) -> str:
    """A cell's key as a path that every file system takes."""
    return re.sub(r"[^\w./@-]+", "-", cell.key)


def _write_json(path: Path, value: object) -> None:
    write_atomically(path, json.dumps(value, indent=1).encode())
