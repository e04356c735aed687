"""Everything that silos send: recorded between them and their coordinator, decoded, looked at."""

import asyncio
import ssl
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import pandas as pd
import torch
from flwr.app import RecordDict
from flwr.proto.fleet_pb2 import PushMessagesRequest
from flwr.proto.message_pb2 import PushObjectRequest
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.protobuf.translation import PROTOBUF_REQUEST_TYPES
from google.protobuf.unknown_fields import UnknownFieldSet
from safetensors.torch import load_file

from flic.flower.announcement import Leaving, announce
from flic.flower.federation_settings import NUMBER_BYTES, FederationSettings
from flic.flower.ops.membership import ServerAddress
from flic.flower.ops.supernode import free_port
from flic.flower.silo_folder import SiloFolder


class Recorder:
    """A door before the coordinator's own, with its certificate: it keeps all that goes in.

    In one thread: OpenSSL lets no two use a connection at once.
    """

    def __init__(self, server: ServerAddress, certificate: Any) -> None:
        self.door = ServerAddress(f"127.0.0.1:{free_port()}", server.authority)
        self.streams: list[bytearray] = []  # of each connection, what the silo sent
        self._host, self._port = server.address.split(":")
        self._inward = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._inward.load_cert_chain(certificate.server, certificate.server_key)
        self._onward = ssl.create_default_context(cafile=server.authority)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        host, port = self.door.address.split(":")
        opening = asyncio.start_server(self._visit, host, int(port), ssl=self._inward)
        self._listening = self._do(opening)

    def close(self) -> None:
        """Let nobody in any more."""
        self._do(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(30)
        self._loop.close()

    async def _end(self) -> None:
        self._listening.close()
        visits = asyncio.all_tasks() - {asyncio.current_task()}
        for visit in visits:
            visit.cancel()
        await asyncio.gather(*visits, return_exceptions=True)
        await asyncio.sleep(0.2)  # in which connections say good-bye

    def _do(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    async def _visit(self, silo: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        self.streams.append(stream := bytearray())
        coordinator, onward = await asyncio.open_connection(
            self._host, int(self._port), ssl=self._onward
        )
        await asyncio.gather(_pump(silo, onward, stream), _pump(coordinator, back))


async def _pump(
    source: asyncio.StreamReader, target: asyncio.StreamWriter, copy: bytearray | None = None
) -> None:
    try:
        with suppress(OSError):
            while data := await source.read(65_536):
                if copy is not None:
                    copy += data
                target.write(data)
                await target.drain()
    finally:
        target.close()


def requests(streams: Sequence[bytes]) -> Iterator[tuple[str, str, bytes]]:
    """Path, head and body of every request; nothing of a stream is left over."""
    for stream in streams:
        rest = bytes(stream)
        while rest:
            head, _, rest = rest.partition(b"\r\n\r\n")
            words = head.decode().split("\r\n")
            named = dict(line.lower().split(": ", 1) for line in words[1:])
            length = int(named.get("content-length", "0"))
            assert len(rest) >= length
            yield words[0].split()[1], head.decode(), rest[:length]
            rest = rest[length:]


def pushed(streams: Sequence[bytes]) -> dict[str, bytes]:
    """Parts of messages in streams that may end anywhere."""
    parts = {}
    for stream in streams:
        with suppress(Exception):  # what a liar sends need not be HTTP to its end
            for path, _, body in requests([stream]):
                asked = PROTOBUF_REQUEST_TYPES["POST", path].FromString(body)
                if isinstance(asked, PushObjectRequest):
                    parts[asked.object_id] = asked.object_content
    return parts


def answers(
    streams: Sequence[bytes], elsewhere: Sequence[bytes] = ()
) -> list[tuple[int, RecordDict]]:
    """Node and content of every answer, put together from the parts in which it was sent.

    A part that somebody sent before, Flower does not ask for again: it may be in a stream of
    `elsewhere`.
    """
    before = pushed(elsewhere)
    parts, roots = {}, []
    for path, _, body in requests(streams):
        asked = PROTOBUF_REQUEST_TYPES["POST", path].FromString(body)
        assert len(UnknownFieldSet(asked)) == 0
        if isinstance(asked, PushObjectRequest):
            parts[asked.object_id] = asked.object_content
        elif isinstance(asked, PushMessagesRequest):
            roots += [(asked.node.node_id, tree.object_id) for tree in asked.message_object_trees]
        else:
            assert len(body) < 500, path  # who it is, and what it waits for
    found, used = [], set()
    for node, root in roots:
        known: dict[str, Any] = {}
        message: Any = inflate_object_from_contents(
            root, {**before, **parts}, keep_object_contents=True, objects=known
        )
        used |= {*known}
        found.append((node, message.content))
    assert {*parts} <= used <= {*parts, *before}  # nothing was sent beside the answers
    return found


def inspect_answer(
    silo: SiloFolder, settings: FederationSettings, names: set[str], content: RecordDict
) -> None:
    """An answer has known names, no trace of a row, and the size that was announced."""
    rows = pd.read_csv(silo.folder / silo.file.data)
    kept = rows_on_disk(silo)
    secret = rows.select_dtypes("number").to_numpy().ravel()
    encoded = torch.cat([t.flatten() for t in kept.values()])
    dims = {len(rows), rows.shape[1], kept["train.x"].shape[1], *map(len, kept.values())}
    assert {*content} == {"update", "weights", "numbers", "answer"}
    assert {*content["update"]} <= names
    assert {*content["answer"]} == {"round"}
    for array in content["update"].values():
        values = torch.from_numpy(np.frombuffer(array.data, "<f4").copy())
        assert not {*array.shape} & dims
        assert not torch.isin(values, encoded).any()
        assert not np.isin(values.numpy(), secret.astype(np.float32)).any()
    assert not {*content["numbers"].values()} & {*secret}
    announced = announce(silo, settings)
    if "test_rows" in content["numbers"]:
        assert size(content) == total(announced, "every evaluation")
    elif content["update"]:
        assert size(content) == total(announced, "every round")


def total(announced: Sequence[Leaving], when: str) -> int:
    """Bytes that leave at some occasion."""
    return sum(entry.num_bytes for entry in announced if entry.when == when)


def size(content: RecordDict) -> int:
    """Bytes of an answer beside the number of its round."""
    tensors = sum(len(array.data) for array in content["update"].values())
    keys = sum(len(key) for key in content["answer"].get("keys", []))
    return tensors + keys + NUMBER_BYTES * (len(content["weights"]) + len(content["numbers"]))


def rows_on_disk(silo: SiloFolder) -> dict[str, torch.Tensor]:
    """Encoded rows of the silo's only run."""
    [path] = silo.folder.glob("runs/*/rows.safetensors")
    return load_file(path)


def words_of(silo: SiloFolder) -> set[str]:
    """Column names and values of a silo's file, its name and its place."""
    rows = pd.read_csv(silo.folder / silo.file.data, dtype=str)
    found = {*rows.columns, *rows.to_numpy().ravel(), silo.name, str(silo.folder)}
    return {word for word in found if len(word) > 3}
