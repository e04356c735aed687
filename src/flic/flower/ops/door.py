"""The coordinator's door: how many connections are kept, whose, and how long they are waited for.

A connection belongs to its address, until Flower has answered a silo or the operator on it; then
it is theirs. None has more than its share. When all places are taken, the address that keeps most
of them without having proved who it is loses its oldest one to whoever comes next, so that silos
get in however many connections strangers leave open.
"""

import asyncio
import resource
import signal
import socket
import ssl
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from logging import getLogger
from typing import Any

import uvicorn
from h11 import LocalProtocolError
from uvicorn.protocols.http.h11_impl import H11Protocol

from flic.flower.ops.quota import Quota

VISITOR = "visitor"  # under which requests hold their connection
LOOK_S, COUNT_S = 1.0, 60.0  # between looks at who is late, and counts of lines left out
PAUSE_S = 1.0  # after a connection that the system did not give
FAREWELL_S = 3.0  # for the other side to end its half of TLS

#: What OpenSSL calls the reasons of failed handshakes, and what they mean.
HANDSHAKES = {
    "HTTP_REQUEST": "it spoke plain HTTP",
    "WRONG_VERSION_NUMBER": "it did not speak TLS",
    "TLSV1_ALERT_UNKNOWN_CA": "it does not trust this coordinator's certificate (wrong ca.crt)",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "it finds this coordinator's certificate expired",
    "SSLV3_ALERT_BAD_CERTIFICATE": "it expects a certificate for another name",
}

log = getLogger("flwr")


@dataclass(frozen=True)
class Limits:
    """What is kept and waited for."""

    connections: int
    per_owner: int  # of one address, or of one silo
    handshake_s: float = 10.0
    request_s: float = 20.0  # for a request's head and body …
    slowest: int = 4096  # … and a second more for so many bytes of it


class Visitor:
    """One connection: whose it is, and since when it keeps us waiting."""

    def __init__(self, address: str) -> None:
        self.address = self.owner = address
        self.greeting: asyncio.Task[None] | None = None
        self.transport: asyncio.Transport | None = None  # when TLS is agreed
        self.received = 0
        self._since: float | None = None

    @property
    def is_stranger(self) -> bool:
        """Whether nobody has been answered on it yet who may ask."""
        return self.owner == self.address

    def wait(self) -> None:
        """Wait for a request from now on."""
        self._since, self.received = time.monotonic(), 0

    def stop_waiting(self) -> None:
        """Its request is here."""
        self._since = None

    def is_late(self, limits: Limits) -> bool:
        """Whether it was waited for long enough."""
        if self._since is None:
            return False
        allowed = limits.request_s + self.received / limits.slowest
        return time.monotonic() - self._since > allowed

    def hang_up(self) -> None:
        """End the connection at once."""
        if self.transport is not None:
            self.transport.abort()
        elif self.greeting is not None:
            self.greeting.cancel()


class Door:
    """Accepts connections and ends those that are too many or too slow."""

    def __init__(self, listener: socket.socket, limits: Limits, quota: Quota) -> None:
        self._listener = listener
        self._limits = limits
        self._quota = quota
        self._places = limits.connections  # fewer, for a while, where the system gives no more
        self._visitors: dict[Visitor, None] = {}  # the oldest first
        self._tasks: list[asyncio.Task[None]] = []

    def open(
        self, welcome: Callable[[Visitor], asyncio.Protocol], safe: ssl.SSLContext | None
    ) -> None:
        """Let visitors in, each to a protocol of its own, with TLS where a context is given."""
        self._tasks = [
            asyncio.create_task(self._accept(welcome, safe)),
            asyncio.create_task(self._watch()),
        ]
        for task in self._tasks:
            task.add_done_callback(_end_after_fault)

    def close(self) -> None:
        """Let nobody in any more, and wait for no stranger."""
        for task in self._tasks:
            task.cancel()
        self._listener.close()
        for visitor in [visitor for visitor in self._visitors if visitor.is_stranger]:
            self._hang_up(visitor)
        self._quota.tell(log)

    async def wait_closed(self) -> None:
        """Wait until all who work here have ended."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def forget(self, visitor: Visitor) -> None:
        """Its connection has ended."""
        self._visitors.pop(visitor, None)

    async def _accept(
        self, welcome: Callable[[Visitor], asyncio.Protocol], safe: ssl.SSLContext | None
    ) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                sock, peer = await loop.sock_accept(self._listener)
            except ConnectionAbortedError:
                continue
            except OSError as error:  # too many open files, here or in the whole system
                log.warning("no new connections for %.0f s: %s", PAUSE_S, error.strerror)
                self._give_back()
                await asyncio.sleep(PAUSE_S)
                continue
            visitor = Visitor(peer[0])
            if self._has_place(visitor):
                self._visitors[visitor] = None
                greeting = self._greet(visitor, sock, welcome, safe)
                visitor.greeting = asyncio.create_task(greeting)
            else:
                sock.close()
            await asyncio.sleep(0)  # else a burst of connections would keep all others waiting

    def _has_place(self, visitor: Visitor) -> bool:
        """Whether one more may come in; somebody else may have to leave for it."""
        self._keep_share(visitor.owner, self._limits.per_owner - 1)
        if len(self._visitors) < self._places or self._make_room():
            return True
        log.warning(
            "refused %s: silos have all %d places",
            visitor.address,
            self._places,
            extra={"peer": visitor.address},
        )
        return False

    def _give_back(self) -> None:
        """Keep an eighth less than now, until the next count, so that Flower finds files too."""
        self._places = max(1, len(self._visitors) * 7 // 8)
        while len(self._visitors) > self._places and self._make_room():
            continue

    def _keep_share(self, owner: str, share: int) -> None:
        """Leave no more than its share to an owner."""
        own = [visitor for visitor in self._visitors if visitor.owner == owner]
        for visitor in own[: max(0, len(own) - share)]:
            log.warning(
                "hung up on %s: it has more than %d connections",
                owner,
                self._limits.per_owner,
                extra={"peer": owner},
            )
            self._hang_up(visitor)

    def _make_room(self) -> bool:
        """End a stranger's connection, of the address that keeps most of them."""
        strangers = [visitor for visitor in self._visitors if visitor.is_stranger]
        if not strangers:
            return False
        [(address, count)] = Counter(v.address for v in strangers).most_common(1)
        log.warning(
            "hung up on %s: no place is free, and it keeps %d without having shown a key",
            address,
            count,
            extra={"peer": address},
        )
        self._hang_up(next(v for v in strangers if v.address == address))
        return True

    def _hang_up(self, visitor: Visitor) -> None:
        self.forget(visitor)
        visitor.hang_up()

    async def _greet(
        self,
        visitor: Visitor,
        sock: socket.socket,
        welcome: Callable[[Visitor], asyncio.Protocol],
        safe: ssl.SSLContext | None,
    ) -> None:
        """Agree on TLS; from then on the protocol has the connection."""
        times = {
            "ssl_handshake_timeout": self._limits.handshake_s,
            "ssl_shutdown_timeout": FAREWELL_S,
        }
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: welcome(visitor), sock, ssl=safe, **(times if safe else {})
            )
        except OSError as error:
            log.warning(
                "refused %s in the handshake: %s",
                visitor.address,
                self._meaning(error),
                extra={"peer": visitor.address},
            )
        finally:
            if visitor.transport is None:
                self.forget(visitor)

    def _meaning(self, error: OSError) -> str:
        if isinstance(error, ssl.SSLError):
            reason = error.reason or "unknown reason"
            return HANDSHAKES.get(reason, reason.lower().replace("_", " "))
        if isinstance(error, ConnectionAbortedError):
            return f"it took more than {self._limits.handshake_s:.0f} s"
        return "it hung up"

    async def _watch(self) -> None:
        counted = time.monotonic()
        while True:
            await asyncio.sleep(LOOK_S)
            for visitor in [v for v in self._visitors if v.is_late(self._limits)]:
                log.warning(
                    "hung up on %s: its request did not come in time (%d bytes did)",
                    visitor.address,
                    visitor.received,
                    extra={"peer": visitor.address},
                )
                self._hang_up(visitor)
            for owner in {visitor.owner for visitor in self._visitors}:
                self._keep_share(owner, self._limits.per_owner)
            if time.monotonic() - counted > COUNT_S:
                self._quota.tell(log)
                self._places = self._limits.connections
                counted = time.monotonic()


def _end_after_fault(task: asyncio.Task[None]) -> None:
    """End the process, which its supervisor starts anew, rather than go on without a door."""
    if not task.cancelled() and task.exception() is not None:
        log.error("the door failed", exc_info=task.exception())
        signal.raise_signal(signal.SIGTERM)


class Connection(H11Protocol):
    """HTTP on one connection, whose door hears what comes in and when it ends.

    Of uvicorn's two, this one bounds the head of a request.
    """

    def __init__(self, door: Door, visitor: Visitor, **named: Any) -> None:
        super().__init__(**named)
        self._door = door
        self._visitor = visitor

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a request."""
        self._visitor.transport = transport
        self._visitor.wait()
        super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        """Take a part of a request."""
        if self.transport.is_closing():
            return
        self._visitor.received += len(data)
        try:
            super().data_received(data)
        except LocalProtocolError:  # nonsense after an answer, to which none can be given
            self._visitor.hang_up()

    def send_400_response(self, msg: str) -> None:
        """Answer what cannot be understood."""
        peer = self._visitor.address
        log.warning("refused %s: what it sent is not HTTP", peer, extra={"peer": peer})
        super().send_400_response(msg)

    def connection_lost(self, exc: Exception | None) -> None:
        """Give the place back."""
        super().connection_lost(exc)
        self._door.forget(self._visitor)


class Server(uvicorn.Server):
    """uvicorn's server behind the door, instead of asyncio's, which lets everybody in."""

    def __init__(self, config: uvicorn.Config, door: Door) -> None:
        super().__init__(config)
        self._door = door

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start the app, then open the door."""
        await super().startup(sockets=sockets or [])
        if self.started:
            self.servers: list[Any] = [self._door]
            self._door.open(self._welcome, self.config.ssl)

    def _welcome(self, visitor: Visitor) -> Connection:
        state = {**self.lifespan.state, VISITOR: visitor}
        named = {"config": self.config, "server_state": self.server_state, "app_state": state}
        return Connection(self._door, visitor, **named)


def within_descriptors(connections: int) -> int:
    """How many of so many connections there can be; at most half of all files are for them."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * connections
    if soft < wanted and soft != resource.RLIM_INFINITY:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return connections
    log.warning(
        "at most %d connections instead of %d: the system gives this process %d open files; "
        "expected %d. Raise LimitNOFILE or ulimit -n.",
        *(soft // 2, connections, soft, wanted),
    )
    return soft // 2
