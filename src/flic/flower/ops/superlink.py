"""Flower's SuperLink behind a gate: `python superlink.py LARGEST KEYS CONNECTIONS PER_OWNER …`.

Flower serves silos and the operator on one port and asks the operator for no password. The gate
leaves silos (`/v1/fleet`) to the network and everything else to this machine, refuses bodies above
LARGEST bytes before anything reads them, and names in the log whom Flower turned away, by the keys
in the file KEYS (public key → name). In front of it a listener (`listener.py`) keeps CONNECTIONS
open, and PER_OWNER of one address or silo. The other arguments are flower-superlink's own.
"""

import socket
import sys
from base64 import b64decode
from contextlib import suppress
from ipaddress import ip_address
from logging import getLogger, lastResort
from pathlib import Path
from typing import Any
from urllib.parse import quote

import uvicorn
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_public_key,
)
from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from flic.digests import digest
from flic.files import read_json
from flic.flower.ops.listener import PEER, Limits, Listener, Server, within_descriptors
from flic.flower.ops.quota import Quota
from flic.flower.patches import serve_with

FOR_SILOS = ("/v1/fleet/", "/health")
# Flower announces a message and then sends its objects, each in a request.
START_OF_MESSAGE, PART_OF_MESSAGE = "/v1/fleet/push-messages", "/v1/fleet/push-object"
ARRIVAL = "/v1/fleet/activate-node"
SMALL = 65_536  # bytes of a body that anybody may send; Flower reads it before it looks at the key
SHOWN = 80  # characters of a path in the log
WAITING = 1024  # connections that the system keeps until they are accepted

log = getLogger("flwr")


class Gate:
    """Lets requests through by where they come from, what they ask and how large they are.

    Without `keys` (in plain text, on this machine alone) nobody has one, and all are alike.
    """

    def __init__(self, app: ASGIApp, largest: int, keys: Path | None) -> None:
        self._app = app
        self._largest = largest
        self._keys = keys
        self._sent: dict[str, int] = {}  # key → bytes of the message that its silo is sending

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on when all of it is here, or answer it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        refusal = self._refusal(scope)
        if refusal is not None:
            await self._refuse(refusal, scope, receive, send)
            return
        body = await _whole_body(receive)
        if body is None:
            return

        async def receive_again() -> Message:
            nonlocal body
            if body is None:
                return await receive()
            whole, body = body, None
            return {"type": "http.request", "body": whole, "more_body": False}

        async def send_and_tell(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._note(message["status"], scope)
            await send(message)

        peer = scope["state"][PEER]
        peer.stop_waiting()
        try:
            await self._app(scope, receive_again, send_and_tell)
        finally:
            peer.wait()

    async def _refuse(
        self, refusal: tuple[int, str], scope: Scope, receive: Receive, send: Send
    ) -> None:
        status, reason = refusal
        self._warn("refused %s from %s: %s", scope, reason)
        # A silo gets to read the answer; with anybody else we are done, whatever it still sends.
        end = {} if self._silo(scope) else {"connection": "close"}
        await PlainTextResponse(reason, status, end)(scope, receive, send)

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        """Status and reason where a request stays out."""
        if not scope["path"].startswith(FOR_SILOS):
            if is_local(_address(scope)):
                return None
            return 403, "only for the operator, on the coordinator's own machine"
        headers = Headers(scope=scope)
        if "transfer-encoding" in headers:
            return 411, "a body without a length"
        total = self._total(scope["path"], headers)
        if total > self._largest:
            return 413, f"{total} bytes; at most {self._largest} are taken"
        if total > SMALL and self._keys is not None and self._silo(scope) is None:
            return 413, f"{total} bytes; without an admitted key at most {SMALL} are taken"
        return None

    def _total(self, path: str, headers: Headers) -> int:
        """Bytes of a request, or of its message up to its end."""
        before = self._sent.get(_key(headers), 0) if path == PART_OF_MESSAGE else 0
        return before + int(headers.get("content-length", "0"))

    def _note(self, status: int, scope: Scope) -> None:
        """Keep account of what Flower answered, which knows whose signature is genuine."""
        path, headers = scope["path"], Headers(scope=scope)
        if status == 200 and path in (START_OF_MESSAGE, PART_OF_MESSAGE):
            self._sent[_key(headers)] = self._total(path, headers)
        if status >= 400:
            self._warn("Flower refused %s from %s: %s", scope, status)
        elif path == ARRIVAL:
            log.info("let in %s", self._who(scope))
        peer = scope["state"][PEER]
        if status == 200 and peer.is_stranger:
            peer.owner = self._proved(scope) or peer.owner

    def _proved(self, scope: Scope) -> str | None:
        """The silo or operator that was given an answer; None for a stranger."""
        if scope["path"].startswith("/v1/fleet/"):
            return self._silo(scope)
        return None if scope["path"].startswith(FOR_SILOS) else "the operator"

    def _warn(self, what: str, scope: Scope, why: object) -> None:
        # A decoded path may end the line and go on as if it were another one.
        path, who = quote(scope["path"][:SHOWN])[:SHOWN], self._who(scope)
        source = {"peer": who.partition(", key")[0]}  # strangers can show as many keys as they like
        log.warning(what, path, who, why, extra=source, stacklevel=2)

    def _who(self, scope: Scope) -> str:
        """Address of a request, and the silo whose key it shows."""
        shown = _key(Headers(scope=scope))
        if not shown:
            return f"{_address(scope)}, without a key"
        line = _openssh(shown)
        if line is None:
            return f"{_address(scope)}, with something that is no key"
        name = self._known().get(line, "unknown")
        fingerprint = digest(b64decode(line.split()[1]))[:16]
        return f"{_address(scope)}, silo {name}, key {fingerprint}"

    def _silo(self, scope: Scope) -> str | None:
        """The silo whose key a request shows, if one was ever admitted with it."""
        line = _openssh(_key(Headers(scope=scope)))
        return None if line is None else self._known().get(line)

    def _known(self) -> dict[str, str]:
        if self._keys is None or not self._keys.exists():
            return {}
        return read_json(self._keys)


def is_local(peer: str) -> bool:
    """Return whether an address is this machine's loopback."""
    try:
        address = ip_address(peer)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


def _key(headers: Headers) -> str:
    return headers.get("flwr-public-key", "")


def _address(scope: Scope) -> str:
    client = scope.get("client")
    return client[0] if client else ""


def _openssh(shown: str) -> str | None:
    """A key in the form that silos' files have, if what a request shows is one."""
    try:
        key = load_pem_public_key(b64decode(shown))
        return key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
    except (ValueError, TypeError, UnsupportedAlgorithm):
        return None


async def _whole_body(receive: Receive) -> bytes | None:
    """The body of a request, unless its sender hangs up before the end of it."""
    parts = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        parts.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(parts)


def listen(host: str, port: int) -> socket.socket:
    """The coordinator's port."""
    try:
        listener = socket.create_server((host, port), backlog=WAITING)
    except OSError as error:
        sys.exit(f"no connections at {host}:{port}: {str(error.strerror).lower()}")
    listener.setblocking(False)
    return listener


def gated(
    app: ASGIApp, *, largest: int, keys: Path, limits: Limits, quota: Quota, **options: Any
) -> Server:
    """Flower's app as `uvicorn.run` would serve it, with gate and listener in front of it."""
    sock = listen(options["host"], options["port"])
    gate = Gate(app, largest, keys if options["ssl_certfile"] else None)
    own = {"loop": "asyncio", "ws": "none", "access_log": False}
    config = uvicorn.Config(gate, **{**options, **own})
    return Server(config, Listener(sock, limits, quota))


def main() -> None:
    """Run the SuperLink with the gate in front of it."""
    from flwr.supercore.logger import update_console_handler
    from flwr.superlink.cli.flower_superlink import flower_superlink

    update_console_handler(timestamps=True, colored=False)
    largest, keys = int(sys.argv.pop(1)), Path(sys.argv.pop(1))
    connections, per_owner = int(sys.argv.pop(1)), int(sys.argv.pop(1))
    limits, quota = Limits(within_descriptors(connections), per_owner), Quota()

    def serve(app: ASGIApp, **options: Any) -> None:
        server = gated(app, largest=largest, keys=keys, limits=limits, quota=quota, **options)
        quota.limit([*getLogger("flwr").handlers, *getLogger("uvicorn").handlers])
        quota.limit([lastResort] if lastResort else [])  # where asyncio complains
        with suppress(KeyboardInterrupt):
            server.run()
        if not server.started:
            sys.exit("the SuperLink did not start")

    serve_with(serve)
    flower_superlink()


if __name__ == "__main__":
    main()
