"""A federation on loopback whose processes are killed, cut off and restarted at random, for long.

`scripts/soak MINUTES [SEED]`. One federation after the other: each must come to its end with the
result of an undisturbed one of the silos that were counted, and must say why any was not. A wrong
or silent result, a lost round, a process left behind or a federation that stands still is a
failure.
"""

import asyncio
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from random import Random, SystemRandom
from typing import Any

import torch
from flwr.supercore.task_identity import TaskIdentity

from flic.engine.checkpoint import DiskJournal, finished_records
from flic.errors import FlicError
from flic.flower.client_app import FAILED
from flic.flower.coordinator_folder import Coordinator
from flic.flower.federation_settings import FederationSettings
from flic.flower.log import events
from flic.flower.ops.deployment import Address, Deployment
from flic.flower.ops.membership import Membership, ServerAddress
from flic.flower.ops.processes import Service
from flic.flower.ops.supernode import free_port
from flic.flower.pooling import FIRST, LAST, SUMS
from flic.flower.silo_folder import SiloFolder
from hospitals import (
    FIVE,
    NODES,
    PLAIN,
    TINY,
    agree_to_plain_sums,
    alike_frames,
    know_each_other,
    make_here,
    make_silo,
)

#: Methods, and whether what they send is masked.
WAYS = [
    (method, masked) for method in ("flic-class", "flic-hl", "linked") for masked in (False, True)
]
ROUNDS, DEADLINE_S = 8, 30.0
PATIENCE_S = 900.0  # for a federation that is left alone again
LET_IN_S, STARTS = 180.0, 3
END_S = 30.0  # for processes to end with their federation


class Wrong(Exception):
    """An outcome that must not happen, in a sentence."""


# ---- processes ------------------------------------------------------------------------------


def parents() -> dict[int, int]:
    """Every process and its parent."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            words = path.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        found[int(path.parent.name)] = int(words[1])
    return found


def family(service: Service) -> list[int]:
    """The supervisor of a service and all that it started."""
    above, found = parents(), [(service.facts() or {}).get("pid")]
    for pid in found:
        found += [own for own, parent in above.items() if parent == pid]
    return [pid for pid in found if pid is not None]


def send(pids: Iterable[int], number: int) -> None:
    """Send a signal to those that still live."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


def processes_of(root: Path) -> dict[int, str]:
    """Living processes that were started for the federations below a folder."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if (
                str(root).encode() in (path / "environ").read_bytes()
                and int(path.name) != os.getpid()
            ):
                found[int(path.name)] = (
                    (path / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                )
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
    return found


# ---- the way to the coordinator -------------------------------------------------------------


class SiloLink:
    """A way from a silo to its coordinator that can be cut, or let nothing through."""

    def __init__(self, loop: asyncio.AbstractEventLoop, port: int) -> None:
        self.address = f"127.0.0.1:{free_port()}"
        self._loop, self._port = loop, port
        self._is_cut = False
        self._flows = asyncio.Event()
        self._flows.set()
        self._ends: set[asyncio.Transport] = set()
        self._do(asyncio.start_server(self._visit, "127.0.0.1", int(self.address.split(":")[1])))

    def cut(self) -> None:
        """Break all connections, and every new one."""
        self._is_cut = True
        self._loop.call_soon_threadsafe(lambda: [end.abort() for end in self._ends])

    def block(self) -> None:
        """Keep connections and let nothing through."""
        self._loop.call_soon_threadsafe(self._flows.clear)

    def mend(self) -> None:
        """Let everything through again."""
        self._is_cut = False
        self._loop.call_soon_threadsafe(self._flows.set)

    def _do(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    async def _visit(self, silo: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        try:
            if self._is_cut:
                raise ConnectionAbortedError
            there, onward = await asyncio.open_connection("127.0.0.1", self._port)
        except OSError:
            back.transport.abort()
            return
        ends = {back.transport, onward.transport}
        self._ends |= ends
        await asyncio.gather(self._pump(silo, onward), self._pump(there, back))
        self._ends -= ends

    async def _pump(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(65_536):
                await self._flows.wait()
                target.write(data)
                await target.drain()
        except OSError:
            pass
        finally:
            target.close()


# ---- one federation -------------------------------------------------------------------------


class Bout:
    """One federation from its first round to its last, and what is done to it."""

    def __init__(self, root: Path, random: Random, loop: asyncio.AbstractEventLoop) -> None:
        self.root, self.random = root, random
        self.method, self.is_masked = random.choice(WAYS)
        self.quorum = random.choice([2, 3])
        # Of three, no sum could be unmasked once one is away.
        self.frames = alike_frames(FIVE) if self.is_masked else dict.fromkeys(NODES)
        self.done: list[str] = []  # what was done to it
        self.seen: list[Any] = []  # finished rounds
        self.ended: list[str] = []  # why training ended before its last round
        self._began = time.monotonic()
        self._is_over = False
        self._starts: dict[str, Future[None]] = {}  # the latest of each silo
        self._pool = ThreadPoolExecutor(8)
        address = Address(hosts=("127.0.0.1",), port=free_port())
        self.deployment = Deployment.create(root / "coordinator", self._settings(), address)
        self.members = self._silos()
        self.links = {name: SiloLink(loop, address.port) for name in self.frames}

    def _silos(self) -> dict[str, Membership]:
        """Silos that agree to the settings and know each other."""
        folders = {name: self.root / name for name in self.frames}
        settings = Coordinator.open(self.deployment.folder).settings
        for name, folder in folders.items():
            make_silo(folder, self.frames[name])
            if self.method == "linked" and not self.is_masked:
                agree_to_plain_sums(folder, settings)
        know_each_other(folders)
        return {name: Membership(SiloFolder.open(folder)) for name, folder in folders.items()}

    def _settings(self) -> FederationSettings:
        """Settings that its silos agree on."""
        return FederationSettings(
            classes=("well", "ill"),
            network=TINY,
            method=self.method,
            rounds=ROUNDS,
            quorum=self.quorum,
            evaluate_every=3,
            deadline_s=DEADLINE_S,
            **({"secure_sums": True} if self.is_masked else PLAIN),
        )

    def run(self, until: float) -> str:
        """Run it; returns the outcome in a few words.

        Raises:
            Wrong: what must not happen did.
        """
        try:
            self.deployment.start()
            for name, member in self.members.items():
                self.deployment.admit(name, str(member.public_key))
            self._starts = {name: self._pool.submit(self._start, name) for name in self.members}
            self._settle(self._starts.values())
            training = self._pool.submit(self._train)
            self._disturb(training, until)
            self._settle([*self._starts.values(), training])
            self._look()
        finally:
            for link in self.links.values():
                link.mend()
            self._is_over = True
            self._stop()
            self._pool.shutdown(cancel_futures=True)
            self._stop()  # what may have been started meanwhile
        self._refuse_leftovers()
        return self._compared()

    def _stop(self) -> None:
        for service in self._services().values():
            send(family(service), signal.SIGCONT)
            service.stop()

    def _services(self) -> dict[str, Service]:
        return {"coordinator": self.deployment.service} | {
            name: member.service for name, member in self.members.items()
        }

    def _settle(self, work: Iterable[Future[None]]) -> None:
        """Wait for work that must end."""
        until = time.monotonic() + PATIENCE_S
        for own in [*work]:
            while not own.done():
                self._look()
                if time.monotonic() > until:
                    raise Wrong(f"it stands still: not done {PATIENCE_S:.0f} s after the last push")
                time.sleep(0.5)
            own.result()

    def _train(self) -> None:
        """Train to the end; whenever it stops before, it says why, and goes on."""
        while not self._is_over:
            try:
                self.deployment.train()
                return
            except FlicError as error:
                self.ended.append(str(error))
                time.sleep(1)

    def _start(self, name: str) -> None:
        """Let a silo take part (again)."""
        server = ServerAddress(self.links[name].address, self.deployment.certificates.authority)
        for left in reversed(range(STARTS)):
            try:
                self.members[name].start(server, seconds=LET_IN_S)
                return
            except FlicError as error:
                if not left or self._is_over:
                    raise Wrong(f"silo {name} cannot come back: {error}") from error

    def _look(self) -> None:
        """Refuse the loss of a finished round."""
        now = finished_records(self.deployment.folder)
        if now[: len(self.seen)] != self.seen:
            raise Wrong(f"of {len(self.seen)} finished rounds, some are lost or changed")
        self.seen = now

    # ---- what is done to it --------------------------------------------------------------

    def _disturb(self, training: Future[None], until: float) -> None:
        """Do something bad every few seconds, some times."""
        for _ in range(self.random.randint(3, 7)):
            pause = time.monotonic() + self.random.uniform(1, 15)
            while time.monotonic() < pause and not training.done():
                self._look()
                time.sleep(0.2)
            if training.done() or time.monotonic() > until:
                return
            there = [name for name, start in self._starts.items() if start.done()]
            name = self.random.choice([*there, "coordinator"])
            self.random.choice(
                [self._kill_child, self._kill_supervisor, self._kill_all, self._freeze]
                + ([self._restart] if name == "coordinator" else [self._leave, self._cut])
            )(name)

    def _note(self, what: str) -> None:
        rounds = len(self.seen)
        self.done.append(f"{time.monotonic() - self._began:.0f} s, after round {rounds}: {what}")

    def _kill_child(self, name: str) -> None:
        service = self._services()[name]
        child = (service.facts() or {}).get("child")
        if child is not None:
            self._note(f"killed the process of {name}, whose supervisor starts it again")
            send([child], signal.SIGKILL)

    def _kill_supervisor(self, name: str) -> None:
        self._note(f"killed the supervisor of {name}")
        send(family(self._services()[name])[:1], signal.SIGKILL)
        self._come_back(name)

    def _kill_all(self, name: str) -> None:
        self._note(f"killed all processes of {name}")
        send(family(self._services()[name]), signal.SIGKILL)
        self._come_back(name)

    def _leave(self, name: str) -> None:
        self._note(f"{name} leaves, and comes back")
        self._services()[name].stop()
        self._come_back(name)

    def _restart(self, name: str) -> None:
        self._note("the coordinator is stopped")
        self._services()[name].stop()

    def _come_back(self, name: str) -> None:
        """Start a silo again, after a while; `train` starts the coordinator by itself."""
        if name != "coordinator":
            time.sleep(self.random.uniform(0, 5))
            self._starts[name] = self._pool.submit(self._start, name)

    def _freeze(self, name: str) -> None:
        seconds = self.random.uniform(1, 25)
        self._note(f"froze {name} for {seconds:.0f} s")
        pids = family(self._services()[name])
        send(pids, signal.SIGSTOP)
        time.sleep(seconds)
        send(pids, signal.SIGCONT)

    def _cut(self, name: str) -> None:
        seconds, link = self.random.uniform(1, 25), self.links[name]
        how = self.random.choice(["cut", "block"])
        self._note(f"{how} the way of {name} for {seconds:.0f} s")
        {"cut": link.cut, "block": link.block}[how]()
        time.sleep(seconds)
        link.mend()

    # ---- what came of it -----------------------------------------------------------------

    def _refuse_leftovers(self) -> None:
        until = time.monotonic() + END_S
        while left := processes_of(self.root):
            if time.monotonic() > until:
                send(left, signal.SIGKILL)
                raise Wrong(f"processes were left behind: {'; '.join(left.values())}")
            time.sleep(0.2)

    def _compared(self) -> str:
        """The outcome, if its rounds explain its result."""
        self._refuse_other_rounds()
        left_out = self._left_out()
        last = DiskJournal(self.deployment.folder / "checkpoints").server
        assert last is not None
        unsure = [pair for pair in left_out if pair not in self._trained()]
        # A silo that is killed may have learnt from a round just before it could note that.
        for also in ([], *([pair] for pair in unsure)):
            if _same(last.shared, self._replayed({*self._trained(), *also})):
                break
        else:
            raise Wrong("its result is not that of the same rounds undisturbed")
        said = f"{len(self.done)} disturbances, training ended early {len(self.ended)} times; "
        if not left_out:
            return said + "the undisturbed result"
        listed = ", ".join(f"{name} in round {number}" for name, number in left_out)
        return said + f"the undisturbed result but for {listed}"

    def _refuse_other_rounds(self) -> None:
        rounds = [record["round"] for record in self.seen]
        if self.method == "linked" and self.is_masked:
            if rounds != [*range(FIRST, LAST + 1)]:
                raise Wrong(f"its rounds are {rounds}; expected {FIRST} to {LAST}, each once")
        elif self.method == "linked":
            # Whoever fails is left out, and the others begin anew with the sums they have sent.
            anew = [i for i in range(2, len(rounds)) if rounds[i] == SUMS]
            without = [{*self.seen[i]["bytes"]} < {*self.seen[i - 1]["bytes"]} for i in anew]
            rounds = rounds[:1] + rounds[anew[-1] if anew else 1 :]
            if rounds != [*range(FIRST, LAST + 1)] or not all(without):
                raise Wrong(f"its rounds are {[r['round'] for r in self.seen]}")
        elif rounds != [*range(1, ROUNDS + 2)]:
            raise Wrong(f"its rounds are {rounds}; expected 1 to {ROUNDS + 1}")

    def _left_out(self) -> list[tuple[str, int]]:
        """Silos that were not counted in a round, each of which is named with a reason."""
        found, members = [], {*self.frames}
        for record in self.seen:
            why = {**record["absent"], **record["refused"]}
            expected = members
            if self.method == "linked":  # once left out, a silo is asked no more
                members = members & {*record["bytes"]}
            for name in sorted(expected - {*record["bytes"]}):
                if not why.get(name):
                    raise Wrong(
                        f"silo {name} is not in round {record['round']}, and nothing says why"
                    )
                if why[name].startswith(f"error {FAILED}:"):
                    self._refuse_tracebacks(name)
                found.append((name, record["round"]))
            if record["refused"]:
                raise Wrong(f"an honest silo was refused: {record['refused']}")
        return found

    def _refuse_tracebacks(self, name: str) -> None:
        """Refuse failures that are no sentence of flic's; the silo's own log alone has them."""
        for event in events(self.members[name].folder):
            if event["event"] == "failed" and "expected" not in event["message"]:
                raise Wrong(f"silo {name} failed: {event['message']}")

    def _trained(self) -> set[tuple[str, int]]:
        """Silos and the rounds that they learnt from, counted or not."""
        return {
            (name, event["round"])
            for name, member in self.members.items()
            for event in events(member.folder)
            if event["event"] == "trained"
        }

    def _replayed(self, trained: set[tuple[str, int]]) -> dict[str, torch.Tensor]:
        """The shared part after the same rounds of the same silos in this process."""
        with tempfile.TemporaryDirectory(dir=self.root) as root:
            settings = Coordinator.open(self.deployment.folder).settings
            agreed = settings.model_dump(exclude={"classes", "network", "deadline_s"})
            here = make_here(Path(root), frames=self.frames, names=[*self.frames], **agreed)
            for record in self.seen:
                counted, number = {*record["bytes"]}, record["round"]
                here.grid.away = {
                    n for n in self.frames if n not in counted and (n, number) not in trained
                }
                here.grid.change = lambda name, _, content, who=counted: (
                    content if name in who else None
                )
                here.go(1)
            server = here.coordinator.journal.server
            assert server is not None
            return dict(server.shared)


def _same(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> bool:
    return ours.keys() == theirs.keys() and all(
        torch.allclose(value, theirs[name], rtol=0, atol=1e-5) for name, value in ours.items()
    )


# ---- all of them ----------------------------------------------------------------------------


def main(minutes: float, seed: int) -> int:
    """Exit code of a whole run."""
    if sys.platform != "linux":
        sys.exit("scripts/soak: got another system; expected Linux, whose /proc says who is alive")
    for name in ("_task_id", "_run_id", "_node_id"):
        setattr(TaskIdentity, name, 1)  # Flower's messages want to know in which run they are made
    torch.set_num_threads(1)
    for sign in (signal.SIGINT, signal.SIGTERM):  # processes end with who is told to end
        signal.signal(sign, lambda number, frame: sys.exit(f"stopped by signal {number}"))
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    root = Path(tempfile.mkdtemp(prefix="flic-soak-"))
    print(f"seed {seed}, {minutes:g} minutes", flush=True)
    until, number, failures, disturbances = time.monotonic() + 60 * minutes, 0, 0, 0
    while time.monotonic() < until:
        number += 1
        began, folder = time.monotonic(), root / str(number)
        folder.mkdir()
        bout = Bout(folder, Random(f"{seed} {number}"), loop)
        masked = " under masks" if bout.is_masked else ""
        what = f"federation {number}, {bout.method}{masked}, quorum {bout.quorum}"
        try:
            came = bout.run(until)
            shutil.rmtree(folder)
        except Exception as error:
            failures += 1
            send(processes_of(folder), signal.SIGKILL)
            told = str(error) if isinstance(error, Wrong) else traceback.format_exc()
            lines = [told, "", "What was done:", *bout.done, "", "Why training ended:", *bout.ended]
            (folder / "failure.txt").write_text("\n".join(lines) + "\n")
            came = f"FAILED: {told.strip().splitlines()[-1]} What was done and all logs: {folder}"
        disturbances += len(bout.done)
        print(f"{what}, {time.monotonic() - began:.0f} s: {came}", flush=True)
    print(f"{number} federations, {disturbances} disturbances, {failures} failures")
    if failures:
        print(f"all that is left of those that failed: {root}")
        return 1
    shutil.rmtree(root)
    return 0


if __name__ == "__main__":
    given = dict(enumerate(sys.argv))
    sys.exit(main(float(given[1]), int(given.get(2, SystemRandom().randrange(2**31)))))
