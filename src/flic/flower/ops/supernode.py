"""Flower's SuperNode that runs no code but its own: `python supernode.py …`.

Flower lets whoever starts a run send code to every node. A silo takes only a bundle without code
that names flic's own app; anything else is ignored and said in the log. What answers messages is
`executor.py`, started here once the silo is let in.
"""

import os
import signal
import socket
import subprocess
import sys
import threading
import tomllib
from functools import partial
from io import BytesIO
from logging import getLogger
from pathlib import Path
from secrets import token_hex
from zipfile import BadZipFile, ZipFile

from flic.flower.patches import check_bundles, retry_handshakes, shorten_waits, when_let_in

PLAIN_FILES = {"pyproject.toml", ".info/CONTENT"}
COMPONENTS = {"serverapp": "flic.flower.server_app:app", "clientapp": "flic.flower.client_app:app"}

TASK_POLL_S = 0.2  # between requests of the executor, which stay on this machine

log = getLogger("flwr")


def objection(bundle: bytes) -> str | None:
    """The reason why a bundle is not flic's own; None if it is."""
    try:
        with ZipFile(BytesIO(bundle)) as archive:
            names = set(archive.namelist())
            components = _components(archive.read("pyproject.toml"))
    except (BadZipFile, KeyError, ValueError, TypeError) as error:
        return f"it cannot be read ({error})"
    if extra := sorted(names - PLAIN_FILES):
        return f"it holds {', '.join(extra)}; expected settings and no code"
    if components != COMPONENTS:
        return f"it names {components}; expected {COMPONENTS}"
    return None


def _components(content: bytes) -> dict[str, str]:
    return tomllib.loads(content.decode())["tool"]["flwr"]["app"]["components"]


def free_port() -> int:
    """A port of this machine's own that nobody uses now."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def _write_secret() -> list[str]:
    """Arguments with a new secret of SuperNode and executor.

    Without it any other user of this machine could take a silo's messages.
    """
    secret = Path(os.environ["FLWR_HOME"]) / "executor.secret"
    secret.unlink(missing_ok=True)
    with os.fdopen(os.open(secret, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(token_hex(32))
    return ["--superexec-auth-secret-file", str(secret)]


def _start_executor(port: int, known: list[str]) -> None:
    """Start what answers messages."""
    command = [sys.executable, "-P", str(Path(__file__).with_name("executor.py")), "--insecure"]
    command += ["--runtime-api-address", f"127.0.0.1:{port}", "--parent-pid", str(os.getpid())]
    variables = {**os.environ, "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": str(TASK_POLL_S)}
    executor = subprocess.Popen([*command, *known], env=variables)

    def end_together() -> None:
        code = executor.wait()
        log.error("the executor ended with %s; so does the SuperNode, to be started again.", code)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=end_together, daemon=True).start()


def main() -> None:
    """Run the SuperNode with a look at every bundle."""
    from flwr.supernode.cli.flower_supernode import flower_supernode

    retry_handshakes()
    check_bundles(objection)
    shorten_waits()
    port, known = free_port(), _write_secret()
    sys.argv += ["--host", "127.0.0.1", "--port", str(port), "--isolation", "process", *known]
    when_let_in(partial(_start_executor, port, known))
    flower_supernode()
    # Its loop is over, and threads of its own would keep the process alive, and deaf.
    log.error("the connection was given up; so is the SuperNode, to be started again.")
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
