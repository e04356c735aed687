"""Flower's SuperNode that runs no code but its own: `python supernode.py …`.

Flower lets whoever starts a run send code to every node. A silo takes only a bundle without code
that names flic's own app; anything else is ignored and said in the log.
"""

import socket
import sys
import tomllib
from importlib import import_module
from io import BytesIO
from logging import getLogger
from typing import Any
from zipfile import BadZipFile, ZipFile

PLAIN_FILES = {"pyproject.toml", ".info/CONTENT"}
COMPONENTS = {"serverapp": "flic.flower.server:app", "clientapp": "flic.flower.client:app"}

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


def _free_port() -> int:
    """A port of this machine's own for the SuperNode and the processes that it starts."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


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

    node.get_fused_config_from_fab = settings_of_own
    sys.argv += ["--port", str(_free_port())]
    flower_supernode()


if __name__ == "__main__":
    main()
