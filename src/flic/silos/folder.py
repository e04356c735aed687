"""A fitted federation as a folder: JSON, safetensors and a model card; loading runs no code.

DIR/
  federation.json    version, task, labels, settings, clients; SHA-256 of every other file
  verdict.json       the verdict, and every candidate's figures
  rounds.json        flic's rounds: loss terms, bytes sent
  portrait.json      plain values for the report
  shared.safetensors α and the anchors, for newcomers
  linked.safetensors sums over all clients of linked columns, likewise
  clients/00-NAME/   one folder per client, which a real one keeps to itself:
    client.json        columns, labels and the fitted encoder
    model.json, model.safetensors or model.skops
  README.md          the model card

A folder is written under another name and renamed, so that it is there whole or not at all.
"""

import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors

from flic.data.schema import SharedFeatures
from flic.data.task import Classification, Regression, Task
from flic.digests import digest, digest_of
from flic.errors import DamagedModel, RunFolderError
from flic.files import make_folder, parse_json, read_bytes, read_json, write_atomically
from flic.notation import json_values
from flic.silos.card import model_card
from flic.silos.choice import CandidatePrior
from flic.silos.encoding import linked_names
from flic.silos.fit_settings import FitSettings
from flic.silos.fitted import FittedClient, FittedFederation
from flic.silos.linked_state import LinkedState
from flic.silos.model import Saved
from flic.silos.models import KINDS
from flic.silos.verdict import Verdict
from flic.tables import Column, Declared, Labelling
from flic.tables.encoder import TableEncoder

VERSION = 4
MANIFEST = "federation.json"
WAITING = ".partial"  # new files of an unfinished update


def refuse_occupied(folder: Path) -> None:
    """Refuse, before work starts, a folder that is not empty or cannot be written to."""
    try:
        occupied = folder.exists() and (not folder.is_dir() or any(folder.iterdir()))
        nearest = next(place for place in folder.resolve().parents if place.exists())
        TemporaryDirectory(dir=nearest).cleanup()  # permissions alone promise nothing
    except OSError as error:
        raise RunFolderError(
            f"{folder} cannot be made ({error.strerror}); expected a place for a new folder. "
            "Choose another with --out."
        ) from None
    if occupied:
        raise RunFolderError(
            f"{folder} already holds something; expected a new or empty folder. Choose another "
            "with --out, or remove it."
        )


def unfinished(folder: Path) -> Path:
    """The folder beside it that keeps the finished work of a fit (flic.silos.shelf)."""
    whole = folder.resolve()
    return whole.with_name(f".{whole.name}.unfinished")


def save(fitted: FittedFederation, folder: Path) -> None:
    """Write a new folder, whole or not at all; delete the shelf of its fit."""
    refuse_occupied(folder)
    folder = folder.resolve()  # "." has no name to write beside
    make_folder(folder.parent)
    place = folder.with_name(f".{folder.name}.partial")
    try:
        _write(_files(fitted), place)
        place.replace(folder)
        shutil.rmtree(unfinished(folder), ignore_errors=True)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def update(fitted: FittedFederation, folder: Path) -> None:
    """Bring a folder up to date: all new files are on disk before the first replaces an old one.

    Stopped before that, the folder is unchanged; stopped later, it reads as if it were finished.
    """
    _finish(folder)
    changed = {
        name: content
        for name, content in _files(fitted).items()
        if not (folder / name).exists() or (folder / name).read_bytes() != content
    }
    try:
        _write(changed, folder / WAITING)
    except BaseException:
        shutil.rmtree(folder / WAITING, ignore_errors=True)
        raise
    _finish(folder)


def _write(files: Mapping[str, bytes], place: Path) -> None:
    """Write the files to a folder; if the last is there, all are."""
    shutil.rmtree(place, ignore_errors=True)
    for name, content in files.items():
        path = place / name
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


def _files(fitted: FittedFederation) -> dict[str, bytes]:
    """All files by name, the manifest last."""
    places = {name: _place(i, name) for i, name in enumerate(fitted.clients)}
    files = {
        "verdict.json": _json(fitted.verdict.dump()),
        "rounds.json": _json(fitted.records),
        "portrait.json": _json(fitted.report_data),
        "shared.safetensors": save_tensors({n: t.contiguous() for n, t in fitted.shared.items()}),
        "linked.safetensors": save_tensors(
            {n: t.contiguous() for n, t in fitted.linked.tensors.items()} if fitted.linked else {}
        ),
        "README.md": model_card(fitted).encode(),
    }
    for name, client in fitted.clients.items():
        files |= {f"{places[name]}/{file}": c for file, c in _client_files(client).items()}
    body = {
        "task": _task_facts(fitted.task),
        "linked": _linked_facts(fitted.linked),
        "labels": list(fitted.labels),
        "settings": fitted.settings.model_dump(mode="json"),
        "clients": places,
        "known": {name: asdict(known) for name, known in fitted.known.items()},
        "temperatures": dict(fitted.temperatures),
        "weights": dict(fitted.weights),
        "notices": list(fitted.notices),
        "environment": dict(fitted.environment),
        "files": {name: digest(content) for name, content in files.items()},
    }
    manifest = {"version": VERSION, "sha256": digest_of(body), "federation": body}
    return files | {MANIFEST: _json(manifest)}


def _place(number: int, name: str) -> str:
    slug = re.sub(r"[^a-zA-Z0-9_-]+", "-", name).strip("-").lower()[:40]
    return f"clients/{number:02d}-{slug}"


def _client_files(client: FittedClient) -> dict[str, bytes]:
    saved = client.model.save()
    facts = {
        "name": client.name,
        "columns": [asdict(column) for column in client.columns],
        "declared": client.declared.model_dump(mode="json"),
        "labelling": client.labelling.model_dump(mode="json"),
        "encoder": client.encoder.model_dump(mode="json"),
        "candidate": client.candidate,
        "temperature": client.temperature,
    }
    model = {"kind": saved.kind, "facts": saved.facts}
    files = {"client.json": _json(facts), "model.json": _json(model)}
    if saved.tensors:
        tensors = {name: tensor.contiguous() for name, tensor in saved.tensors.items()}
        files["model.safetensors"] = save_tensors(tensors)
    return files | ({"model.skops": saved.trees} if saved.trees else {})


# ---- loading -------------------------------------------------------------------------------


def load(folder: Path) -> FittedFederation:
    """The federation in a folder, after a check that its files are as written."""
    body = _manifest(folder)
    try:
        files = {name: _read(folder, name, known) for name, known in body["files"].items()}
        return _federation(body, files)
    except (KeyError, TypeError, ValueError, AttributeError, SafetensorError) as error:
        raise _damaged(folder, f"its parts do not fit together: {error}") from error


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
        raise _damaged(folder, f"{MANIFEST} cannot be read ({error})") from None
    if version != VERSION:
        raise RunFolderError(
            f"{folder} is of version {version}; this flic reads version {VERSION}. Fit the "
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


def _damaged(folder: Path, what: str) -> DamagedModel:
    return DamagedModel(
        f"{folder}: {what}; expected the files as flic fit wrote them. Restore the folder from a "
        "copy, or fit the federation again."
    )


def _federation(body: Mapping[str, Any], files: Mapping[str, bytes]) -> FittedFederation:
    task, labels = _task(body["task"]), tuple(body["labels"])
    return FittedFederation(
        task=task,
        labels=labels,
        settings=FitSettings.model_validate(body["settings"]),
        verdict=Verdict.load(parse_json(files["verdict.json"])),
        clients={n: _client(place, files, task, labels) for n, place in body["clients"].items()},
        shared=load_tensors(files["shared.safetensors"]),
        linked=_linked(body["linked"], files["linked.safetensors"]),
        known={name: CandidatePrior(**known) for name, known in body["known"].items()},
        temperatures=body["temperatures"],
        weights=body["weights"],
        records=parse_json(files["rounds.json"]),
        report_data=parse_json(files["portrait.json"]),
        environment=body["environment"],
        notices=body["notices"],
    )


def _linked_facts(linked: LinkedState | None) -> dict[str, Any] | None:
    if linked is None:
        return None
    return {"seed": linked.seed, "spaces": {n: asdict(s) for n, s in linked.spaces.items()}}


def _linked(facts: Mapping[str, Any] | None, content: bytes) -> LinkedState | None:
    if facts is None:
        return None
    spaces = {
        name: SharedFeatures(tuple(own["names"]), tuple(own["block"]))
        for name, own in facts["spaces"].items()
    }
    return LinkedState(spaces, facts["seed"], load_tensors(content))


def _client(
    place: str, files: Mapping[str, bytes], task: Task, labels: tuple[str, ...]
) -> FittedClient:
    facts, model = (parse_json(files[f"{place}/{name}.json"]) for name in ("client", "model"))
    tensors = files.get(f"{place}/model.safetensors")
    saved = Saved(
        model["kind"],
        model["facts"],
        load_tensors(tensors) if tensors is not None else {},
        files.get(f"{place}/model.skops", b""),
    )
    own = KINDS[saved.kind].load(saved, task)
    encoder = TableEncoder.model_validate(facts["encoder"])
    declared = Declared.model_validate(facts["declared"])
    if not own.reads(linked_names(encoder, declared, facts["name"])):
        raise ValueError(
            f"the model of client {facts['name']!r} reads other features than its encoder writes"
        )
    columns = tuple(Column(**column) for column in facts["columns"])
    if {*encoder.sources} != {column.name for column in columns}:
        raise ValueError(
            f"the encoder of client {facts['name']!r} reads other columns than those listed"
        )
    return FittedClient(
        name=facts["name"],
        columns=columns,
        declared=declared,
        labelling=Labelling.model_validate(facts["labelling"]),
        encoder=encoder,
        candidate=facts["candidate"],
        temperature=facts["temperature"],
        model=own,
        task=task,
        labels=labels,
    )


def _task_facts(task: Task) -> dict[str, Any]:
    return {"name": task.name, **asdict(task)}


def _task(facts: Mapping[str, Any]) -> Task:
    kind = Classification if facts["name"] == "classification" else Regression
    return kind(**{key: value for key, value in facts.items() if key != "name"})


def _json(value: object) -> bytes:
    return json.dumps(json_values(value), indent=1, ensure_ascii=False, allow_nan=False).encode()
