"""Flower's SuperNode that runs no code but its own: `python supernode.py …`.

Flower lets whoever starts a run send code to every node. A silo takes only a bundle without code
that names flic's own app; anything else is ignored and said in the log. What answers messages is
`executor.py`, started here.
"""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
import tomllib
from importlib import import_module
from io import BytesIO
from logging import getLogger
from pathlib import Path
from secrets import token_hex
from typing import Any
from zipfile import BadZipFile, ZipFile

PLAIN_FILES = {"pyproject.toml", ".info/CONTENT"}
COMPONENTS = {"serverapp": "flic.flower.server:app", "clientapp": "flic.flower.client:app"}

IDLE_S, IN_VAIN = 1.0, 60  # between questions to the coordinator, and how many in vain
TASK_POLL_S = 0.2  # between questions of the executor, which stay on this machine

#: What a handshake of TLS says when there is no use in trying again.
HOPELESS = ("CERTIFICATE_VERIFY_FAILED", "WRONG_VERSION_NUMBER")

log = getLogger("flwr")


def objection(bundle: bytes) -> str | None:
    """Why a bundle is not flic's own, if it is not."""
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


class Patience:
    """Flower's waits between questions for messages: 3 s, which is most of a short round.

    Shorter while a run goes on, and Flower's own again when there was none for a while.
    """

    def __init__(self) -> None:
        self._in_vain = 0

    def sleep(self, seconds: float) -> None:
        """Wait, before asking for a message or for what the app makes of it."""
        is_idle = seconds > IDLE_S
        self._in_vain = self._in_vain + 1 if is_idle else 0
        time.sleep(IDLE_S if is_idle and self._in_vain < IN_VAIN else seconds)


def trying_again(invoker: Any) -> Any:
    """What sends a silo's requests, going on after a handshake that was cut off or took too long.

    Flower gives up for good at any error in which it finds "ssl", and its silo is deaf from then.
    """
    gives_up = invoker.should_giveup

    def is_hopeless(error: Exception) -> bool:
        if "ssl" in str(error).lower() and not any(sign in str(error) for sign in HOPELESS):
            return False
        return gives_up(error)

    invoker.should_giveup = is_hopeless
    return invoker


def free_port() -> int:
    """A port of this machine's own that nobody uses now."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def _start_executor(port: int) -> list[str]:
    """Start what answers messages; the arguments by which the SuperNode knows it.

    They share a secret, so that no other user of this machine can take a silo's messages.
    """
    secret = Path(os.environ["FLWR_HOME"]) / "executor.secret"
    secret.unlink(missing_ok=True)
    with os.fdopen(os.open(secret, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(token_hex(32))
    known = ["--superexec-auth-secret-file", str(secret)]
    command = [sys.executable, "-P", str(Path(__file__).with_name("executor.py")), "--insecure"]
    command += ["--runtime-api-address", f"127.0.0.1:{port}", "--parent-pid", str(os.getpid())]
    variables = {**os.environ, "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": str(TASK_POLL_S)}
    executor = subprocess.Popen([*command, *known], env=variables)

    def end_together() -> None:
        code = executor.wait()
        log.error("the executor ended with %s; so does the SuperNode, to be started again.", code)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=end_together, daemon=True).start()
    return known


def main() -> None:
    """Run the SuperNode with a look at every bundle."""
    from flwr.supernode.cli.flower_supernode import flower_supernode

    # By name: Flower calls these its own business.
    node: Any = import_module("flwr.supernode.start_client_internal")

    settings_of = node.get_fused_config_from_fab

    def settings_of_own(fab_file: Any, run: Any) -> Any:
        reason = objection(fab_file)
        if reason is None:
            return settings_of(fab_file, run)
        log.error("refused the app of run %s: %s.", run.run_id, reason)
        raise node.RunNotRunningException  # by which Flower ignores a message and goes on

    connection: Any = import_module("flwr.supernode.fleet_http_connection")
    invoker = connection.make_simple_http_retry_invoker
    connection.make_simple_http_retry_invoker = lambda: trying_again(invoker())
    node.get_fused_config_from_fab = settings_of_own
    node.time = Patience()
    port = free_port()
    sys.argv += ["--host", "127.0.0.1", "--port", str(port), "--isolation", "process"]
    sys.argv += _start_executor(port)
    flower_supernode()
    # Its loop is over, and threads of its own would keep the process alive, and deaf.
    log.error("the connection was given up; so is the SuperNode, to be started again.")
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
