"""Strangers at the coordinator's port and in its log do no harm, and silos go on."""

import json
import logging
import socket
import ssl
import subprocess
import sys
import threading
import time
from base64 import b64encode
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_ssh_public_key,
)
from siege import HALVES, HEAD, half, is_ended, safe, siege
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from flic.flower import keys
from flic.flower.ops import certificates
from flic.flower.ops.listener import Limits
from flic.flower.ops.quota import IN_ALL, LONGEST, PER_SOURCE, Quota, one_line
from flic.flower.ops.superlink import SMALL, gated
from flic.flower.ops.supernode import free_port

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="elsewhere loopback has one address alone"
)

SOON = Limits(connections=12, per_owner=6, handshake_s=1.0, request_s=1.0)


async def answer(request):
    return PlainTextResponse(f"{len(await request.body())} bytes")


@dataclass
class Serving:
    """A coordinator's port with an app that answers everybody, and what its log says."""

    port: int
    authority: Path
    lines: list[str]
    key: dict[str, str]  # the header that shows silo north's key

    @property
    def log(self):
        return "\n".join(self.lines)

    def client(self, *, source="127.0.0.1", **headers):
        way = httpx.HTTPTransport(verify=safe(self.authority), local_address=source)
        return httpx.Client(
            transport=way, base_url=f"https://127.0.0.1:{self.port}", headers=headers, timeout=30
        )

    def silo(self):
        return self.client(**self.key)

    def raw(self, content, *, source="127.0.0.2"):
        """Send some bytes, and do not wait for long what is said to them."""
        sock = half("nothing at all", self.port, self.authority, source=source)
        with safe(self.authority).wrap_socket(sock, server_hostname="127.0.0.1") as own:
            own.settimeout(0.2)
            with suppress(OSError):
                own.sendall(content)
                own.recv(4096)


def wait_for(condition):
    until = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.05)


def is_open(port):
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0


class Kept(logging.Handler):
    def __init__(self, lines):
        super().__init__(logging.INFO)
        self._lines = lines

    def emit(self, record):
        self._lines.append(self.format(record))


@contextmanager
def kept(quota, *names):
    """Lines of some logs as they would be written."""
    lines, loggers = [], [logging.getLogger(name) for name in names]
    handler = Kept(lines)
    quota.limit([handler])
    for logger in loggers:
        logger.addHandler(handler)
    try:
        yield lines
    finally:
        for logger in loggers:
            logger.removeHandler(handler)


@pytest.fixture
def serving(tmp_path):
    """serving(limits): a block in which a coordinator's port is served."""
    files = certificates.create(tmp_path / "certificates", ["127.0.0.1"])
    keys.create_pair(tmp_path / "north", tmp_path / "north.pub")
    (tmp_path / "keys.json").write_text(
        json.dumps({keys.read_public(tmp_path / "north.pub"): "north"})
    )
    key = load_ssh_public_key((tmp_path / "north.pub").read_bytes())
    pem = key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    shown = {"flwr-public-key": b64encode(pem).decode()}

    @contextmanager
    def block(limits=SOON):
        quota, port = Quota(), free_port()
        server = gated(
            Starlette(routes=[Route("/{rest:path}", answer, methods=["GET", "POST"])]),
            **{"largest": 2**20, "keys": tmp_path / "keys.json", "limits": limits},
            **{"quota": quota, "host": "127.0.0.1", "port": port, "log_config": None},
            **{"ssl_certfile": files.server, "ssl_keyfile": files.server_key},
        )
        with kept(quota, "flwr", "uvicorn.error", "asyncio") as lines:
            thread = threading.Thread(target=server.run)
            thread.start()
            try:
                yield Serving(port, files.authority, lines, shown)
            finally:
                server.should_exit = True
                thread.join(30)
                assert not thread.is_alive()

    return block


@pytest.mark.slow
def test_silos_go_on_while_strangers_hold_every_connection(serving):
    with serving() as place, place.silo() as known:
        assert known.post("/v1/fleet/pull-messages").status_code == 200
        own = known.get("/health").extensions["network_stream"]
        with siege(
            place.port, place.authority, sources=[f"127.0.0.{i}" for i in (2, 3, 4)], number=30
        ):
            for _ in range(10):
                with place.silo() as newcomer:
                    assert newcomer.post("/v1/fleet/pull-messages", content=b"x").text == "1 bytes"
                again = known.post("/v1/fleet/pull-messages")
                assert again.extensions["network_stream"] is own  # nobody hung up on it
    assert "no place is free" in place.log
    assert "Traceback" not in place.log


def test_one_address_takes_no_more_than_its_share(serving):
    with serving(Limits(12, 3)) as place:
        first = half("half a head", place.port, place.authority)
        others = [half("half a body", place.port, place.authority) for _ in range(3)]
        assert is_ended(first)
        others[0].setblocking(False)
        with pytest.raises(ssl.SSLWantReadError):
            others[0].recv(1)
        for sock in (first, *others):
            sock.close()
    assert "hung up on 127.0.0.2: it has more than 3 connections" in place.log


@pytest.mark.slow
def test_what_comes_to_no_end_is_ended(serving):
    with serving() as place:
        held = [half(what, place.port, place.authority) for what in HALVES]
        assert all(map(is_ended, held))
        for sock in held:
            sock.close()
    assert place.log.count("in the handshake: it took more than 1 s") == 2
    assert place.log.count("its request did not come in time") == 2
    assert "Traceback" not in place.log


@pytest.mark.slow
def test_a_slow_line_that_goes_on_is_waited_for(serving):
    with serving(Limits(12, 6, request_s=1.0, slowest=50)) as place:
        sock = half("half a head", place.port, place.authority)
        with sock:
            sock.sendall(
                b"Connection: close\r\nContent-Length: 6\r\nX: " + b"x" * 200 + b"\r\n\r\n"
            )
            for _ in range(6):
                time.sleep(0.5)
                sock.sendall(b"x")
            said = b"".join(iter(lambda: sock.recv(4096), b""))
    assert b"200 OK" in said
    assert said.endswith(b"6 bytes")


# A listener with more places than its process may open files, and how many it would have taken.
FEW_FILES = """
import resource, sys
from pathlib import Path
from starlette.responses import PlainTextResponse
from flic.flower.ops.listener import Limits, within_descriptors
from flic.flower.ops.quota import Quota
from flic.flower.ops.superlink import gated
resource.setrlimit(resource.RLIMIT_NOFILE, (40, 60))
print(within_descriptors(1000), resource.getrlimit(resource.RLIMIT_NOFILE)[0], flush=True)
certificate, key, port = sys.argv[1:]
gated(
    PlainTextResponse("here"), largest=1000, keys=Path("keys.json"), quota=Quota(),
    limits=Limits(1000, 500, handshake_s=300.0, request_s=300.0),
    host="127.0.0.1", port=int(port), ssl_certfile=certificate, ssl_keyfile=key,
).run()
"""


@pytest.mark.process
def test_without_descriptors_strangers_leave_and_others_come_in(tmp_path):
    files, port = certificates.create(tmp_path, ["127.0.0.1"]), free_port()
    words = [sys.executable, "-c", FEW_FILES, str(files.server), str(files.server_key), str(port)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        try:
            assert process.stdout.readline().startswith(b"at most 30 connections instead of 1000")
            assert process.stdout.readline() == b"30 60\n"
            place = Serving(port, files.authority, [], {})
            wait_for(lambda: is_open(port))
            with siege(port, files.authority, sources=["127.0.0.2", "127.0.0.3"], number=80):
                for _ in range(5):
                    with place.client() as honest:
                        assert honest.get("/health").text == "here"
        finally:
            process.terminate()
        said = process.stdout.read().decode()
    assert "no new connections for 1 s: Too many open files" in said
    assert "Traceback" not in said


def test_only_an_admitted_key_may_send_much(serving):
    much = b"x" * (SMALL + 1)
    with serving() as place, place.silo() as silo, place.client() as stranger:
        assert silo.post("/v1/fleet/push-object", content=much).status_code == 200
        assert stranger.post("/v1/fleet/push-object", content=much[1:]).status_code == 200
        with suppress(httpx.TransportError):  # the answer may come too late for who still sends
            assert stranger.post("/v1/fleet/push-object", content=much).status_code == 413
    assert "without an admitted key at most 65536 are taken" in place.log


def test_nobody_writes_lines_of_the_log(serving):
    forged = b"/v1/fleet/%0aWARNING%20:%20let%20in%20evil%1b[2J" + b"%41" * 4000
    with serving() as place:
        place.raw(b"POST " + forged + b" HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        place.raw(b"POST /" + b"%0a" * 20_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n")
        # One that comes whole at once is answered, one that comes in parts is not read to its end.
        wait_for(lambda: "not HTTP" in place.log or "404" in place.log)
    refused = next(line for line in place.lines if "a body without a length" in line)
    assert "refused /v1/fleet/%0AWARNING%20%3A%20let%20in%20evil%1B%5B2J" in refused
    assert all(len(line) < LONGEST + 10 and line.isprintable() for line in place.lines)


@pytest.mark.slow
def test_broken_connections_leave_few_lines_and_no_traceback(serving):
    halves = [content for encrypted, content in HALVES.values() if encrypted]
    nonsense = [
        b"\r\n\r\n\x00",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\nno length",
        HEAD + b"\r\n" + HEAD + b"\r\n" + HEAD,
        HEAD + b"Connection: upgrade\r\nUpgrade: websocket\r\n\r\n",
    ]
    with serving(Limits(100, 100)) as place:
        for _ in range(PER_SOURCE + 3):
            socket.create_connection(("127.0.0.1", place.port), 30).close()
        for content in [*halves, *nonsense, *nonsense]:
            place.raw(content)
        wait_for(lambda: "in the handshake" in place.log)
    hung_up = "refused 127.0.0.1 in the handshake: it hung up"
    assert place.lines.count(hung_up) == PER_SOURCE
    assert f"left out lines like “{hung_up}”: 3 of 127.0.0.1" in place.lines
    assert len(place.lines) < 30
    assert "Traceback" not in place.log


def test_lines_are_counted_by_kind_and_source():
    log, quota = logging.getLogger("flic.test"), Quota()
    log.setLevel(logging.INFO)
    with kept(quota, log.name) as lines:
        for n in range(100):
            log.warning("one kind %d", n, extra={"peer": "192.0.2.7"})
            log.warning("another", extra={"peer": f"192.0.2.{n}"})
            log.info("no warning")
        quota.tell(log)
        log.warning("another\nkind")
    assert len([line for line in lines if line.startswith("one kind")]) == PER_SOURCE
    assert lines.count("another") == IN_ALL
    assert lines.count("no warning") == 100
    assert lines[-3:] == [
        f"left out lines like “one kind 0”: {100 - PER_SOURCE} of 192.0.2.7",
        f"left out lines like “another”: {100 - IN_ALL} of others",
        "another\\nkind",
    ]


def test_a_fault_is_traced_once():
    log, quota = logging.getLogger("flic.test"), Quota()
    with kept(quota, log.name) as lines:
        for _ in range(3):
            log.error("a fault", exc_info=ValueError("of ours"))
    assert lines == ["a fault\nValueError: of ours", "a fault", "a fault"]


def test_a_line_is_one_line():
    assert one_line("a\nb\x1b[31m\u2028é", 20) == "a\\nb\\x1b[31m\\u2028é"
    assert one_line("x" * 30, 20) == "x" * 20 + "…"
