"""A fitted federation as a folder: JSON, safetensors and a model card; loading runs no code.

DIR/
  federation.json    version, task, labels, settings, clients; SHA-256 of every other file
  verdict.json       the verdict
  results.parquet    figures of every split, candidate, client and metric
  rounds.json        flic's rounds: loss terms, bytes sent
  report_data.json   plain values for the report
  shared.safetensors α and the anchors, for newcomers
  linked.safetensors sums over all clients of linked columns, likewise
  clients/00-NAME/   one folder per client, which a real one keeps to itself:
    client.json        columns, labels and the fitted encoder
    model.json, model.safetensors or model.skops
    trained.digests    by which its training rows are known again in any file
  README.md          the model card

A folder is written under another name and renamed, so that it is there whole or not at all.
"""

import shutil
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from safetensors import SafetensorError

from flic.digests import digest, digest_of
from flic.errors import Damaged, RunFolderError
from flic.files import make_folder, read_bytes, read_json, refuse_occupied, write_atomically
from flic.settings import damaged, in_words
from flic.silos.fitted import FittedFederation
from flic.silos.fitted_files import MANIFEST, VERSION, Manifest, federation_of, files_of

WAITING = ".partial"  # new files of an unfinished update


def refuse_unwritable(folder: Path) -> None:
    """Refuse, before work starts, a folder that is not empty or cannot be written to."""
    try:
        refuse_occupied(folder, remedy="Choose another with --out, or remove it.")
        nearest = next(above for above in folder.resolve().parents if above.exists())
        TemporaryDirectory(dir=nearest).cleanup()  # permissions alone promise nothing
    except OSError as error:
        raise RunFolderError(
            f"{folder} cannot be made ({error.strerror}); expected a place for a new folder. "
            "Choose another with --out."
        ) from None


def unfinished(folder: Path) -> Path:
    """The folder beside it that keeps the finished work of a fit (flic.silos.fit_cache)."""
    whole = folder.resolve()
    return whole.with_name(f".{whole.name}.unfinished")


def save(fitted: FittedFederation, folder: Path) -> None:
    """Write a new folder, whole or not at all; delete the cache of its fit."""
    refuse_unwritable(folder)
    folder = folder.resolve()  # "." has no name to write beside
    make_folder(folder.parent)
    partial = folder.with_name(f".{folder.name}.partial")
    try:
        _write(files_of(fitted), partial)
        partial.replace(folder)
        shutil.rmtree(unfinished(folder), ignore_errors=True)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def update(fitted: FittedFederation, folder: Path) -> None:
    """Bring a folder up to date: all new files are on disk before the first replaces an old one.

    Stopped before that, the folder is unchanged; stopped later, it reads as if it were finished.
    """
    _finish(folder)
    changed = {
        name: content
        for name, content in files_of(fitted).items()
        if not (folder / name).exists() or (folder / name).read_bytes() != content
    }
    try:
        _write(changed, folder / WAITING)
    except BaseException:
        shutil.rmtree(folder / WAITING, ignore_errors=True)
        raise
    _finish(folder)


def _write(files: Mapping[str, bytes], folder: Path) -> None:
    """Write the files to a folder; if the last is there, all are."""
    shutil.rmtree(folder, ignore_errors=True)
    for name, content in files.items():
        path = folder / name
        make_folder(path.parent)
        write_atomically(path, content)


def _finish(folder: Path) -> None:
    """Move waiting files in, the manifest last; without a manifest, some were lost."""
    waiting = folder / WAITING
    if (waiting / MANIFEST).exists():
        files = [path for path in waiting.rglob("*") if path.is_file()]
        for path in sorted(files, key=lambda path: path == waiting / MANIFEST):
            target = folder / path.relative_to(waiting)
            make_folder(target.parent)
            path.replace(target)
    shutil.rmtree(waiting, ignore_errors=True)


def _current(folder: Path, name: str) -> Path:
    """Path of a file: the folder itself, or the update that was stopped half-way."""
    waiting = folder / WAITING
    use = (waiting / MANIFEST).exists() and (waiting / name).exists()
    return (waiting if use else folder) / name


# ---- loading -------------------------------------------------------------------------------


def load(folder: Path) -> FittedFederation:
    """The federation in a folder, after a check that its files are as written."""
    body = _manifest(folder)
    try:
        manifest = Manifest.model_validate(body)
        files = {name: _read(folder, name, known) for name, known in manifest.files.items()}
        return federation_of(manifest, files)
    except (KeyError, TypeError, ValueError, AttributeError, SafetensorError) as error:
        raise _damaged(folder, f"its parts do not fit together: {in_words(error)}") from error


def _manifest(folder: Path) -> dict[str, Any]:
    try:
        outer = read_json(_current(folder, MANIFEST))
        version, known, body = outer["version"], outer["sha256"], outer["federation"]
    except FileNotFoundError:
        raise RunFolderError(
            f"{folder} holds no fitted federation: {MANIFEST} is missing; expected a folder that "
            "flic fit made."
        ) from None
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise _damaged(folder, f"{MANIFEST} cannot be read ({in_words(error)})") from None
    if version != VERSION:
        raise RunFolderError(
            f"{folder} has version {version}; this flic reads version {VERSION}. Fit the "
            "federation again, or use the flic that wrote it (see environment in federation.json)."
        )
    if known != digest_of(body):
        raise _damaged(folder, f"{MANIFEST} was changed after it was written")
    return body


def _read(folder: Path, name: str, known: str) -> bytes:
    try:
        content = read_bytes(_current(folder, name))
    except OSError as error:
        raise _damaged(folder, f"{name} cannot be read ({error.strerror})") from None
    if digest(content) != known:
        raise _damaged(folder, f"{name} is not what was written")
    return content


def _damaged(folder: Path, what: str) -> Damaged:
    remedy = "Restore the folder from a copy, or fit the federation again."
    return damaged(folder, what, remedy=remedy)
