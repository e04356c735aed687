"""Flower's SuperLink behind a gate: `python superlink.py LARGEST KEYS …`, without torch's weight.

Flower serves silos and the operator on one port and asks the operator for no password. The gate
leaves silos (`/v1/fleet`) to the network and everything else to this machine, refuses bodies above
LARGEST bytes before anything reads them, and names in the log whom Flower turned away, by the keys
in the file KEYS (public key → name), or whom TLS did. The other arguments are flower-superlink's
own.
"""

import json
import sys
from asyncio.sslproto import SSLProtocol
from base64 import b64decode
from hashlib import sha256
from ipaddress import ip_address
from logging import getLogger
from pathlib import Path
from typing import Any

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_public_key,
)
from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

FOR_SILOS = ("/v1/fleet/", "/health")
# Flower announces a message and then sends its objects, each in a request.
START_OF_MESSAGE, PART_OF_MESSAGE = "/v1/fleet/push-messages", "/v1/fleet/push-object"

log = getLogger("flwr")


class Gate:
    """Lets requests through by where they come from, what they ask and how large they are."""

    def __init__(self, app: ASGIApp, largest: int, keys: Path) -> None:
        self._app = app
        self._largest = largest
        self._keys = keys
        self._sent: dict[str, int] = {}  # key → bytes of the message that its silo is sending

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer it here."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        refusal = self._refusal(scope)
        if refusal is not None:
            status, reason = refusal
            log.warning("refused %s from %s: %s", scope["path"], self._who(scope), reason)
            await PlainTextResponse(reason, status)(scope, receive, send)
            return

        async def send_and_tell(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._note(message["status"], scope)
            await send(message)

        await self._app(scope, receive, send_and_tell)

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        """Status and reason where a request stays out."""
        if not scope["path"].startswith(FOR_SILOS):
            if is_local(_peer(scope)):
                return None
            return 403, "only for the operator, on the coordinator's own machine"
        headers = Headers(scope=scope)
        if "transfer-encoding" in headers:
            return 411, "a body without a length"
        total = self._total(scope["path"], headers)
        if total > self._largest:
            return 413, f"{total} bytes; at most {self._largest} are taken"
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
        if status in (401, 403, 412):
            log.warning("Flower refused %s from %s", path, self._who(scope))

    def _who(self, scope: Scope) -> str:
        """Address of a request, and the silo whose key it shows."""
        shown = _key(Headers(scope=scope))
        if not shown:
            return f"{_peer(scope)}, without a key"
        try:
            key = load_pem_public_key(b64decode(shown))
            line = key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
        except (ValueError, TypeError, UnsupportedAlgorithm):
            return f"{_peer(scope)}, with something that is no key"
        name = self._known().get(line, "unknown")
        fingerprint = sha256(b64decode(line.split()[1])).hexdigest()[:16]
        return f"{_peer(scope)}, silo {name}, key {fingerprint}"

    def _known(self) -> dict[str, str]:
        return json.loads(self._keys.read_bytes()) if self._keys.exists() else {}


def is_local(peer: str) -> bool:
    """Whether an address is this machine's loopback."""
    try:
        address = ip_address(peer)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


def _key(headers: Headers) -> str:
    return headers.get("flwr-public-key", "")


def _peer(scope: Scope) -> str:
    client = scope.get("client")
    return client[0] if client else ""


#: What OpenSSL calls the reasons of failed handshakes, and what they mean.
HANDSHAKES = {
    "HTTP_REQUEST": "it spoke plain HTTP",
    "WRONG_VERSION_NUMBER": "it did not speak TLS",
    "TLSV1_ALERT_UNKNOWN_CA": "it does not trust this coordinator's certificate (wrong ca.crt)",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "it finds this coordinator's certificate expired",
    "SSLV3_ALERT_BAD_CERTIFICATE": "it expects a certificate for another name",
}


def name_failed_handshakes() -> None:
    """Log who failed in the handshake of TLS, of which no server says anything by itself."""
    # uvicorn takes asyncio's loop where there is no uvloop, whose handshakes cannot be looked at.
    sys.modules["uvloop"] = None  # type: ignore[assignment]
    protocol: Any = SSLProtocol
    complete = protocol._on_handshake_complete

    def tell(self: Any, error: BaseException | None) -> None:
        if error is not None:
            peer = self._transport.get_extra_info("peername") if self._transport else None
            reason = getattr(error, "reason", None) or type(error).__name__
            meaning = HANDSHAKES.get(reason, reason)
            log.warning("refused %s in the handshake: %s", peer[0] if peer else "?", meaning)
        complete(self, error)

    protocol._on_handshake_complete = tell


def main() -> None:
    """Run the SuperLink with the gate in front of it."""
    name_failed_handshakes()
    from flwr.superlink import main as service
    from flwr.superlink.cli.flower_superlink import flower_superlink

    largest, keys = int(sys.argv.pop(1)), Path(sys.argv.pop(1))
    create_app = service.create_app

    def create_gated_app(*arguments: Any, **named: Any) -> Any:
        app = create_app(*arguments, **named)
        app.add_middleware(Gate, largest=largest, keys=keys)
        return app

    service.create_app = create_gated_app
    flower_superlink()


if __name__ == "__main__":
    main()
