"""The coordinator as a Flower app: it carries the messages of every round.

Run config: `coordinator-dir`, the coordinator's folder. The round loop is `flic.engine.rounds`.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from flwr.app import Context, Message, MessageType
from flwr.serverapp import Grid, ServerApp

from flic.engine.engine import EVALUATE
from flic.engine.journal import Record
from flic.errors import FlicError, IncompatibleUpdate
from flic.files import alone_in
from flic.flower.coordinator_folder import Coordinator
from flic.flower.exchange import Asked, Request, SumPhase
from flic.flower.messages import pack_request, read_reply
from flic.flower.patches import cap_tensors, cap_upload_wait
from flic.flower.run_request import clear_request
from flic.flower.runner import SiloRunner
from flic.methods.protocol import ServerState

app = ServerApp()

REPLY_S = 0.5  # between looks for answers
END_S = 90.0  # for an app that outlived its SuperLink to end
UPLOAD_S = 60.0  # from the announcement of an answer to its last part

#: Errors that Flower raises where the parts of a message do not fit together.
UNREADABLE = (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError)


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Do all rounds that are not done yet."""
    coordinator = Coordinator.open(Path(str(context.run_config["coordinator-dir"])))
    cap_tensors(int(coordinator.settings.max_message_mb * 2**20))
    cap_upload_wait(min(UPLOAD_S, coordinator.settings.deadline_s))
    for _ in conduct(coordinator, grid, patience_s=END_S):
        pass


def conduct(coordinator: Coordinator, grid: Grid, *, patience_s: float = 0.0) -> Iterator[Record]:
    """Records of the rounds still to be done, each on the disk before it is yielded.

    `patience_s` is for another app to end that still works on the folder.
    """
    with alone_in(coordinator.folder, patience_s=patience_s):
        try:
            runner = FlowerRunner(coordinator, grid)
            runner.wait(len(coordinator.members.welcome()))  # for who starts a moment later
            yield from coordinator.rounds(runner).steps()
            coordinator.rules.finish()
            clear_request(coordinator.folder)
        except FlicError as error:
            coordinator.stop(str(error))
            raise


class FlowerRunner(SiloRunner):
    """Silos that are reached by Flower's messages."""

    def __init__(self, coordinator: Coordinator, grid: Grid) -> None:
        super().__init__(coordinator)
        self._grid = grid

    def connected(self) -> set[str]:
        return {*self._nodes()}

    def _nodes(self) -> dict[str, int]:
        """Nodes of the silos that may take part and are there."""
        there, welcome = set(self._grid.get_node_ids()), self.coordinator.members.welcome()
        return {name: node for name, node in welcome.items() if node in there}

    def ask(
        self,
        stage: str,
        server: ServerState,
        names: Sequence[str],
        phase: SumPhase | None = None,
    ) -> Asked:
        nodes, found = self.coordinator.members.welcome(), Asked()
        names = sorted(name for name in names if name in nodes)
        requests = [self._message(stage, server, name, nodes[name], phase) for name in names]
        sent, wait_s = self._grid.push_messages(requests), self.coordinator.settings.deadline_s
        until = time.monotonic() + wait_s
        with ThreadPoolExecutor(max(1, len(names))) as pool:
            # Each by itself: one that keeps its answer back must not keep back the others'.
            answers = pool.map(lambda request: _answer(self._grid, request, until), sent)
            for name, answer in zip(names, answers, strict=True):
                if answer is None:
                    found.absent[name] = f"no answer within {wait_s:g} s"
                elif isinstance(answer, str):
                    found.refused[name] = f"answer of silo {name!r} cannot be read: {answer}"
                else:
                    self._take(found, name, nodes[name], self._expected(server, phase), answer)
        return found

    def _message(
        self, stage: str, server: ServerState, name: str, node: int, phase: SumPhase | None
    ) -> Message:
        coordinator, rules = self.coordinator, self.coordinator.rules
        is_shared = phase is None or phase.has_shared
        request = Request(
            coordinator.run,
            stage,
            rules.shared_with(name, server) if is_shared else ServerState(server.round, {}),
            coordinator.settings,
            coordinator.members.last_refusal(name),
            rules.holders(name),
            phase.statements[name] if phase else "",
            rules.totals(name) if is_shared else "",
        )
        kind = MessageType.EVALUATE if stage == EVALUATE else MessageType.TRAIN
        ttl = coordinator.settings.deadline_s  # a request that nobody waits for any more is void
        return Message(pack_request(request), node, kind, ttl=ttl, group_id=str(server.round))

    def _expected(
        self, server: ServerState, phase: SumPhase | None
    ) -> Callable[[tuple[str, ...]], ServerState]:
        """Names and shapes that an answer may hold."""
        if phase is None:
            return partial(self.coordinator.rules.expects, server)
        return lambda keys: ServerState(server.round, phase.expected)

    def _take(
        self,
        found: Asked,
        name: str,
        node: int,
        expected: Callable[[tuple[str, ...]], ServerState],
        message: Message,
    ) -> None:
        """Put the answer of a silo where it belongs."""
        if message.has_error():
            reason = "".join(c for c in (message.error.reason or "") if c.isprintable())[:200]
            found.absent[name] = f"error {message.error.code}: {reason or 'no reason given'}"
            return
        try:
            _refuse_other_sender(message, name, node)
            found.replies[name] = read_reply(
                message.content,
                silo=name,
                expected=expected,
                max_bytes=int(self.coordinator.settings.max_message_mb * 2**20),
            )
        except IncompatibleUpdate as error:
            found.refused[name] = str(error)


def _refuse_other_sender(message: Message, name: str, node: int) -> None:
    """Refuse an answer of another node: a silo is known by its key, whatever an answer says."""
    if message.metadata.src_node_id != node:
        raise IncompatibleUpdate(
            f"answer of silo {name!r} was sent by node {message.metadata.src_node_id}; "
            f"expected node {node}, which has its key. Look for who has another's folder."
        )


def _answer(grid: Grid, request: str, until: float) -> Message | str | None:
    """The answer to a request, the reason why it cannot be read, or None if none came in time."""
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
