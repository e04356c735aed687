"""The coordinator's listener: limits connections in number, by owner, and in time.

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

PEER = "peer"  # under which requests hold their connection
LOOK_S, COUNT_S = 1.0, 60.0  # between looks at who is late, and counts of lines left out
PAUSE_S = 1.0  # after a connection that the system did not give
SHUTDOWN_S = 3.0  # for the other side to end its half of TLS

#: OpenSSL's reasons of failed handshakes, and what they mean.
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
    """Limits on connections: their number, and the time each is given."""

    connections: int
    per_owner: int  # of one address, or of one silo
    handshake_s: float = 10.0
    request_s: float = 20.0  # for a request's head and body …
    slowest: int = 4096  # … and a second more for so many bytes of it


class Peer:
    """One connection: whose it is, and since when it keeps us waiting."""

    def __init__(self, address: str) -> None:
        self.address = self.owner = address
        self.handshake: asyncio.Task[None] | None = None
        self.transport: asyncio.Transport | None = None  # when TLS is agreed
        self.received = 0
        self._since: float | None = None

    @property
    def is_stranger(self) -> bool:
        """True until a silo or the operator has been answered on it."""
        return self.owner == self.address

    def wait(self) -> None:
        """Wait for a request from now on."""
        self._since, self.received = time.monotonic(), 0

    def stop_waiting(self) -> None:
        """Its request is here."""
        self._since = None

    def is_late(self, limits: Limits) -> bool:
        """Return whether its request has taken too long."""
        if self._since is None:
            return False
        allowed = limits.request_s + self.received / limits.slowest
        return time.monotonic() - self._since > allowed

    def hang_up(self) -> None:
        """End the connection at once."""
        if self.transport is not None:
            self.transport.abort()
        elif self.handshake is not None:
            self.handshake.cancel()


class Listener:
    """Accepts connections and ends those that are too many or too slow."""

    def __init__(self, sock: socket.socket, limits: Limits, quota: Quota) -> None:
        self._socket = sock
        self._limits = limits
        self._quota = quota
        self._most = limits.connections  # fewer, for a while, where the system gives no more
        self._peers: dict[Peer, None] = {}  # the oldest first
        self._tasks: list[asyncio.Task[None]] = []

    def open(
        self, make_protocol: Callable[[Peer], asyncio.Protocol], safe: ssl.SSLContext | None
    ) -> None:
        """Let peers in, each to a protocol of its own, with TLS where a context is given."""
        self._tasks = [
            asyncio.create_task(self._accept(make_protocol, safe)),
            asyncio.create_task(self._watch()),
        ]
        for task in self._tasks:
            task.add_done_callback(_end_after_fault)

    def close(self) -> None:
        """Let nobody in any more, and wait for no stranger."""
        for task in self._tasks:
            task.cancel()
        self._socket.close()
        for peer in [peer for peer in self._peers if peer.is_stranger]:
            self._hang_up(peer)
        self._quota.tell(log)

    async def wait_closed(self) -> None:
        """Wait until all who work here have ended."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def forget(self, peer: Peer) -> None:
        """Its connection has ended."""
        self._peers.pop(peer, None)

    async def _accept(
        self, make_protocol: Callable[[Peer], asyncio.Protocol], safe: ssl.SSLContext | None
    ) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                sock, address = await loop.sock_accept(self._socket)
            except ConnectionAbortedError:
                continue
            except OSError as error:  # too many open files, here or in the whole system
                log.warning("no new connections for %.0f s: %s", PAUSE_S, error.strerror)
                self._give_back()
                await asyncio.sleep(PAUSE_S)
                continue
            peer = Peer(address[0])
            if self._may_come_in(peer):
                self._peers[peer] = None
                handshake = self._shake_hands(peer, sock, make_protocol, safe)
                peer.handshake = asyncio.create_task(handshake)
            else:
                sock.close()
            await asyncio.sleep(0)  # else a burst of connections would keep all others waiting

    def _may_come_in(self, peer: Peer) -> bool:
        """Close another connection if need be, and return whether one more may come in."""
        self._keep_share(peer.owner, self._limits.per_owner - 1)
        if len(self._peers) < self._most or self._make_room():
            return True
        log.warning(
            "refused %s: silos have all %d places",
            peer.address,
            self._most,
            extra={"peer": peer.address},
        )
        return False

    def _give_back(self) -> None:
        """Keep an eighth less than now, until the next count, so that Flower finds files too."""
        self._most = max(1, len(self._peers) * 7 // 8)
        while len(self._peers) > self._most and self._make_room():
            continue

    def _keep_share(self, owner: str, share: int) -> None:
        """Leave no more than its share to an owner."""
        own = [peer for peer in self._peers if peer.owner == owner]
        for peer in own[: max(0, len(own) - share)]:
            log.warning(
                "hung up on %s: it has more than %d connections",
                owner,
                self._limits.per_owner,
                extra={"peer": owner},
            )
            self._hang_up(peer)

    def _make_room(self) -> bool:
        """End a stranger's connection, of the address that keeps most of them."""
        strangers = [peer for peer in self._peers if peer.is_stranger]
        if not strangers:
            return False
        [(address, count)] = Counter(peer.address for peer in strangers).most_common(1)
        log.warning(
            "hung up on %s: no place is free, and it keeps %d without having shown a key",
            address,
            count,
            extra={"peer": address},
        )
        self._hang_up(next(peer for peer in strangers if peer.address == address))
        return True

    def _hang_up(self, peer: Peer) -> None:
        self.forget(peer)
        peer.hang_up()

    async def _shake_hands(
        self,
        peer: Peer,
        sock: socket.socket,
        make_protocol: Callable[[Peer], asyncio.Protocol],
        safe: ssl.SSLContext | None,
    ) -> None:
        """Agree on TLS; from then on the protocol has the connection."""
        times = {
            "ssl_handshake_timeout": self._limits.handshake_s,
            "ssl_shutdown_timeout": SHUTDOWN_S,
        }
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: make_protocol(peer), sock, ssl=safe, **(times if safe else {})
            )
        except OSError as error:
            log.warning(
                "refused %s in the handshake: %s",
                peer.address,
                self._meaning(error),
                extra={"peer": peer.address},
            )
        finally:
            if peer.transport is None:
                self.forget(peer)

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
            for peer in [peer for peer in self._peers if peer.is_late(self._limits)]:
                log.warning(
                    "hung up on %s: its request did not come in time (%d bytes did)",
                    peer.address,
                    peer.received,
                    extra={"peer": peer.address},
                )
                self._hang_up(peer)
            for owner in {peer.owner for peer in self._peers}:
                self._keep_share(owner, self._limits.per_owner)
            if time.monotonic() - counted > COUNT_S:
                self._quota.tell(log)
                self._most = self._limits.connections
                counted = time.monotonic()


def _end_after_fault(task: asyncio.Task[None]) -> None:
    """End the process, which its supervisor starts anew, rather than go on without a listener."""
    if not task.cancelled() and task.exception() is not None:
        log.error("the listener failed", exc_info=task.exception())
        signal.raise_signal(signal.SIGTERM)


class Connection(H11Protocol):
    """HTTP on one connection, whose listener hears what comes in and when it ends.

    Of uvicorn's two, this one bounds the head of a request.
    """

    def __init__(self, listener: Listener, peer: Peer, **named: Any) -> None:
        super().__init__(**named)
        self._listener = listener
        self._peer = peer

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a request."""
        self._peer.transport = transport
        self._peer.wait()
        super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        """Take a part of a request."""
        if self.transport.is_closing():
            return
        self._peer.received += len(data)
        try:
            super().data_received(data)
        except LocalProtocolError:  # nonsense after an answer, to which none can be given
            self._peer.hang_up()

    def send_400_response(self, msg: str) -> None:
        """Answer what cannot be understood."""
        address = self._peer.address
        log.warning("refused %s: what it sent is not HTTP", address, extra={"peer": address})
        super().send_400_response(msg)

    def connection_lost(self, exc: Exception | None) -> None:
        """Give the place back."""
        super().connection_lost(exc)
        self._listener.forget(self._peer)


class Server(uvicorn.Server):
    """uvicorn's server behind the listener, instead of asyncio's, which lets everybody in."""

    def __init__(self, config: uvicorn.Config, listener: Listener) -> None:
        super().__init__(config)
        self._listener = listener

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start the app, then open the listener."""
        await super().startup(sockets=sockets or [])
        if self.started:
            self.servers: list[Any] = [self._listener]
            self._listener.open(self._make_protocol, self.config.ssl)

    def _make_protocol(self, peer: Peer) -> Connection:
        state = {**self.lifespan.state, PEER: peer}
        named = {"config": self.config, "server_state": self.server_state, "app_state": state}
        return Connection(self._listener, peer, **named)


def within_descriptors(connections: int) -> int:
    """The number of connections that fit, if so many are wanted: at most half of all open files."""
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
