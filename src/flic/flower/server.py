"""The coordinator as a Flower app: it carries the messages of every round.

Run config: `coordinator-dir`, the coordinator's folder. All rules are in `rounds`.
"""

import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from flwr.app import Context, Message, MessageType
from flwr.serverapp import Grid, ServerApp

from flic.engine.engine import Stage
from flic.engine.journal import Record
from flic.errors import FlicError, IncompatibleUpdate
from flic.files import alone_in
from flic.flower.answers import Answers, Figures
from flic.flower.keeper import release
from flic.flower.messages import Reply, Request, cap_tensors, pack_request, read_reply
from flic.flower.rounds import Coordinator
from flic.methods.protocol import ServerState

app = ServerApp()

POLL_S = 1.0  # between looks at who is there
REPLY_S = 0.5  # between looks for answers
END_S = 90.0  # for an app that outlived its SuperLink to end
UPLOAD_S = 60.0  # from the announcement of an answer to its last part

#: What Flower raises where the parts of a message do not fit together.
UNREADABLE = (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError)


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Do all rounds that are not done yet."""
    coordinator = Coordinator.open(Path(str(context.run_config["coordinator-dir"])))
    cap_tensors(int(coordinator.settings.max_message_mb * 2**20))
    _wait_for_no_part(min(UPLOAD_S, coordinator.settings.deadline_s))
    for _ in conduct(coordinator, grid, patience_s=END_S):
        pass


def _wait_for_no_part(seconds: float) -> None:
    """Wait only so long for the parts of an answer that was announced; Flower would for 180 s."""
    by_flower: Any = import_module("flwr.superlink.grid.http_grid")
    by_flower.pull_objects = partial(by_flower.pull_objects, max_time=seconds)


def conduct(coordinator: Coordinator, grid: Grid, *, patience_s: float = 0.0) -> Iterator[Record]:
    """Records of the rounds still to be done, each on the disk before it is yielded.

    `patience_s` is for another app to end that still works on the folder.
    """
    with alone_in(coordinator.folder, patience_s=patience_s):
        try:
            everyone = len(coordinator.members.welcome())
            _wait(coordinator, grid, everyone)  # nobody is left out for starting a moment later
            while not coordinator.is_done:
                _wait(coordinator, grid, min(everyone, coordinator.settings.quorum))
                record = _round(coordinator, grid)
                if record is not None:
                    yield record
            release(coordinator.folder)
        except FlicError as error:
            coordinator.stop(str(error))
            raise


def _wait(coordinator: Coordinator, grid: Grid, count: int) -> None:
    """Wait until so many silos are connected, or the deadline has passed."""
    deadline, told = time.monotonic() + coordinator.settings.deadline_s, False
    while len(there := _connected(coordinator, grid)) < count and time.monotonic() < deadline:
        if not told:
            coordinator.wait_for(coordinator.members.welcome().keys() - there.keys())
        told = True
        time.sleep(min(POLL_S, coordinator.settings.deadline_s))


def _connected(coordinator: Coordinator, grid: Grid) -> dict[str, int]:
    """Silos that may take part and are there, and their nodes."""
    there = set(grid.get_node_ids())
    return {name: node for name, node in coordinator.members.welcome().items() if node in there}


def _round(coordinator: Coordinator, grid: Grid) -> Record | None:
    """One round, from the draw to the disk."""
    started = time.perf_counter()
    connected = _connected(coordinator, grid)
    active = coordinator.choose(connected)
    asked = {name: connected[name] for name in active}
    answers = _Asked()
    if coordinator.stage != "evaluate":
        answers = _ask(coordinator, grid, coordinator.stage, coordinator.server, asked)
    for name in coordinator.members.welcome().keys() - connected.keys():
        answers.absent[name] = "not connected"
    return coordinator.finish(
        coordinator.round,
        _judged(coordinator, answers),
        started=started,
        measure=lambda server: _measured(coordinator, grid, server),
    )


@dataclass
class _Asked:
    """Answers as they came, and who gave none."""

    replies: dict[str, Reply] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)


def _ask(
    coordinator: Coordinator,
    grid: Grid,
    stage: Stage,
    server: ServerState,
    asked: Mapping[str, int],
) -> _Asked:
    """Ask silos, and wait for their answers until the deadline."""
    settings, names = coordinator.settings, sorted(asked)
    requests = [_message(coordinator, stage, server, name, asked[name]) for name in names]
    sent, until = grid.push_messages(requests), time.monotonic() + settings.deadline_s
    found = _Asked()
    with ThreadPoolExecutor(max(1, len(names))) as pool:
        # Each by itself: one that keeps its answer back must not keep back the others'.
        answers = pool.map(lambda request: _answer(grid, request, until), sent)
        for name, answer in zip(names, answers, strict=True):
            if answer is None:
                found.absent[name] = f"no answer within {settings.deadline_s:g} s"
            elif isinstance(answer, str):
                found.refused[name] = f"answer of silo {name!r} cannot be read: {answer}"
            else:
                _take(found, name, asked[name], answer, coordinator)
    return found


def _answer(grid: Grid, request: str, until: float) -> Message | str | None:
    """What came of a request: the answer, why it cannot be read, or nothing in time."""
    while True:
        try:
            for message in grid.pull_messages([request]):
                return message
        except UNREADABLE as error:
            return str(error)
        left = until - time.monotonic()
        if left <= 0:
            return None
        time.sleep(min(REPLY_S, left))


def _message(
    coordinator: Coordinator, stage: Stage, server: ServerState, name: str, node: int
) -> Message:
    request = Request(
        coordinator.run,
        stage,
        coordinator.shared_with(name, server),
        coordinator.settings,
        coordinator.members.last_refusal(name),
        coordinator.holders(name),
    )
    kind = MessageType.EVALUATE if stage == "evaluate" else MessageType.TRAIN
    ttl = coordinator.settings.deadline_s  # a request that nobody waits for any more is void
    group = str(server.round)
    return Message(pack_request(request), node, kind, ttl=ttl, group_id=group)


def _take(
    found: _Asked,
    name: str,
    node: int,
    message: Message,
    coordinator: Coordinator,
) -> None:
    if message.has_error():
        reason = "".join(c for c in (message.error.reason or "") if c.isprintable())[:200]
        found.absent[name] = f"error {message.error.code}: {reason or 'no reason given'}"
        return
    try:
        if message.metadata.src_node_id != node:  # known by its key, whatever an answer says
            raise IncompatibleUpdate(
                f"answer of silo {name!r} was sent by node {message.metadata.src_node_id}; "
                f"expected node {node}, which has its key. Look for who has another's folder."
            )
        limit = int(coordinator.settings.max_message_mb * 2**20)
        found.replies[name] = read_reply(
            message.content, silo=name, expected=coordinator.expects, max_bytes=limit
        )
    except IncompatibleUpdate as error:
        found.refused[name] = str(error)


def _judged(coordinator: Coordinator, asked: _Asked) -> Answers:
    """Answers that count, and why the others do not."""
    refused, sound = dict(asked.refused), dict(asked.replies)
    for name, reply in asked.replies.items():
        why = coordinator.check(name, reply.round, reply.update, reply.keys)
        if why is not None:
            refused[name] = why
            del sound[name]
    keys = {name: reply.keys for name, reply in sound.items()}
    refused |= coordinator.outliers([reply.update for reply in sound.values()], keys)
    counted = {name: reply for name, reply in sound.items() if name not in refused}
    return Answers(
        [reply.update for reply in counted.values()],
        {name: reply.numbers for name, reply in counted.items()},
        asked.absent,
        refused,
        keys,
    )


def _measured(coordinator: Coordinator, grid: Grid, server: ServerState) -> Figures:
    """Figures of every silo that is there, on its own held-out rows."""
    connected = _connected(coordinator, grid)
    members = coordinator.measured(connected)
    asked = _ask(coordinator, grid, "evaluate", server, {name: connected[name] for name in members})
    sound = {
        name: reply.numbers
        for name, reply in sorted(asked.replies.items())
        if reply.round == server.round and coordinator.sound_figures(reply.numbers)
    }
    told = {name for name, reply in asked.replies.items() if reply.numbers}  # not of few rows
    for name in sorted(told - {*sound}):
        coordinator.leave_out_figures(name, server.round)
    return sound
