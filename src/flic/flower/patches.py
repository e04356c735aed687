"""Changes to Flower's internals, all of them, each a function that a process of ours calls once.

Flower promises nothing about these names, so each change is for one minor version of it and is
refused under any other. A change imports only what it replaces: most of these processes are to
start without torch.
"""

import json
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial, wraps
from importlib import import_module
from importlib.metadata import version
from logging import getLogger
from typing import Any, ParamSpec

from flic.errors import ConfigError

VERSION = "1.41"
"""The minor version of flwr that all of these are for."""

IDLE_S, IN_VAIN = 1.0, 60  # between requests to the coordinator, and how many in vain

#: Signs of a failed TLS handshake after which there is no use in trying again.
HOPELESS = ("CERTIFICATE_VERIFY_FAILED", "WRONG_VERSION_NUMBER")

log = getLogger("flwr")

P = ParamSpec("P")

_OWN: dict[tuple[Any, str], Any] = {}  # what Flower itself had under a name that was replaced


def refuse_other_version() -> None:
    """Refuse a version of Flower whose internals may be others."""
    found = version("flwr")
    if not found.startswith(f"{VERSION}."):
        raise ConfigError(
            f"flwr {found} is installed; expected {VERSION}, for which flic's changes to Flower's "
            f"internals are made. Run: pip install 'flwr=={VERSION}.*'"
        )


def _guarded(patch: Callable[P, None]) -> Callable[P, None]:
    """The patch, which looks at the version of Flower before it changes anything."""

    @wraps(patch)
    def checked(*arguments: P.args, **named: P.kwargs) -> None:
        refuse_other_version()
        patch(*arguments, **named)

    return checked


def _replace(owner: Any, name: str, build: Callable[[Any], Any]) -> None:
    """Put what `build` makes of Flower's own in its place; the last call counts."""
    own = _OWN.setdefault((owner, name), getattr(owner, name))
    setattr(owner, name, build(own))


# ---- in the coordinator's app --------------------------------------------------------------


@_guarded
def cap_tensors(max_bytes: int) -> None:
    """Make `Array.inflate` refuse tensors above so many bytes (flwr 1.41).

    A tensor names its chunks, any of them any number of times: a message of a few megabytes would
    otherwise become as large as it likes before anybody can look at it.
    """
    from flwr.app import Array
    from flwr.supercore.inflatable.inflatable_object import (
        get_object_body,
        get_object_children_ids_from_object_content,
    )

    def build(inflate: Any) -> Any:
        def capped(object_content: bytes, children: dict[str, Any] | None = None) -> Array:
            named = get_object_children_ids_from_object_content(object_content)
            sizes = [len(getattr((children or {}).get(chunk), "data", b"")) for chunk in named]
            told = json.loads(get_object_body(object_content, Array))
            size = sum(sizes[chunk] for chunk in told["arraychunk_ids"])
            if size > max_bytes:
                raise ValueError(f"a tensor has {size} bytes; expected {max_bytes} at most")
            return inflate(object_content, children)

        return staticmethod(capped)

    _replace(Array, "inflate", build)


@_guarded
def cap_upload_wait(seconds: float) -> None:
    """Make the grid's `pull_objects` wait only so long for the parts of an answer (flwr 1.41).

    Flower waits 180 s for the parts of an answer that a silo has announced, and a silo that sends
    none of them would hold up its round for as long.
    """
    grid = import_module("flwr.superlink.grid.http_grid")
    _replace(grid, "pull_objects", lambda pull: partial(pull, max_time=seconds))


# ---- in a silo's executor ------------------------------------------------------------------


@_guarded
def use_executor(executor: Callable[[], Any]) -> None:
    """Make SuperExec's `get_executor` return our executor, whatever is asked for (flwr 1.41).

    Flower has no option for an executor other than its own two.
    """
    superexec = import_module("flwr.supercore.superexec.run_superexec")
    _replace(superexec, "get_executor", lambda own: lambda *arguments, **named: executor())


# ---- in a silo's SuperNode -----------------------------------------------------------------


@_guarded
def check_bundles(objection: Callable[[bytes], str | None]) -> None:
    """Make the SuperNode ignore messages of a run whose bundle is objected to (flwr 1.41).

    The SuperNode takes whatever code a run brings. `get_fused_config_from_fab` is the first to
    read a bundle; the exception raised there makes Flower ignore the message and go on.
    """
    node: Any = import_module("flwr.supernode.start_client_internal")

    def build(settings_of: Any) -> Any:
        def settings_of_own(fab_file: Any, run: Any) -> Any:
            reason = objection(fab_file)
            if reason is None:
                return settings_of(fab_file, run)
            log.error("refused the app of run %s: %s.", run.run_id, reason)
            raise node.RunNotRunningException

        return settings_of_own

    _replace(node, "get_fused_config_from_fab", build)


@_guarded
def shorten_waits() -> None:
    """Make the SuperNode's loop wait by `Patience` instead of `time` (flwr 1.41).

    It sleeps for 3 s between requests for messages, which is most of a short round.
    """
    node = import_module("flwr.supernode.start_client_internal")
    _replace(node, "time", lambda own: Patience())


class Patience:
    """Waits of a SuperNode: short while a run goes on, Flower's own after a while without one."""

    def __init__(self) -> None:
        self._in_vain = 0

    def sleep(self, seconds: float) -> None:
        """Wait, before asking for a message or for what the app makes of it."""
        is_idle = seconds > IDLE_S
        self._in_vain = self._in_vain + 1 if is_idle else 0
        time.sleep(IDLE_S if is_idle and self._in_vain < IN_VAIN else seconds)


@_guarded
def when_let_in(call: Callable[[], None]) -> None:
    """Make the SuperNode's `_init_connection` call this once the silo is let in (flwr 1.41).

    A silo that is not is started again and again, and all that it starts with it.
    """
    node = import_module("flwr.supernode.start_client_internal")

    def build(connect: Any) -> Any:
        @contextmanager
        def connect_and_call(**named: Any) -> Generator[Any]:
            with connect(**named) as connection:
                call()
                yield connection

        return connect_and_call

    _replace(node, "_init_connection", build)


@_guarded
def retry_handshakes() -> None:
    """Make the SuperNode try again after a handshake cut off or too slow (flwr 1.41).

    Flower gives up for good at any error in which it finds "ssl", and its silo is deaf from then
    on. What decides is `should_giveup` of the invoker that `fleet_http_connection` makes.
    """

    def build(make_invoker: Any) -> Any:
        def make_patient_invoker() -> Any:
            invoker = make_invoker()
            gives_up = invoker.should_giveup

            def is_hopeless(error: Exception) -> bool:
                if "ssl" in str(error).lower() and not any(sign in str(error) for sign in HOPELESS):
                    return False
                return gives_up(error)

            invoker.should_giveup = is_hopeless
            return invoker

        return make_patient_invoker

    connection = import_module("flwr.supernode.fleet_http_connection")
    _replace(connection, "make_simple_http_retry_invoker", build)


# ---- in the coordinator's SuperLink --------------------------------------------------------


@_guarded
def serve_with(serve: Callable[..., None]) -> None:
    """Make the SuperLink call `serve` with its app instead of `uvicorn.run` (flwr 1.41).

    Flower has no option to put anything between its port and its app.
    """
    import uvicorn

    _replace(uvicorn, "run", lambda own: serve)
