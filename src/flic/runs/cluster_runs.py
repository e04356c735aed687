"""Whole runs as tasks of a cluster: a worker does one, and its folder comes back as bytes.

The command alone writes, so the folder need not be shared with the workers.
"""

import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from flic.engine.cluster import Cluster
from flic.files import alone_in, make_folder, write_atomically
from flic.runs import run_folder
from flic.runs.loaded import Loaded, loaded_from
from flic.runs.run_folder import Finished

Files = list[tuple[str, bytes]]
"""Files of a finished run: path below its folder, and content."""


def finish(
    cluster: Cluster, runs: Iterable[tuple[Path, Loaded]]
) -> Iterator[tuple[Path, Finished]]:
    """Folder and outcome of each run, as it is done; a run begun in its folder is begun anew."""
    begun: dict[int, tuple[Path, Loaded]] = {}

    def texts() -> Iterator[tuple[str]]:
        for number, (folder, loaded) in enumerate(runs):
            run_folder.begin(folder, loaded)
            begun[number] = folder, loaded
            yield (loaded.text,)

    for number, files in cluster.as_done(do_run, texts()):
        folder, loaded = begun.pop(number)
        replace_files(folder, files)
        yield folder, run_folder.resume(folder, loaded=loaded)


def do_run(text: str) -> Files:
    """On a worker: the files of a run, done from beginning to end."""
    loaded = loaded_from(text)
    with TemporaryDirectory() as temporary:
        folder = Path(temporary)
        run_folder.resume(folder, loaded=loaded)
        paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
        return [(str(path.relative_to(folder)), path.read_bytes()) for path in paths]


def replace_files(folder: Path, files: Files) -> None:
    """Put a finished run in the place of what a folder has of it, all at once."""
    temporary = folder.with_name(f".{folder.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    content = (folder / "config.json").read_bytes()
    for name, own in [("config.json", content), *files]:
        make_folder((temporary / name).parent)
        write_atomically(temporary / name, own)
    former = folder.with_name(f".{folder.name}.former")
    with alone_in(folder):
        folder.rename(former)  # kept until the finished run is in its place
        temporary.rename(folder)
    shutil.rmtree(former)
