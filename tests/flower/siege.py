"""Strangers at a coordinator's door: connections that they open and leave half-used."""

import socket
import ssl
import threading
import time
from contextlib import contextmanager, suppress
from itertools import cycle

HEAD = b"POST /v1/fleet/pull-messages HTTP/1.1\r\nHost: coordinator\r\n"
HALVES = {
    "nothing at all": (False, b""),
    "half a handshake": (False, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"),
    "half a head": (True, HEAD),
    "half a body": (True, HEAD + b"Content-Length: 5000\r\n\r\nhalf"),
}


def safe(authority):
    return ssl.create_default_context(cafile=authority)


def half(what, port, authority, *, source="127.0.0.2"):
    """A connection from some address of this machine on which only so much was said."""
    encrypted, content = HALVES[what]
    sock = socket.create_connection(("127.0.0.1", port), 30, source_address=(source, 0))
    if encrypted:
        sock = safe(authority).wrap_socket(sock, server_hostname="127.0.0.1")
    try:
        sock.sendall(content)
    except OSError:
        sock.close()
        raise
    return sock


def is_ended(sock):
    """Return whether the other side has hung up, after half a minute at most."""
    sock.settimeout(30)
    try:
        while sock.recv(4096):
            pass
    except TimeoutError:
        return False
    except OSError:
        return True
    return True


@contextmanager
def siege(port, authority, *, sources, number):
    """Hold so many half-used connections, and open new ones all the time, as the oldest end."""
    held, over = [], threading.Event()

    def hold():
        for what, source in zip(cycle(HALVES), cycle(sources), strict=False):
            if over.is_set():
                return
            with suppress(OSError):  # they are hung up on, which is the point
                held.append(half(what, port, authority, source=source))
            if len(held) > number:
                held.pop(0).close()
                over.wait(0.2)

    besieger = threading.Thread(target=hold)
    besieger.start()
    try:
        until = time.monotonic() + 20
        while len(held) < number and time.monotonic() < until:
            time.sleep(0.05)
        yield
    finally:
        over.set()
        besieger.join(60)
        for sock in held:
            sock.close()
