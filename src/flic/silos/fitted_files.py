"""Files of a fitted federation: their contents as bytes by name, and a federation from them."""

import re
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from pydantic import BaseModel, TypeAdapter
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors

from flic.data.schema import SharedFeatures
from flic.data.task import Classification, Regression, Task
from flic.digests import digest, digest_of
from flic.engine.journal import stored
from flic.files import json_bytes, parse_json
from flic.notation import json_values
from flic.silos.card import model_card
from flic.silos.choice import CandidatePrior
from flic.silos.encoding import linked_names
from flic.silos.fit_settings import FitSettings
from flic.silos.fitted import FittedClient, FittedFederation
from flic.silos.linked_state import LinkedState
from flic.silos.model import Saved
from flic.silos.models import KINDS
from flic.silos.report_data import ReportData
from flic.silos.results import Results
from flic.silos.trained_rows import FILE as TRAINED
from flic.silos.trained_rows import packed, unpacked
from flic.silos.verdict import Verdict
from flic.tables import Column, Declared, Labelling
from flic.tables.encoder import TableEncoder

VERSION = 5
MANIFEST = "federation.json"


def files_of(fitted: FittedFederation) -> dict[str, bytes]:
    """All files by name, the manifest last."""
    folders = {name: _folder(i, name) for i, name in enumerate(fitted.clients)}
    files = {
        "verdict.json": _json(fitted.verdict.dump()),
        "results.parquet": fitted.verdict.results.dump(),
        "rounds.json": _json(fitted.records),
        "report_data.json": _json(fitted.report_data.model_dump()),
        "shared.safetensors": save_tensors({n: t.contiguous() for n, t in fitted.shared.items()}),
        "linked.safetensors": save_tensors(
            {n: t.contiguous() for n, t in fitted.linked.tensors.items()} if fitted.linked else {}
        ),
        "README.md": model_card(fitted).encode(),
    }
    for name, client in fitted.clients.items():
        files |= {f"{folders[name]}/{file}": c for file, c in _client_files(client).items()}
    body = {
        "task": {"name": fitted.task.name, **asdict(fitted.task)},
        "linked": _linked_facts(fitted.linked),
        "labels": list(fitted.labels),
        "settings": fitted.settings.model_dump(mode="json"),
        "clients": folders,
        "known": {name: asdict(known) for name, known in fitted.known.items()},
        "temperatures": dict(fitted.temperatures),
        "weights": dict(fitted.weights),
        "notices": list(fitted.notices),
        "environment": dict(fitted.environment),
        "files": {name: digest(content) for name, content in files.items()},
    }
    manifest = {"version": VERSION, "sha256": digest_of(body), "federation": body}
    return files | {MANIFEST: _json(manifest)}


def _folder(number: int, name: str) -> str:
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
    if client.trained is not None:
        files[TRAINED] = packed(client.trained)
    return files | ({"model.skops": saved.trees} if saved.trees else {})


# ---- back -----------------------------------------------------------------------------------


class Manifest(BaseModel):
    """The contents of federation.json."""

    task: dict[str, Any]
    linked: dict[str, Any] | None
    labels: tuple[str, ...]
    settings: FitSettings
    clients: dict[str, str]  # name → folder
    known: dict[str, CandidatePrior]
    temperatures: dict[str, float]
    weights: dict[str, float]
    notices: tuple[str, ...]
    environment: dict[str, str]
    files: dict[str, str]  # name → SHA-256


def federation_of(body: Manifest, files: Mapping[str, bytes]) -> FittedFederation:
    """The federation from its manifest and its other files.

    Raises:
        ValueError, KeyError, TypeError, AttributeError, SafetensorError: they do not fit together.
    """
    task = _task(body.task)
    if isinstance(task, Classification) and len(body.labels) != task.num_classes:
        raise ValueError(f"{len(body.labels)} labels of {task.num_classes} classes")
    found = Verdict.load(parse_json(files["verdict.json"]), Results.load(files["results.parquet"]))
    return FittedFederation(
        task=task,
        labels=body.labels,
        settings=body.settings,
        verdict=found,
        clients={n: _client(own, files, task, body.labels) for n, own in body.clients.items()},
        shared=load_tensors(files["shared.safetensors"]),
        linked=_linked(body.linked, files["linked.safetensors"]),
        known=body.known,
        temperatures=body.temperatures,
        weights=body.weights,
        records=[stored(record) for record in parse_json(files["rounds.json"])],
        report_data=ReportData.model_validate(parse_json(files["report_data.json"])),
        environment=body.environment,
        notices=body.notices,
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
    folder: str, files: Mapping[str, bytes], task: Task, labels: tuple[str, ...]
) -> FittedClient:
    facts, model = (parse_json(files[f"{folder}/{name}.json"]) for name in ("client", "model"))
    tensors = files.get(f"{folder}/model.safetensors")
    saved = Saved(
        model["kind"],
        model["facts"],
        load_tensors(tensors) if tensors is not None else {},
        files.get(f"{folder}/model.skops", b""),
    )
    own = KINDS[saved.kind].load(saved, task)
    encoder = TableEncoder.model_validate(facts["encoder"])
    declared = Declared.model_validate(facts["declared"])
    if not own.reads(linked_names(encoder, declared, facts["name"])):
        raise ValueError(
            f"the model of client {facts['name']!r} reads other features than its encoder writes"
        )
    trained = files.get(f"{folder}/{TRAINED}")
    columns = TypeAdapter(tuple[Column, ...]).validate_python(facts["columns"])
    if {*encoder.sources} != {column.name for column in columns}:
        raise ValueError(
            f"the encoder of client {facts['name']!r} reads other columns than those listed"
        )
    labelling = Labelling.model_validate(facts["labelling"])
    if not labelling.fits(task.num_classes if isinstance(task, Classification) else None):
        raise ValueError(f"the labels of client {facts['name']!r} are not those of the task")
    return FittedClient(
        name=facts["name"],
        columns=columns,
        declared=declared,
        labelling=labelling,
        encoder=encoder,
        candidate=facts["candidate"],
        temperature=facts["temperature"],
        model=own,
        task=task,
        labels=labels,
        trained=unpacked(trained) if trained is not None else None,
    )


def _task(facts: Mapping[str, Any]) -> Task:
    kind = Classification if facts["name"] == "classification" else Regression
    return kind(**{key: value for key, value in facts.items() if key != "name"})


def _json(value: object) -> bytes:
    return json_bytes(json_values(value))
