"""A journal on disk: every step is committed by one atomic rename, and survives `kill -9`.

checkpoints/
  00007.json            the commit: record, settings, SHA-256 of every file it needs, and of
                        what made it
  00007.server.safetensors
  00007.0.safetensors   private states of the clients that changed, stack by stack
Files of earlier steps stay as long as they have a client's latest state, or its state before the
last commit. A commit that does not match its checksums is refused, and the previous one is used. A
commit made with other settings, data or code belongs to another run, and nothing is touched.
"""

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from safetensors import SafetensorError, safe_open
from safetensors.torch import load, save
from torch import Tensor

from flic.digests import digest, digest_of
from flic.engine.journal import Record, stored
from flic.errors import Damaged, OtherRun
from flic.files import make_folder, parse_json, read_bytes, write_atomically
from flic.methods.protocol import ServerState
from flic.settings import differences, in_words
from flic.shapes import Named

VERSION = 1
CHECKPOINTS = "checkpoints"
"""Name of the journal's folder in a run folder."""

_FILE = re.compile(r"\d{5,}\.(server|\d+)\.safetensors\Z")

MadeWith = Mapping[str, str]
"""Origin of a run: "settings", "data", "code" or the like → SHA-256."""


class Commit(BaseModel, strict=True, frozen=True):
    """One finished step as stored on disk."""

    number: int
    record: Record
    files: dict[str, str]  # file name → SHA-256 of what this step wrote
    clients: dict[str, str]  # client → file, of the clients that changed in this step
    origin: dict[str, str] = {}
    settings: dict[str, Any] = {}  # to name those that were changed, if the origin is another

    def dump(self) -> bytes:
        """JSON with a checksum over itself."""
        body = {"version": VERSION, **dict(self)}
        return json.dumps({"sha256": digest_of(body), "commit": body}).encode()

    @classmethod
    def parse(cls, content: bytes) -> "Commit":
        """Read a commit, and verify its checksum and its form."""
        outer = parse_json(content)
        body = outer["commit"]
        if outer["sha256"] != digest_of(body):
            raise ValueError("the checksum does not match")
        if body["version"] != VERSION:
            raise ValueError(f"version {body['version']}, expected {VERSION}")
        stored(body["record"])
        commit = cls.model_validate(body)
        # What is not needed any more is removed, and nothing but checkpoints may be.
        if strange := [f for f in (*commit.files, *commit.clients.values()) if not _FILE.match(f)]:
            raise ValueError(f"it names the file {strange[0][:40]!r}")
        return commit


class DiskJournal:
    """Journal of one run in a folder."""

    def __init__(
        self,
        folder: Path,
        origin: MadeWith | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        """Open the journal of the run with this origin; None accepts any run.

        A damaged last commit is set aside (see `notices`). Commits have a copy of `settings`, so
        that a refusal can name those that changed.

        Raises:
            OtherRun: a commit has another origin.
        """
        self._folder = folder
        self._origin, self._settings = origin or {}, settings or {}
        make_folder(folder)
        self.notices: list[str] = []
        self.server: ServerState | None = None
        self._commits: list[Commit] = []
        self._file_of: dict[str, str] = {}  # client → file with its committed state
        self._residents: Counter[str] = Counter()  # file → clients whose state lies in it
        self._retiring: set[str] = set()  # files that only the commit before the last needs
        self._pending: dict[str, str] = {}
        self._written: dict[str, str] = {}
        self._load()

    @property
    def records(self) -> list[Record]:
        """Records of the committed steps, oldest first."""
        return [commit.record for commit in self._commits]

    # ---- one step ------------------------------------------------------------------------

    def states(self, names: Sequence[str]) -> list[Named | None]:
        """Latest private state of each client, pending ones included; None before the first."""
        where = {name: self._pending.get(name, self._file_of.get(name)) for name in names}
        found: dict[str, dict[str, Tensor]] = {}
        for file in {f for f in where.values() if f is not None}:
            own = [n for n, f in where.items() if f == file]
            found |= self._read(file, own)
            if lacking := [name for name in own if name not in found]:
                raise _damaged(self._folder / file, f"it has no state of {lacking[0]!r}")
        return [found.get(name) for name in names]

    def put(self, states: Mapping[str, Named]) -> None:
        """Write new states of some clients for the next commit."""
        if not states:
            return
        file = f"{len(self._commits):05d}.{len(self._written)}.safetensors"
        flat = {
            f"{name}/{n}": v.contiguous() for name, own in states.items() for n, v in own.items()
        }
        self._write(file, save(flat))
        self._pending |= dict.fromkeys(states, file)

    def commit(self, server: ServerState, record: Record) -> None:
        """Finish the step."""
        number = len(self._commits)
        shared = {name: value.contiguous() for name, value in server.shared.items()}
        self._write(_server_file(number), save(shared, {"round": str(server.round)}))
        # Through JSON, so that a record reads the same before and after a resume.
        record = json.loads(json.dumps(record))
        commit = Commit(
            number=number,
            record=record,
            files=self._written,
            clients=self._pending,
            origin={**self._origin},
            settings={**self._settings},
        )
        write_atomically(self._folder / _commit_file(number), commit.dump())
        self.server = server
        self._pending, self._written = {}, {}
        for file in self._count(commit):
            (self._folder / file).unlink(missing_ok=True)

    def _write(self, file: str, content: bytes) -> None:
        write_atomically(self._folder / file, content)
        self._written[file] = digest(content)

    def _read(self, file: str, names: Sequence[str]) -> dict[str, dict[str, Tensor]]:
        wanted = set(names)
        states: dict[str, dict[str, Tensor]] = {}
        try:
            with safe_open(self._folder / file, framework="pt") as tensors:
                for key in tensors.keys():  # noqa: SIM118 - not a mapping
                    name, parameter = key.rsplit("/", 1)
                    if name in wanted:
                        states.setdefault(name, {})[parameter] = tensors.get_tensor(key)
        except (SafetensorError, ValueError, OSError) as error:
            raise _damaged(self._folder / file, error) from error
        return states

    def _count(self, commit: Commit) -> list[str]:
        """Register a commit; returns the files that neither it nor the one before needs.

        The work depends on the number of changed clients, not on the number of all clients.
        """
        self._commits.append(commit)
        left = {self._file_of[name] for name in commit.clients if name in self._file_of}
        for name, file in commit.clients.items():
            if name in self._file_of:
                self._residents[self._file_of[name]] -= 1
            self._residents[file] += 1
            self._file_of[name] = file
        own = {*commit.files} - {_server_file(commit.number)}
        empty = {file for file in self._retiring | own if not self._residents[file]} - left
        self._retiring = {file for file in left if not self._residents[file]}
        return [*sorted(empty), _server_file(commit.number - 2)]

    # ---- opening -------------------------------------------------------------------------

    def _load(self) -> None:
        """Load the longest sound sequence of commits; report and set aside what comes after it."""
        commits, damage = self._read_commits()
        self._refuse_other(commits)
        while commits:
            try:
                self.server = self._verified_server(commits)
                break
            except Damaged as error:
                if damage is not None:  # files of steps before the previous one are gone
                    raise Damaged(
                        f"{damage}, and the step before it can no longer be restored: {error}. The "
                        "run cannot go on; start it anew in another folder."
                    ) from error
                damage = error
                commits.pop()
        for commit in commits:
            self._count(commit)
        if damage is not None:
            self._set_aside(len(commits), damage)
        self._sweep()

    def _read_commits(self) -> tuple[list[Commit], Damaged | None]:
        """Commits up to the first damaged one."""
        commits: list[Commit] = []
        while (path := self._folder / _commit_file(len(commits))).exists():
            try:
                commit = Commit.parse(read_bytes(path))
                if commit.number != len(commits):
                    raise ValueError(f"it is of step {commit.number}")
                commits.append(commit)
            except (ValueError, KeyError, TypeError) as error:
                return commits, _damaged(path, error)
        return commits, None

    def _refuse_other(self, commits: Sequence[Commit]) -> None:
        """Refuse commits of another origin than this run's."""
        for commit in commits:
            other = [what for what, own in self._origin.items() if commit.origin.get(what) != own]
            if other:
                path = self._folder / _commit_file(commit.number)
                raise OtherRun(
                    f"checkpoint {path} was not made with the {' and the '.join(other)} that the "
                    f"run has now{self._changes(commit)}; expected the same, or what is "
                    "reported would not be what was computed. Put back what was changed, or start "
                    "a new run in another folder."
                )

    def _changes(self, commit: Commit) -> str:
        """Settings that differ from those of a commit, in brackets, as far as is known."""
        said = differences(commit.settings, self._settings) if commit.settings else ""
        return f" ({said})" if said else ""

    def _sweep(self) -> None:
        """Remove the files of an interrupted step."""
        numbers = {commit.number for commit in self._commits[-2:]}
        needed = {*self._file_of.values(), *self._retiring, *map(_server_file, numbers)}
        for path in [*self._folder.glob("*.safetensors"), *self._folder.glob(".*.tmp")]:
            if path.name not in needed:
                path.unlink()

    def _verified_server(self, commits: Sequence[Commit]) -> ServerState:
        """Server state of the last commit, after a check of every file it needs."""
        digests = {file: digest for c in commits for file, digest in c.files.items()}
        latest = {name: file for c in commits for name, file in c.clients.items()}
        for file in sorted({*latest.values(), _server_file(commits[-1].number)}):
            path = self._folder / file
            try:
                is_sound = digest(read_bytes(path)) == digests.get(file)
            except OSError as error:
                raise _damaged(path, error) from error
            if not is_sound:
                raise _damaged(path, "its digest is another")
        return self._server_state(commits[-1])

    def _server_state(self, commit: Commit) -> ServerState:
        path = self._folder / _server_file(commit.number)
        try:
            with safe_open(path, framework="pt") as tensors:
                round = int(tensors.metadata()["round"])
        # An empty server state has no tensors but is sound.
        except (SafetensorError, ValueError, KeyError, TypeError) as error:
            raise _damaged(path, error) from error
        return ServerState(round, load(read_bytes(path)))

    def _set_aside(self, number: int, error: Exception) -> None:
        used = f"step {number - 1}" if number else "the beginning"
        self.notices.append(f"{error}: it is not used; the run goes on from {used}.")
        for path in self._folder.glob("[0-9]*.json"):
            if path.stem.isdecimal() and int(path.stem) >= number:
                path.rename(path.with_suffix(".damaged"))


def finished_records(folder: Path) -> list[Record]:
    """Records of a run's finished steps, oldest first; changes nothing."""
    records: list[Record] = []
    for path in sorted((folder / CHECKPOINTS).glob("[0-9]*.json")):
        try:
            records.append(Commit.parse(read_bytes(path)).record)
        except (ValueError, KeyError, TypeError, OSError):
            break
    return records


def _damaged(path: Path, why: object) -> Damaged:
    """The beginning of a notice, or of an error of several: what follows, it says itself."""
    return Damaged(f"checkpoint file {path} is damaged ({in_words(why)})")


def _commit_file(number: int) -> str:
    return f"{number:05d}.json"


def _server_file(number: int) -> str:
    return f"{number:05d}.server.safetensors"
