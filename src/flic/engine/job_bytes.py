"""Jobs and their results as bytes: JSON for names and numbers, safetensors for tensors.

Whoever reads them runs no code of theirs. Tensors come back bit for bit, in the same order.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor

from flic.engine.engine import Job, JobResult
from flic.engine.score import KINDS, Errors, Hits, Score
from flic.methods.protocol import Entry, ServerState, Update

Packed = tuple[str, bytes]
"""JSON, in which a tensor is {"tensor": its name}, and the tensors by name."""


def pack_job(job: Job) -> Packed:
    """A job as bytes."""
    server = {"round": job.server.round, "shared": dict(job.server.shared)}
    states = [None if state is None else dict(state) for state in job.states]
    return _pack({"stage": job.stage, "server": server, "names": job.names, "states": states})


def read_job(packed: Packed) -> Job:
    """The job that was packed."""
    raw = _read(packed)
    return Job(raw["stage"], ServerState(**raw["server"]), tuple(raw["names"]), raw["states"])


def pack_result(result: JobResult) -> Packed:
    """A result as bytes."""
    updates = [
        {"client": u.client, "entries": {n: [e.value, e.weight] for n, e in u.entries.items()}}
        for u in result.updates
    ]
    return _pack(
        {
            "states": {name: dict(state) for name, state in result.states.items()},
            "updates": updates,
            "losses": {name: dict(terms) for name, terms in result.losses.items()},
            "scores": {name: asdict(score) for name, score in result.scores.items()},
        }
    )


def read_result(packed: Packed) -> JobResult:
    """The result that was packed."""
    raw = _read(packed)
    updates = [
        Update(own["client"], {name: Entry(*entry) for name, entry in own["entries"].items()})
        for own in raw["updates"]
    ]
    scores = {name: Score(*map(_part, own.values())) for name, own in raw["scores"].items()}
    return JobResult(raw["states"], updates, raw["losses"], scores)


def _part(sums: Mapping[str, Any]) -> Hits | Errors:
    [kind] = (kind for kind in KINDS if {f.name for f in fields(kind)} == {*sums})
    return kind(**sums)


def _pack(value: object) -> Packed:
    tensors: dict[str, Tensor] = {}

    def keep(tensor: Tensor) -> dict[str, str]:
        name = str(len(tensors))
        # Copied, since safetensors refuses tensors that share memory.
        tensors[name] = tensor.detach().clone(memory_format=torch.contiguous_format)
        return {"tensor": name}

    return json.dumps(value, default=keep), save(tensors)


def _read(packed: Packed) -> Any:
    text, content = packed
    tensors = load(content)

    def find(found: dict[str, Any]) -> Any:
        # A client may be called "tensor", but no value of ours below a name is a text.
        alone = len(found) == 1 and isinstance(found.get("tensor"), str)
        return tensors[found["tensor"]] if alone else found

    return json.loads(text, object_hook=find)
