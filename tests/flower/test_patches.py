"""Each change to Flower's internals: the name it replaces is there, and Flower feels the change."""

import ast
import inspect
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress
from importlib import import_module
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import uvicorn
from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.proto.message_pb2 import ObjectTree, PullObjectResponse
from flwr.proto.runtime_pb2 import PullAppMessagesResponse
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.superlink.grid.http_grid import HttpGrid

from flic.cli.coordinator import need_flower
from flic.errors import ConfigError
from flic.flower import patches

node = import_module("flwr.supernode.start_client_internal")
connection = import_module("flwr.supernode.fleet_http_connection")
grid = import_module("flwr.superlink.grid.http_grid")
superexec = import_module("flwr.supercore.superexec.run_superexec")

REPLACED = [
    (Array, "inflate"),
    (grid, "pull_objects"),
    (superexec, "get_executor"),
    (node, "get_fused_config_from_fab"),
    (node, "time"),
    (node, "_init_connection"),
    (connection, "make_simple_http_retry_invoker"),
    (uvicorn, "run"),
]

PATCHES = {
    "cap_tensors": (1,),
    "cap_upload_wait": (1.0,),
    "use_executor": (Mock,),
    "check_bundles": (str,),
    "shorten_waits": (),
    "when_let_in": (print,),
    "retry_handshakes": (),
    "serve_with": (print,),
}


@pytest.fixture(autouse=True)
def _flower_as_it_is(monkeypatch):
    """Give each test Flower's own names, and put back afterwards what was there."""
    for owner, name in REPLACED:
        own = patches._OWN.get((owner, name), getattr(owner, name))
        monkeypatch.setattr(owner, name, own)
    monkeypatch.setattr(patches, "_OWN", {})


def test_every_patch_is_tested_here():
    found = {name for name, value in vars(patches).items() if hasattr(value, "__wrapped__")}
    assert found == {*PATCHES}


@pytest.mark.parametrize("name", PATCHES)
def test_a_patch_replaces_one_name_that_is_there(name):
    before = [getattr(owner, name) for owner, name in REPLACED]
    getattr(patches, name)(*PATCHES[name])
    after = [getattr(owner, name) for owner, name in REPLACED]
    assert [a == b for a, b in zip(before, after, strict=True)].count(False) == 1


@pytest.mark.parametrize("name", PATCHES)
@pytest.mark.parametrize("installed", ["1.43.0", "1.4.1", "2.0.0"])
def test_another_version_of_flower_is_refused(monkeypatch, name, installed):
    monkeypatch.setattr(patches, "version", lambda package: installed)
    with pytest.raises(ConfigError, match=rf"^flwr {installed} is installed; expected 1\.41"):
        getattr(patches, name)(*PATCHES[name])
    assert patches._OWN == {}


def test_a_command_refuses_another_version_of_flower(monkeypatch):
    monkeypatch.setattr(patches, "version", lambda package: "1.43.0")
    with pytest.raises(ConfigError, match=r"Run: pip install 'flwr==1\.41\.\*'$"):
        need_flower("coordinator start")


# ---- what Flower does then -----------------------------------------------------------------


def test_little_that_says_it_is_much_is_not_unpacked():
    large = Array(dtype="float32", shape=(7_000_000,), stype="any", data=bytes(28_000_000))
    assert len(large.children) == 2  # all but the last are alike, and travel once
    record = ArrayRecord({"large": large})
    parts = {key: part.deflate() for key, part in get_all_nested_objects(record).items()}

    def unpacked():
        return inflate_object_from_contents(record.object_id, {**parts})["large"]

    patches.cap_tensors(27_999_999)
    with pytest.raises(ValueError, match="28000000 bytes; expected 27999999"):
        unpacked()
    patches.cap_tensors(28_000_000)  # the last call counts
    assert len(unpacked().data) == 28_000_000
    assert unpacked().shape == (7_000_000,)


@pytest.mark.slow
def test_parts_that_do_not_come_are_not_waited_for():
    asked = HttpGrid(token="any")
    asked._run = Mock(run_id=1)
    asked._client = Mock()
    asked._client.PullMessages.return_value = PullAppMessagesResponse(
        messages_list=[{}], message_object_trees=[ObjectTree(object_id="announced")]
    )
    asked._client.PullObject.return_value = PullObjectResponse(
        object_found=True, object_available=False
    )
    patches.cap_upload_wait(0.1)
    began = time.monotonic()
    [answer] = asked.pull_messages(["any"])
    assert time.monotonic() - began < 10
    assert "limit reached" in answer.error.reason


def test_the_superexec_takes_our_executor():
    class OursError(Exception):
        pass

    patches.use_executor(Mock(side_effect=OursError))
    with pytest.raises(OursError):
        superexec.run_superexec("127.0.0.1:1", insecure=True)


@pytest.mark.parametrize(("reason", "taken"), [(None, [b"bundle"]), ("it holds code", [])])
def test_a_message_with_an_objectionable_bundle_is_ignored(monkeypatch, reason, taken):
    read = []
    monkeypatch.setattr(node, "get_fused_config_from_fab", lambda fab, run: read.append(fab))
    patches.check_bundles(lambda bundle: reason)
    state, store = Mock(), Mock()
    state.get_run.return_value = state.get_run_series_context.return_value = None
    store.preregister.return_value = []
    run = node._pull_and_store_message(
        state=state,
        object_store=store,
        node_config={},
        receive=lambda: (Message(RecordDict(), 1, "train"), ObjectTree()),
        get_run=lambda number: SimpleNamespace(
            run_id=7, series_id=7, fab_hash="any", primary_task_type=""
        ),
        get_fab=lambda digest, number: SimpleNamespace(content=b"bundle"),
        pull_object=Mock(),
        confirm_message_received=Mock(),
        trusted_entities=None,
    )
    assert read == taken
    assert (run is None) == (reason is not None) == (not state.store_fab.called)


def test_the_supernode_waits_less_while_a_run_goes_on(monkeypatch):
    slept = []
    monkeypatch.setattr(patches.time, "sleep", slept.append)
    patches.shorten_waits()
    for _ in range(patches.IN_VAIN):
        node.time.sleep(3)
    assert slept == [patches.IDLE_S] * (patches.IN_VAIN - 1) + [3]
    state, reply = Mock(), Mock()
    state.get_messages_legacy.side_effect = [[], [reply]]
    state.get_messages_legacy.return_value = [reply]
    send = Mock(return_value=(set(), "any"))
    node._push_messages(state=state, object_store=Mock(), send=send, push_object=Mock())
    node.time.sleep(3)
    assert slept[patches.IN_VAIN :] == [0.5, patches.IDLE_S]  # it is busy, and soon asks again


def test_the_supernode_wants_nothing_of_time_but_to_sleep():
    uses = [
        found.attr
        for found in ast.walk(ast.parse(inspect.getsource(node)))
        if isinstance(found, ast.Attribute) and ast.unparse(found.value) == "time"
    ]
    assert {*uses} == {"sleep"}
    assert "time.sleep(3)" in inspect.getsource(node.start_client_internal)


@pytest.mark.parametrize("is_let_in", [True, False])
def test_only_a_silo_that_is_let_in_starts_more(monkeypatch, is_let_in):
    class Over(Exception):
        pass

    @contextmanager
    def knock(*arguments):
        if not is_let_in:
            raise Over
        yield (7, Mock(side_effect=Over), *[Mock()] * 6)

    monkeypatch.setattr(node, "http_request_response", knock)
    monkeypatch.setattr(node, "register_signal_handlers", Mock())
    called = []
    patches.when_let_in(lambda: called.append("let in"))
    with pytest.raises(Over):
        node.start_client_internal(
            state_factory=Mock(),
            server_address="127.0.0.1:1",
            node_config={},
            isolation="process",
        )
    assert called == ["let in"] * is_let_in


@pytest.mark.slow
@pytest.mark.parametrize(("answer", "tries"), [(b"", 3), (b"HTTP/1.1 400 no TLS\r\n\r\n", 1)])
def test_a_handshake_that_is_cut_off_is_tried_again(monkeypatch, answer, tries):
    # Flower's own would end this process a little later, from a thread.
    monkeypatch.setattr(connection, "flwr_exit", Mock(side_effect=SystemExit))
    visits = []

    def hang_up():
        with suppress(OSError):
            while True:
                visitor, _ = server.accept()
                visits.append(visitor.recv(1000))
                visitor.sendall(answer)
                visitor.close()

    patches.retry_handshakes()
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=hang_up, daemon=True).start()
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with (
            pytest.raises(SystemExit),
            connection.http_request_response(address, insecure=False, max_retries=2),
        ):
            pass
        server.shutdown(socket.SHUT_RDWR)
    assert len(visits) == tries


def test_the_superlink_is_served_by_us(monkeypatch):
    program = import_module("flwr.superlink.cli.flower_superlink")
    monkeypatch.setattr("flwr.superlink.main.create_app", lambda *arguments: "Flower's app")
    served = []
    patches.serve_with(lambda app, **options: served.append((app, options["port"])))
    program._run_superlink_http_api(
        SimpleNamespace(host="127.0.0.1", port=9443, ssl_keyfile=None, ssl_certfile=None)
    )
    assert served == [("Flower's app", 9443)]


@pytest.mark.process
def test_patches_alone_import_neither_flower_nor_torch():
    code = "import sys, flic.flower.patches; print({'flwr', 'torch', 'uvicorn'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "set()", done.stderr
