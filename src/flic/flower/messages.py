"""Requests to silos and their answers, as Flower's records and back.

Tensors travel as raw little-endian numbers under their names. Nothing of an answer is taken for
what it says it is: sizes, names, shapes and types are looked at before a number is read.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from torch import Tensor

from flic.engine.engine import EVALUATE
from flic.errors import FederationError, IncompatibleUpdate
from flic.files import parse_json
from flic.flower.exchange import Reply, Request
from flic.flower.federation_settings import (
    LARGEST,
    NUMBER_BYTES,
    FederationSettings,
    federation_settings,
)
from flic.flower.pooling import FIRST, LAST
from flic.methods.protocol import Entry, ServerState, Update
from flic.notation import counted

RAW = "flic.raw"
"""The name of our way to write tensors; Flower's own has a header of varying length."""

_TYPES = {
    "float32": ("<f4", torch.float32),
    "float64": ("<f8", torch.float64),
    "int64": ("<i8", torch.int64),
}
_RUN = re.compile(r"[0-9a-f]{16}")
_NAME = re.compile(r"[a-z][a-z0-9_ ]{0,39}")
_MOST_NUMBERS = 32


_STAGES = frozenset({"prepare", "update", "adapt", EVALUATE})

T = TypeVar("T")

Keys = tuple[str, ...]
"""Keys that stand for the names of a silo's features."""


# ---- to silos ------------------------------------------------------------------------------


def pack_request(request: Request) -> RecordDict:
    """The request as records."""
    facts: dict[str, Any] = {
        "run": request.run,
        "stage": request.stage,
        "round": request.server.round,
        "settings": request.settings.model_dump_json(),
    }
    if request.refused is not None:
        facts["refused"] = request.refused
    if request.holders:
        facts["holders"] = list(request.holders)
    if request.statement:
        facts["statement"] = request.statement
    if request.totals:
        facts["totals"] = request.totals
    return RecordDict({"shared": _pack(request.server.shared), "request": ConfigRecord(facts)})


def read_request(content: RecordDict) -> Request:
    """The request, if it is one."""
    try:
        facts = _of(ConfigRecord, content["request"])
        shared = _of(ArrayRecord, content["shared"])
        run, stage = _of(str, facts["run"]), _of(str, facts["stage"])
        if stage not in _STAGES:
            raise ValueError("it is for no stage of a run")
        if not _RUN.fullmatch(run):  # it names a folder
            raise ValueError("the run has no proper name")
        round = _of(int, facts["round"])
        settings = parse_json(_of(str, facts["settings"]))
        refused = _of(str, facts["refused"]) if "refused" in facts else None
        holders = tuple(_of(int, n) for n in _of(list, facts.get("holders", [])))
        statement, totals = (_of(str, facts.get(name, "")) for name in ("statement", "totals"))
        tensors = {name: _unpack(array) for name, array in shared.items()}
        settings = federation_settings(settings, source="settings of the federation")
        _refuse_no_round(round, settings)
    except (KeyError, ValueError) as error:
        raise FederationError(
            f"a request cannot be read ({error}); expected one of "
            "flic's coordinator. Give coordinator and silos the same version of flic."
        ) from error
    server = ServerState(round, tensors)
    return Request(run, stage, server, settings, refused, holders, statement, totals)


def _refuse_no_round(round: int, settings: FederationSettings) -> None:
    """Refuse a number that no round of such a run has: it names a file."""
    first, last = (FIRST, LAST) if settings.sends_sums else (1, settings.rounds + 1)
    if not first <= round <= last:
        raise ValueError(f"round {round} is none of {first} to {last}")


def _of(kind: type[T], value: object) -> T:
    if not isinstance(value, kind):
        raise ValueError(f"a {type(value).__name__} stands for a {kind.__name__}")
    return value


# ---- from silos ----------------------------------------------------------------------------


def pack_reply(reply: Reply) -> RecordDict:
    """The answer as records: all that ever leaves a silo."""
    entries = reply.update.entries
    answer: dict[str, Any] = {"round": reply.round}
    if reply.keys:
        answer["keys"] = list(reply.keys)
    if reply.statement:
        answer["statement"] = reply.statement
    return RecordDict(
        {
            "update": _pack({name: entry.value for name, entry in entries.items()}),
            "weights": MetricRecord({name: entry.weight for name, entry in entries.items()}),
            "numbers": MetricRecord({name: float(v) for name, v in reply.numbers.items()}),
            "answer": ConfigRecord(answer),
        }
    )


def read_reply(
    content: RecordDict, *, silo: str, expected: Callable[[Keys], ServerState], max_bytes: int
) -> Reply:
    """The answer of a silo, if it could have come from flic.

    Args:
        content: the answer.
        silo: who gave it.
        expected: names and shapes that an answer with such keys may have.
        max_bytes: size above which nothing is read.

    Raises:
        IncompatibleUpdate: saying what is wrong with it.
    """
    who = f"answer of silo {silo!r}"
    size = sum(len(key) + _size(v) for record in content.values() for key, v in record.items())
    if size > max_bytes:
        raise IncompatibleUpdate(
            f"{who} has {size} bytes; expected {max_bytes} at most. Raise max_message_mb if the "
            "network is that large."
        )
    update, weights, numbers, answer = _parts(content, who)
    round, keys, statement = answer
    server = expected(keys)
    entries = {
        name: Entry(_expected(array, name, server, who), _finite(weights.get(name), name, who))
        for name, array in update.items()
    }
    if {*weights} != {*entries}:
        raise IncompatibleUpdate(
            f"{who} has weights of other names than its tensors; expected one for each. Give all "
            "silos one version of flic."
        )
    return Reply(round, Update(silo, entries), _numbers(numbers, who), keys, statement)


def _parts(
    content: RecordDict, who: str
) -> tuple[ArrayRecord, MetricRecord, MetricRecord, tuple[int, Keys, str]]:
    """The records of an answer, each of its kind."""
    try:
        if {*content} != {"update", "weights", "numbers", "answer"}:
            raise ValueError("a part is missing, or there is one more")
        answer = _of(ConfigRecord, content["answer"])
        if {*answer} - {"keys", "statement"} != {"round"}:
            raise ValueError("the round is missing, or not alone")
        keys = tuple(_of(str, key) for key in _of(list, answer.get("keys", [])))
        return (
            _of(ArrayRecord, content["update"]),
            _of(MetricRecord, content["weights"]),
            _of(MetricRecord, content["numbers"]),
            (_of(int, answer["round"]), keys, _of(str, answer.get("statement", ""))),
        )
    except ValueError as error:
        raise IncompatibleUpdate(
            f"{who} does not have the parts of an answer ({error}); expected tensors, their "
            "weights, numbers and the round. Give coordinator and silos one version of flic."
        ) from error


def _size(value: object) -> int:
    """Bytes of a value of a record, without a look into it."""
    if isinstance(value, Array):
        return len(value.data)
    if isinstance(value, list):
        return sum(map(_size, value))
    return len(value) if isinstance(value, str | bytes) else NUMBER_BYTES


def _expected(array: Array, name: str, server: ServerState, who: str) -> Tensor:
    """A tensor, once it says that it is like the server's own of that name."""
    if name not in server.shared:
        raise IncompatibleUpdate(
            f"{who} holds {name[:40]!r}, which the server does not share; expected some of "
            f"{', '.join(server.shared)}."
        )
    known = server.shared[name]
    kind = str(known.dtype).removeprefix("torch.")
    size = known.numel() * known.element_size()
    got = (tuple(array.shape), array.dtype, array.stype, len(array.data))
    if got != (tuple(known.shape), kind, RAW, size):
        raise IncompatibleUpdate(
            f"{who}: {name!r} is {array.dtype[:20]}{list(array.shape)[:8]} in {len(array.data)} "
            f"bytes; expected {kind}{list(known.shape)} in {size}. Give all silos one version."
        )
    return _unpack(array)


def _numbers(numbers: MetricRecord, who: str) -> dict[str, float]:
    if len(numbers) > _MOST_NUMBERS or not all(map(_NAME.fullmatch, numbers)):
        raise IncompatibleUpdate(
            f"{who} has {counted(len(numbers), 'number')}, or some under names that flic does not "
            f"give; expected {_MOST_NUMBERS} loss terms or figures at most. Give all silos one "
            "version."
        )
    return {name: _finite(value, name, who) for name, value in numbers.items()}


def _finite(value: object, name: str, who: str) -> float:
    if isinstance(value, int | float) and abs(value) <= LARGEST:
        return float(value)
    raise IncompatibleUpdate(
        f"{who}: the number of {name!r} is {str(value)[:20]}; expected one up to {LARGEST:g} in "
        "size. Look at what the silo computes."
    )


# ---- tensors -------------------------------------------------------------------------------


def _pack(tensors: Mapping[str, Tensor]) -> ArrayRecord:
    return ArrayRecord({name: _array(tensor) for name, tensor in tensors.items()})


def _array(tensor: Tensor) -> Array:
    kind = str(tensor.dtype).removeprefix("torch.")
    data = tensor.detach().cpu().numpy().astype(_TYPES[kind][0]).tobytes()
    return Array(dtype=kind, shape=tuple(tensor.shape), stype=RAW, data=data)


def _unpack(array: Array) -> Tensor:
    """The tensor; ValueError or KeyError where its bytes are not what it says."""
    code, dtype = _TYPES[array.dtype]
    if array.stype != RAW:
        raise ValueError(f"a tensor is written as {array.stype!r}")
    flat = np.frombuffer(array.data, code).reshape(array.shape)
    return torch.from_numpy(flat.copy()).to(dtype)
