"""A Dask cluster: the connection to its scheduler, and tasks for its workers.

Dask itself pickles what its processes send each other, so a cluster is for one owner's machines.
What flic sends are functions by their names, with texts, numbers and bytes.
"""

import asyncio
import logging
import platform
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import torch

from flic.digests import COMPUTING, digest_of_code
from flic.errors import ConfigError, FederationError, FlicError

if TYPE_CHECKING:
    from distributed import Future

Done = TypeVar("Done")

DaskClient = Any
"""Dask's client; its own types are those of asynchronous use."""

Versions = dict[str, str]
"""Versions that can change a figure or break a connection, by what they are of."""

CONNECT_S = 10.0
"""Time for a scheduler to answer, and then for a first worker to be there."""

PATIENCE_S = 30.0
"""Time without any worker after which work is given up; Dask starts a dead one again sooner."""

SAME = "Install the same versions on all machines, and start the workers again."


def own_versions() -> Versions:
    """Versions of this process."""
    major, minor, _ = platform.python_version_tuple()
    own = {"Python": f"{major}.{minor}", **_packages()}
    return {**own, "the code of flic": digest_of_code()[:12]}


@cache  # every task asks for it
def _packages() -> Versions:
    return {name: version(name) for name in (*COMPUTING, "distributed")}


def refuse_other(wanted: Versions, found: Versions) -> None:
    """Refuse versions that differ from those of the command."""
    for what, own in wanted.items():
        if found.get(what) != own:
            raise ConfigError(f"it has {what} {found.get(what)}; expected {own}, as here. {SAME}")


@dataclass(frozen=True)
class ClusterTask(Generic[Done]):
    """A task that was sent to a cluster."""

    cluster: "Cluster"
    future: "Future"

    def result(self) -> Done:
        """Wait for the result of the task."""
        return self.cluster.result(self.future)


class Cluster:
    """A connection to the scheduler of a cluster that has workers."""

    def __init__(self, client: DaskClient, address: str, *, workers: int) -> None:
        self.workers = workers  # threads of all workers when the connection was made
        self.in_flight = 2 * workers
        self._client, self._address = client, address
        self.versions = own_versions()

    def submit(self, function: Callable[..., Done], *plain: Any) -> ClusterTask[Done]:
        """Send function(*plain) to a worker; the function goes by its name.

        It may be called again elsewhere when a worker dies, so its result must depend on what it
        is given alone.
        """
        future = self._client.submit(obey, self.versions, function, *plain, pure=False)
        return ClusterTask(self, future)

    def as_done(
        self, function: Callable[..., Done], items: Iterable[tuple[Any, ...]]
    ) -> Iterator[tuple[int, Done]]:
        """Number of an item and its function(*item), as each is done; few items at a time."""
        numbered = enumerate(items)
        pending: dict[Future, int] = {}
        while True:
            while len(pending) < self.in_flight and (item := next(numbered, None)) is not None:
                pending[self.submit(function, *item[1]).future] = item[0]
            if not pending:
                return
            # Errors last, so that what is done is kept.
            for future in sorted(self.some_done([*pending]), key=lambda f: f.status == "error"):
                yield pending.pop(future), self.result(future)

    def result(self, future: "Future") -> Any:
        """Wait for the result of a task."""
        self.some_done([future])
        with self._in_words():
            return future.result()

    def some_done(self, futures: Sequence["Future"]) -> Sequence["Future"]:
        """Those that are done, once one is; gives up where no worker is left."""
        from distributed import wait

        with self._in_words(), self._client.as_current():
            while True:
                with suppress(TimeoutError):
                    found: Any = wait(futures, timeout=PATIENCE_S, return_when="FIRST_COMPLETED")
                    return [*found.done]
                if not self._client.nthreads():
                    raise FederationError(
                        f"cluster {self._address}: it has had no worker for some time; expected "
                        "one to do the rest. What was finished is kept: start workers, then go on."
                    )

    @contextmanager
    def _in_words(self) -> Generator[None]:
        """Say in a sentence what went wrong with the cluster inside the block."""
        from distributed import CancelledError, KilledWorker

        try:
            yield
        except KilledWorker as error:
            raise FederationError(
                f"cluster {self._address}: {error.allowed_failures + 1} workers died of the same "
                "piece of work; expected an answer. They may have run out of memory: start fewer "
                "of them on a machine, then go on. What was finished is kept."
            ) from error
        except (CancelledError, OSError) as error:
            raise FederationError(
                f"cluster {self._address}: the connection to its scheduler was lost; expected an "
                "answer. What was finished is kept: start the cluster again, then go on."
            ) from error


def obey(wanted: Versions, function: Callable[..., Done], *plain: Any) -> Done:
    """On a worker: function(*plain) in one thread; an error says whose it is."""
    from distributed import get_worker

    torch.set_num_threads(1)
    try:
        refuse_other(wanted, own_versions())  # the worker may have come after the others
        return function(*plain)
    except FlicError as error:
        raise type(error)(f"worker {get_worker().address}: {error}") from None
    except OSError as error:  # the command would take it for a lost connection
        raise FederationError(
            f"worker {get_worker().address}: a file could not be read or written ({error}); "
            "expected space and access there. What was finished is kept: repair it, then go on."
        ) from None


@contextmanager
def open_cluster(address: str) -> Generator[Cluster]:
    """Connect to the scheduler at an address such as tcp://host:8786.

    Raises:
        ConfigError: Dask is not installed, nobody answers there, or versions differ.
    """
    try:
        import distributed
        from dask import config
    except ImportError:
        raise ConfigError(
            "--cluster runs on Dask, which is not installed. Run: pip install 'flic[cluster]'"
        ) from None
    # A lost connection is said in a sentence, not in Dask's tracebacks.
    logging.getLogger("distributed.client").setLevel(logging.CRITICAL)
    # States of many clients are large. They travel with their task, so that it outlives a worker.
    with config.set({"distributed.admin.large-graph-warning-threshold": "1 TiB"}):
        try:
            # A client that fails to connect would not go away in peace.
            asyncio.run(_greet(address))
            client: DaskClient = distributed.Client(
                address, timeout=CONNECT_S, set_as_default=False
            )
        except (OSError, ValueError, TypeError, RuntimeError) as error:
            raise ConfigError(
                f"--cluster: no scheduler answers at {address} ({error}); expected the address "
                "that `dask scheduler` prints, such as tcp://host:8786."
            ) from None
        with client:
            yield Cluster(client, address, workers=_sound_workers(client, address))


async def _greet(address: str) -> None:
    """Connect as a client does, and leave."""
    from distributed import Security
    from distributed.comm.core import connect

    own = Security().get_connection_args("client")
    comm = await connect(address, timeout=CONNECT_S, **own)
    await comm.close()


def _sound_workers(client: DaskClient, address: str) -> int:
    """Threads of all workers, after a look at their versions."""
    try:
        client.wait_for_workers(1, timeout=CONNECT_S)
    except TimeoutError:
        raise ConfigError(
            f"--cluster: the scheduler at {address} has no worker; expected one at least. Start "
            f"it with: dask worker {address} --nthreads 1"
        ) from None
    wanted = own_versions()
    for worker, found in sorted(client.run(own_versions, on_error="return").items()):
        try:
            if isinstance(found, Exception):
                raise ConfigError(f"it cannot load flic ({found}); expected it there. {SAME}")
            refuse_other(wanted, found)
        except ConfigError as error:
            raise ConfigError(f"--cluster: worker {worker}: {error}") from None
    return sum(client.nthreads().values())
