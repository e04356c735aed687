"""Targets of odd input: each kind of file or message that flic reads, and how it is read.

Whatever the input, flic gives a result or a FlicError, within seconds and a bounded memory.
"""

import io
import json
import resource
import shutil
import signal
import sqlite3
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
from flwr.proto.recorddict_pb2 import RecordDict as ProtoRecordDict
from mutations import Case

import flic
from flic.cli.main import app
from flic.config import resolve
from flic.digests import digest, digest_of
from flic.errors import FlicError
from flic.flower import visits
from flic.flower.announcement import announce
from flic.flower.coordinator_folder import Coordinator
from flic.flower.exchange import Asked, Reply, Request, SumPhase
from flic.flower.federation_settings import FederationSettings
from flic.flower.keys import create_pair, read_public
from flic.flower.messages import pack_reply, pack_request, read_reply, read_request
from flic.flower.pinned_keys import peers_text, pin, read_peers
from flic.flower.pooling import LAST
from flic.flower.runner import SiloRunner
from flic.flower.secure.statements import SumRequest, read_statement
from flic.flower.silo_folder import SiloFolder
from flic.methods.protocol import Entry, ServerState, Update
from flic.runs import run_folder
from flic.silos.joining import shared_by_run
from flic.tables import Client, read_table, stream_table
from flic.tables.draft import draft

SECONDS, WALL_SECONDS = 20.0, 180.0
"""Of work, and on a clock that goes on while others work: what takes longer hangs flic.

The usual inputs take a tenth of a second.
"""

MEMORY = 2**30
"""Bytes that one input may cost beside what the process has already."""


@dataclass(frozen=True)
class FuzzTarget:
    """One kind of input."""

    seeds: Sequence[Case]  # sound inputs, as flic and its users write them
    feed: Callable[[Path], object]  # reads the files of a case, and all that lies beside them
    beside: Case  # files that stay as they are


@dataclass(frozen=True)
class Trouble:
    """An outcome that must not happen."""

    what: str  # alike for inputs that fail alike
    traceback: str = ""
    is_harmless: bool = False  # it neither takes long nor ends the process, so it can be repeated


class _TooLong(BaseException):
    """Not an Exception, so that nobody takes it for an error of the input."""


def attempt(target: FuzzTarget, case: Case, folder: Path) -> Trouble | FlicError | None:
    """The outcome of an input: trouble, a refusal, or None for a result."""
    shutil.rmtree(folder, ignore_errors=True)
    write(folder, {**target.beside, **case})
    try:
        with _quiet(), _bounded():
            target.feed(folder)
    except FlicError as error:
        return error
    except (Exception, _TooLong) as error:
        return Trouble(_what(error), traceback.format_exc(), not isinstance(error, _TooLong))
    return None


def write(folder: Path, case: Case) -> None:
    """The files of a case."""
    for name, content in case.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def _what(error: BaseException) -> str:
    """The error's type, and the last place in flic that it came through."""
    ours = str(Path(flic.__file__).parent)
    frames = traceback.extract_tb(error.__traceback__)
    places = [frame for frame in frames if frame.filename.startswith(ours)]
    if not places:
        return type(error).__name__
    where = Path(places[-1].filename).relative_to(ours)
    return f"{type(error).__name__} in {where}:{places[-1].lineno}"


@contextmanager
def _quiet() -> Generator[None]:
    """Let nothing be seen of what flic says; a terminal takes no more than UTF-8 either."""
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    err = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="backslashreplace")
    with redirect_stdout(out), redirect_stderr(err), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextmanager
def _bounded() -> Generator[None]:
    """Bound the time and, on Linux, the memory of what is done inside."""

    def stop(number: int, frame: object) -> None:
        raise _TooLong(f"took more than {SECONDS:g} s, or {WALL_SECONDS:g} s of waiting")

    handlers = {sign: signal.signal(sign, stop) for sign in (signal.SIGPROF, signal.SIGALRM)}
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    began, (left, _) = time.monotonic(), signal.setitimer(signal.ITIMER_REAL, WALL_SECONDS)
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if sys.platform == "linux":
        resource.setrlimit(resource.RLIMIT_DATA, (_data_bytes() + MEMORY, hard))
    try:
        yield
    finally:
        for timer in (signal.ITIMER_PROF, signal.ITIMER_REAL):
            signal.setitimer(timer, 0)
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
        for sign, before in handlers.items():
            signal.signal(sign, before)
        if left:  # somebody bounds the time of all this, too
            signal.setitimer(signal.ITIMER_REAL, max(0.1, left - (time.monotonic() - began)))


def _data_bytes() -> int:
    """Memory that this process has for its data, by the count that the limit goes by."""
    lines = Path("/proc/self/status").read_text().splitlines()
    [own] = [line for line in lines if line.startswith("VmData:")]
    return int(own.split()[1]) * 1024


def _flic(*arguments: object) -> None:
    """The command, whose errors come out as they are."""
    code = app([*map(str, arguments)], prog_name="flic", standalone_mode=False)
    if code:  # it has said why
        sys.stderr.flush()
        raise FlicError(sys.stderr.buffer.getvalue().decode())


def _files(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


# ---- tables, and files that describe them ---------------------------------------------------


def _rows(seed: int, rows: int = 40) -> pd.DataFrame:
    """A ward with columns of every kind, and gaps."""
    rng = np.random.default_rng(seed)
    ill = np.arange(rows) % 2
    return pd.DataFrame(
        {
            "age": (rng.normal(50, 9, rows) + 9 * ill).round(1),
            "smoker": rng.choice(["yes", "no"], rows),
            "blood": rng.choice(["A", "B", ""], rows),
            "seen": pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(0, 700, rows), "D"),
            "notes": [f"fever at night, day {day} of the stay" for day in range(rows)],
            "site": rng.choice(["ward 1", "ward 2"], rows),
            "stay": (4 + 3 * ill + rng.random(rows)).round(2),
            "ill": ill,
        }
    )


def _csv(frame: pd.DataFrame, **how: Any) -> bytes:
    return frame.to_csv(index=False, **how).encode(how.get("encoding", "utf-8"))


TABLES = {"north.csv": _csv(_rows(0)), "south.csv": _csv(_rows(1).drop(columns="notes"))}

DECLARED = b"""
label = "ill"
labels = { well = [0], ill = [1] }
missing = { age = [0], "*" = ["unknown"] }
missing_markers = ["", "NA"]
encoding = "utf-8"
max_file_mb = 10.0
unlinked = ["site"]

[fit]
repeats = 3
candidates = ["lda", "flic"]

[fit.network.training]
rounds = 2
local = "2 epochs"
shared = "1 epochs"

[[clients]]
name = "north"
data = "north.csv"
ids = ["notes"]
dates = ["seen"]
links = { age = { name = "years", factor = 1.0, offset = 0.5 }, blood = "blood group" }

[[clients]]
name = "south"
data = "south.csv"
label = "ill"
labels = { well = ["0"], ill = ["1"] }
categories = ["smoker"]
numbers = ["age"]
drop = ["stay"]
"""
REGRESSION = b"""
task = "regression"
label = "stay"
range = [0, 10]
data = "north.csv"
site = "site"
sites = ["ward 1", "ward 2"]
empty_share = 0.4
texts = ["notes"]
drop = ["ill"]
"""


def _federation(root: Path) -> FuzzTarget:
    """federation.toml, as drafted and as written by hand."""
    for name, content in TABLES.items():
        (root / name).write_bytes(content)
    files = [root / name for name in TABLES]
    drafted, _ = draft(root, files, label="ill", site=None, task="classification")
    seeds = [{"federation.toml": text} for text in (drafted.encode(), DECLARED, REGRESSION)]

    def feed(folder: Path) -> None:
        _flic("check", folder / "federation.toml")

    return FuzzTarget(seeds, feed, TABLES)


def _tables(root: Path) -> FuzzTarget:
    """Tables of every format, read whole and in pieces, and looked at by `flic check`."""
    frame = _rows(0)
    frame.to_parquet(root / "rows.parquet", index=False)
    frame.to_feather(root / "rows.feather")
    with closing(sqlite3.connect(root / "rows.sqlite")) as database:
        frame.astype({"seen": str}).to_sql("rows", database, index=False)
    seeds = [{name: content} for name, content in _files(root).items()]

    def feed(folder: Path) -> None:
        [path] = folder.glob("rows.*")
        query = "SELECT * FROM rows" if path.suffix == ".sqlite" else None
        _read(path, query)

    return FuzzTarget(seeds, feed, {"south.csv": TABLES["south.csv"]})


def _text_tables(root: Path) -> FuzzTarget:
    """CSV and TSV with several delimiters and kinds of quotes."""
    frame = _rows(0)
    quoted = frame.assign(notes=[f'said "{note}",\nand slept' for note in frame["notes"]])
    seeds = [
        {"rows.csv": _csv(frame)},
        {"rows.csv": _csv(frame.drop(columns=["notes", "blood"]), sep=";", encoding="utf-8-sig")},
        {"rows.tsv": _csv(frame, sep="\t")},
        {"rows.csv": _csv(quoted)},
        {"rows.csv": _csv(frame[["age", "ill"]])},
    ]

    def feed(folder: Path) -> None:
        [path] = folder.glob("rows.*")
        _read(path, None)

    return FuzzTarget(seeds, feed, {"south.csv": TABLES["south.csv"]})


def _read(path: Path, query: str | None) -> None:
    """A table whole, in pieces, and as one of two that are checked."""
    read_table(path, query=query)
    if query is None:
        for _ in stream_table(path, chunk_rows=7):
            pass
    asked = "" if query is None else f'query = "{query}"\n'
    (path.parent / "federation.toml").write_text(
        f'label = "ill"\n[[clients]]\nname = "a"\ndata = "{path.name}"\n{asked}'
        '[[clients]]\nname = "b"\ndata = "south.csv"\n'
    )
    _flic("check", path.parent / "federation.toml", "--format", "json")


# ---- silos and messages ---------------------------------------------------------------------

NETWORK: dict[str, Any] = {
    "training": {"local": "2 steps", "shared": "1 steps", "batch_size": 16},
    "embedding": {"latent_dim": 4, "hidden": [5]},
    "pretraining": {"epochs": 0},
    "alignment": {"anchor_samples": 2},
}


def _agreed(**changes: Any) -> FederationSettings:
    known: dict[str, Any] = {"classes": ("well", "ill"), "network": NETWORK, "rounds": 3}
    return FederationSettings(**known | changes)


EDITED = b"""
scatter = "diagonal"
max_numbers_per_value = 0.4
min_rows = 6
encoding = "utf-8"
ids = ["notes"]
dates = ["seen"]
missing = { age = [0] }
links = { age = { name = "years", factor = 2.0 }, blood = "blood group" }
"""


def _silo(root: Path) -> FuzzTarget:
    """silo.toml, as `flic silo init` writes it and as it can be edited."""
    (root / "north.csv").write_bytes(TABLES["north.csv"])
    labels = {"well": (0,), "ill": (1,)}
    SiloFolder.create(
        root / "silo", Client(name="north", data="../north.csv", label="ill", labels=labels)
    )
    made = (root / "silo" / "silo.toml").read_bytes()
    seeds = [{"silo/silo.toml": text} for text in (made, made + EDITED)]

    def feed(folder: Path) -> None:
        silo = SiloFolder.open(folder / "silo")
        for settings in (_agreed(), _agreed(method="linked", salt="00" * 16)):
            announce(silo, settings)
        _flic("silo", "status", folder / "silo" / "silo.toml")

    return FuzzTarget(seeds, feed, {"north.csv": TABLES["north.csv"]})


KINDS: dict[str, type[Any]] = {
    "config": ConfigRecord,
    "metrics": MetricRecord,
    "arrays": ArrayRecord,
}
LARGEST_MESSAGE = 2**26  # bytes; changes upon changes may make a message of a gigabyte
NESTED = "settings"  # JSON in a text: what it says is to be changed too


def _written(content: RecordDict) -> bytes:
    """A message as JSON, so that what it says can be changed."""
    names = {kind: name for name, kind in KINDS.items()}
    tree = {name: [names[type(record)], _plain(record)] for name, record in content.items()}
    return json.dumps(tree).encode()


def _plain(record: Any) -> dict[str, Any]:
    if isinstance(record, ArrayRecord):
        return {n: [a.dtype, a.shape, a.stype, a.data.hex()] for n, a in record.items()}
    return {name: json.loads(v) if name == NESTED else v for name, v in record.items()}


def _carried(path: Path) -> RecordDict:
    """The message as it arrives, without the parts that Flower would not carry."""
    if path.stat().st_size > LARGEST_MESSAGE:
        raise FlicError("Flower would not carry it")
    try:
        tree = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        raise FlicError("Flower could not read it") from None
    content = RecordDict({})
    for name, own in tree.items() if isinstance(tree, dict) else ():
        with suppress(KeyError, TypeError, ValueError, AttributeError):
            kind, values = own
            record = KINDS[kind]()
            for key, value in values.items():
                with suppress(TypeError, ValueError):
                    record[key] = _value(record, key, value)
            one = RecordDict({name: record})
            wire = recorddict_to_proto(one).SerializeToString()
            content[name] = recorddict_from_proto(ProtoRecordDict.FromString(wire))[name]
    return content


def _value(record: Any, key: str, value: Any) -> Any:
    if not isinstance(record, ArrayRecord):
        return json.dumps(value) if key == NESTED and isinstance(value, dict | list) else value
    dtype, shape, stype, data = value
    try:
        data = bytes.fromhex(data)
    except (TypeError, ValueError):
        data = str(data).encode(errors="replace")
    return Array(dtype=str(dtype), shape=tuple(shape), stype=str(stype), data=data)


@dataclass(frozen=True)
class RecordedVisit:
    """One round of a federation of two silos, as they and their coordinator go into it."""

    request: Request  # to the first silo
    replies: Mapping[str, Reply]
    silo: Case
    coordinator: Case


def _recorded(root: Path) -> Iterator[RecordedVisit]:
    """Rounds of a method that trains, and of one that does not."""
    for method, rounds in (("flic-hl", 2), ("linked", 4)):
        plain = {"secure_sums": False, "min_holders": 2}
        settings, folder = _agreed(method=method, **plain), root / method
        coordinator = Coordinator.create(folder / "coordinator", settings)
        settings, silos = coordinator.settings, {}
        for number, name in enumerate(("north", "south")):
            coordinator.members.admit(name, number)
            labels = {"well": (0,), "ill": (1,)}
            client = Client(name=name, data=f"{name}.csv", label="ill", labels=labels)
            SiloFolder.create(folder / name, client, agreed=settings)
            _say(folder / name, min_holders=2)
            silos[name] = SiloFolder.open(folder / name)
            (folder / name / f"{name}.csv").write_bytes(TABLES[f"{name}.csv"])
        for done in range(rounds):
            sent = {name: _request(coordinator, name) for name in silos}
            before = _files(folder / "north")
            trained = {
                name: visits.train(silos[name], own.server, settings, own.stage, run=own.run)
                for name, own in sent.items()
            }
            replies = {
                name: Reply(sent[name].server.round, own.update, own.losses, own.keys)
                for name, own in trained.items()
            }
            asked, known = sent["north"], _files(folder / "coordinator")
            yield RecordedVisit(asked, replies, before, known)
            if done and (method != "linked" or asked.server.round == LAST):
                measured = replace(asked, stage="evaluate", refused="it holds NaN")
                yield RecordedVisit(measured, replies, _files(folder / "north"), known)
            next(coordinator.rounds(_Answering(coordinator, replies)).steps())


def _say(folder: Path, **own: int) -> None:
    """Say more in a silo's file."""
    path = folder / "silo.toml"
    path.write_text(path.read_text() + "".join(f"{key} = {n}\n" for key, n in own.items()))


class _Answering(SiloRunner):
    """Silos whose answers are known."""

    def __init__(self, coordinator: Coordinator, replies: Mapping[str, Reply]) -> None:
        super().__init__(coordinator)
        self._replies = dict(replies)

    def connected(self) -> set[str]:
        return {*self._replies}

    def ask(
        self,
        stage: str,
        server: ServerState,
        names: Sequence[str],
        phase: SumPhase | None = None,
    ) -> Asked:
        return Asked() if stage == "evaluate" else Asked(self._replies)


def _request(coordinator: Coordinator, name: str) -> Request:
    rules, step = coordinator.rules, coordinator.next_step
    assert step is not None
    server, stage = rules.shared_with(name, coordinator.server), step.stages[0].name
    return Request(
        coordinator.run, stage, server, coordinator.settings, holders=rules.holders(name)
    )


def _requests(root: Path) -> FuzzTarget:
    """Requests as a silo gets them: read, and worked on where the silo agrees to the settings."""
    recorded = {str(number): visit for number, visit in enumerate(_recorded(root))}
    seeds = [
        {f"{name}/message.json": _written(pack_request(visit.request))}
        for name, visit in recorded.items()
    ]
    beside = {f"{name}/{n}": c for name, visit in recorded.items() for n, c in visit.silo.items()}

    def feed(folder: Path) -> None:
        [path] = folder.glob("*/message.json")
        request, silo = read_request(_carried(path)), SiloFolder.open(path.parent)
        if request.stage == "evaluate":
            known = {"run": request.run, "holders": request.holders}
            visits.evaluate(silo, request.server, request.settings, **known)
        else:
            visits.train(silo, request.server, request.settings, request.stage, run=request.run)

    return FuzzTarget(seeds, feed, beside)


def _replies(root: Path) -> FuzzTarget:
    """Answers as the coordinator gets them: read, judged and counted beside another's."""
    recorded = {str(number): visit for number, visit in enumerate(_recorded(root))}
    seeds = [
        {f"{name}/message.json": _written(pack_reply(visit.replies["north"]))}
        for name, visit in recorded.items()
    ]
    beside = {
        f"{name}/{n}": c for name, visit in recorded.items() for n, c in visit.coordinator.items()
    }

    def feed(folder: Path) -> None:
        [path] = folder.glob("*/message.json")
        coordinator = Coordinator.open(path.parent)
        limit = int(coordinator.settings.max_message_mb * 2**20)
        expected = partial(coordinator.rules.expects, coordinator.server)
        reply = read_reply(_carried(path), silo="north", expected=expected, max_bytes=limit)
        replies = {"south": recorded[path.parent.name].replies["south"], "north": reply}
        next(coordinator.rounds(_Answering(coordinator, replies)).steps())

    return FuzzTarget(seeds, feed, beside)


def _sums(root: Path) -> FuzzTarget:
    """Phases of a secure sum, as a silo is asked for them by an operator who lies."""
    coordinator = Coordinator.create(root / "coordinator", _agreed(method="linked"))
    settings, silos = coordinator.settings, {}
    for number, name in enumerate(SECURE):
        coordinator.members.admit(name, number)
        labels = {"well": (0,), "ill": (1,)}
        client = Client(name=name, data="rows.csv", label="ill", labels=labels)
        silos[name] = SiloFolder.create(root / name, client, agreed=settings)
        (root / name / "rows.csv").write_bytes(_csv(_rows(number)))
        create_pair(root / name / "key", root / name / "key.pub")
    for name in SECURE:
        pin(root / name, {other: read_public(root / other / "key.pub") for other in SECURE})
    runner = _Summing(coordinator, silos)
    for _ in range(3):  # keys, a sum, and one more that is built on it
        next(coordinator.rounds(runner).steps())
    seeds = [
        {f"{n}/said.jsonl": f"{one.totals}\n{one.text}".encode()}
        for n, one in enumerate(runner.heard)
    ]
    beside = {
        f"{n}/{path}": content
        for n, one in enumerate(runner.heard)
        for path, content in one.files.items()
    }

    def feed(folder: Path) -> None:
        [path] = folder.glob("*/said.jsonl")
        totals, _, text = path.read_text(errors="replace").partition("\n")
        asked = read_statement(SumRequest, text, who="a request")
        server = runner.heard[int(path.parent.name)].server
        silo = SiloFolder.open(path.parent)
        visits.add_to_sum(silo, asked, server, settings, run=coordinator.run, totals=totals)

    return FuzzTarget(seeds, feed, beside)


SECURE = ("east", "north", "south")


@dataclass(frozen=True)
class _Heard:
    """A request of a secure sum, and the silo's folder as it was then."""

    server: ServerState
    text: str
    totals: str
    files: Mapping[str, bytes]


class _Summing(SiloRunner):
    """Silos in this process; what one of them is told in a secure sum is kept."""

    def __init__(self, coordinator: Coordinator, silos: Mapping[str, SiloFolder]) -> None:
        super().__init__(coordinator)
        self._silos = silos
        self.heard: list[_Heard] = []

    def connected(self) -> set[str]:
        return {*self._silos}

    def ask(
        self,
        stage: str,
        server: ServerState,
        names: Sequence[str],
        phase: SumPhase | None = None,
    ) -> Asked:
        replies = {}
        for name in names:
            own, run = self._silos[name], self.coordinator.run
            shared, settings = self._rules.shared_with(name, server), self._settings
            if phase is None:
                done = visits.train(own, shared, settings, stage, run=run)
                replies[name] = Reply(server.round, done.update, {}, done.keys)
                continue
            text, totals = phase.statements[name], self._rules.totals(name)
            if name == "north":
                self.heard.append(_Heard(shared, text, totals, _files(own.folder)))
            asked = read_statement(SumRequest, text, who="a request")
            answer, masked = visits.add_to_sum(own, asked, shared, settings, run=run, totals=totals)
            update = Update(name, {n: Entry(v, 1.0) for n, v in masked.items()})
            replies[name] = Reply(server.round, update, statement=answer.model_dump_json())
        return Asked(replies)


def _peers(root: Path) -> FuzzTarget:
    """Lists of keys, as an operator hands them out."""
    for name in SECURE:
        create_pair(root / name, root / f"{name}.pub")
    lines = {name: read_public(root / f"{name}.pub") for name in SECURE}
    seeds = [{"peers.txt": peers_text(lines).encode()}]
    return FuzzTarget(seeds, lambda folder: read_peers(folder / "peers.txt"), {})


# ---- folders --------------------------------------------------------------------------------

RUN: dict[str, Any] = {
    "method": "flic-hl",
    "data": {
        "problem": "noisy-features",
        **{"num_clients": 3, "num_classes": 3, "classes_per_client": 2},
        **{"train_rows_per_class": 12, "test_rows_per_class": 4},
    },
    "training": {"rounds": 2, "participation": 0.7, "local": "1 epochs", "batch_size": 8},
    "embedding": {"latent_dim": 3, "hidden": [4]},
    "model": {"hidden_dim": 3},
    "alignment": {"anchor_samples": 2},
    "pretraining": {"epochs": 0},
}


def _run(root: Path) -> FuzzTarget:
    """A run's folder: the report of it, and going on with it."""
    return _runs(root, {"flic": RUN})


def _runs(root: Path, kinds: Mapping[str, Mapping[str, Any]]) -> FuzzTarget:
    """Each kind of run, finished and not."""
    seeds: list[Case] = []
    configs = [resolve(raw) for raw in kinds.values()]
    for name, config in zip(kinds, configs, strict=True):
        whole, half = root / name / "whole", root / name / "half"
        for folder in (whole, half):
            run_folder.create(folder, config)
        run_folder.resume(whole)
        with _stopped_after(1) as stop:
            run_folder.resume(half, on_step=stop)
        seeds += [_files(folder) for folder in (whole, half)]

    def feed(folder: Path) -> None:
        # Under other settings it is another run, which may rightly take hours.
        if run_folder.read_config(folder) in configs:
            _flic("run", "--resume", folder, "--quiet")
            _flic("report", folder)

    return FuzzTarget(seeds, feed, {})


def _sealed_run(root: Path) -> FuzzTarget:
    """A run's folder with checksums made anew; a new site that joins it reads it, too."""
    kinds = {
        "flic": RUN,
        "meta": {**RUN, "anchors": {"meta_classes": 2}},
        "space": {**RUN, "method": "within-space"},
        "linked": {**RUN, "method": "linked"},
    }
    target = _runs(root, kinds)

    def feed(folder: Path) -> None:
        for path in sorted((folder / "checkpoints").glob("[0-9]*.json")):
            with suppress(ValueError, KeyError, TypeError, AttributeError, RecursionError, OSError):
                _seal_commit(path)
        target.feed(folder)
        if run_folder.read_config(folder).method == RUN["method"]:
            shared_by_run(folder)

    return replace(target, feed=feed)


def _seal_commit(path: Path) -> None:
    """Make the checksums of a step right for whatever its files hold."""
    outer = json.loads(path.read_bytes())
    body = outer["commit"]
    for name in body["files"]:
        if (path.parent / name).is_file():  # those of earlier steps may be gone
            body["files"][name] = digest((path.parent / name).read_bytes())
    outer["sha256"] = digest_of(body)
    path.write_text(json.dumps(outer))


@contextmanager
def _stopped_after(steps: int) -> Generator[Callable[..., None]]:
    class Enough(Exception): ...

    def stop(record: object, total: int, done: int) -> None:
        if done == steps:
            raise Enough

    try:
        yield stop
    except Enough:
        return


def _fitted(root: Path) -> FuzzTarget:
    """A fitted folder: predictions, measures and the report."""
    frames = {name: _rows(seed).drop(columns=["stay", "site"]) for seed, name in enumerate("ab")}
    federation = flic.Federation.from_frames(frames, label="ill")
    federation.fit(
        repeats=2,
        folds=2,
        scheme="splits",
        candidates=["lda", "flic"],
        network={"training": {"rounds": 1, "local": "1 steps"}, "pretraining": {"epochs": 0}},
    )
    federation.save(root / "fitted")

    def feed(folder: Path) -> None:
        _flic("report", folder)
        _flic("predict", folder, folder / "rows.csv", "--client", "a", "-o", folder / "out.csv")
        _flic("evaluate", folder, folder / "rows.csv", "--client", "b")

    return FuzzTarget([_files(root / "fitted")], feed, {"rows.csv": TABLES["north.csv"]})


def _sealed_fitted(root: Path) -> FuzzTarget:
    """A fitted folder with checksums made anew, as whoever hands one on could."""
    target = _fitted(root)

    def feed(folder: Path) -> None:
        with suppress(ValueError, KeyError, TypeError, AttributeError, RecursionError, OSError):
            _seal(folder / "federation.json")
        target.feed(folder)

    return replace(target, feed=feed)


def _seal(path: Path) -> None:
    """Make the checksums of a manifest right for whatever the files hold."""
    manifest = json.loads(path.read_bytes())
    body = manifest["federation"]
    body["files"] = {name: digest((path.parent / name).read_bytes()) for name in body["files"]}
    manifest["sha256"] = digest_of(body)
    path.write_text(json.dumps(manifest))


MAKERS: dict[str, Callable[[Path], FuzzTarget]] = {
    "federation.toml": _federation,
    "silo.toml": _silo,
    "csv": _text_tables,
    "tables": _tables,
    "requests": _requests,
    "replies": _replies,
    "secure-sums": _sums,
    "peers": _peers,
    "run-folder": _run,
    "sealed-run-folder": _sealed_run,
    "fitted-folder": _fitted,
    "sealed-fitted-folder": _sealed_fitted,
}
