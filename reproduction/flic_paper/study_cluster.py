"""Cells of a study as tasks of a cluster; the command alone writes the study's folder."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from flic.digests import digest_of, digest_of_code
from flic.engine.cluster import Cluster
from flic.errors import ConfigError
from flic_paper.studies import STUDIES
from flic_paper.study import Cell, CellContext, Scope, Study
from flic_paper.study_folder import Tell, alone_at, keep, kept, work_folder, worked

HERE = Path(__file__).parent


def work_through_on(
    cluster: Cluster, study: Study, scope: Scope, folder: Path, *, tell: Tell, only: str = ""
) -> None:
    """Do all remaining cells on a cluster; each is kept as soon as it is done."""
    cells = [cell for cell in study.cells(scope) if only in cell.key]
    left = [cell for cell in cells if kept(folder, cell) is None]
    with ExitStack() as held:
        begun: list[tuple[Cell, ExitStack]] = []

        def wanted() -> Iterator[tuple[str, bool, tuple[int, ...] | None, str, str]]:
            for cell in left:
                lock = held.enter_context(ExitStack())
                alone = lock.enter_context(alone_at(work_folder(folder, cell)))
                if alone and kept(folder, cell) is None:
                    begun.append((cell, lock))
                    yield study.name, scope.quick, scope.seeds, cell.key, identity(cell)
                else:
                    lock.close()

        for done, (number, content) in enumerate(cluster.as_done(do_cell, wanted()), start=1):
            cell, lock = begun[number]
            keep(folder, cell, content)
            lock.close()
            tell(f"[{done}/{len(left)}] {cell.key}")


def identity(cell: Cell) -> str:
    """SHA-256 of what a cell is made with, other than flic itself."""
    return digest_of([cell.settings, cell.revision, digest_of_code(sources=HERE)])


def do_cell(study: str, quick: bool, seeds: tuple[int, ...] | None, key: str, wanted: str) -> bytes:
    """On a worker: the content of a cell's file."""
    cells = STUDIES[study].cells(Scope(quick, seeds)) if study in STUDIES else []
    cell = next((cell for cell in cells if cell.key == key), None)
    if cell is None or identity(cell) != wanted:
        raise ConfigError(
            f"its cell {key!r} is not the command's; expected the same flic-paper and the same "
            "folder experiments/. Copy the project there, and start the workers again."
        )
    with TemporaryDirectory() as folder:
        return worked(cell, CellContext(Path(folder), lambda line: None))
