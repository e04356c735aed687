"""Real federations on loopback: every process, key and certificate of a deployment."""

import os
import re
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import numpy as np
import pytest
import torch
from flwr.proto.runtime_pb2 import AcquireTaskRequest
from siege import siege
from test_masks import uniformity
from wire import Recorder, answers, inspect_answer, requests, rows_on_disk, size, words_of

import flic
from flic.engine.checkpoint import DiskJournal, finished_records
from flic.errors import FederationError
from flic.files import write_atomically
from flic.flower.announcement import announce
from flic.flower.coordinator_folder import Coordinator
from flic.flower.federation_settings import FederationSettings
from flic.flower.log import events
from flic.flower.ops import certificates
from flic.flower.ops.benchmark import clients, simulated
from flic.flower.ops.loopback import on_loopback
from flic.flower.ops.membership import Membership, ServerAddress
from flic.flower.ops.processes import Service, ask_flower, environment, script
from flic.flower.pooling import FIRST
from flic.flower.silo_folder import SiloFolder
from hospitals import assert_told

pytestmark = [
    pytest.mark.process,
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="asks /proc who is alive"),
    # A supervisor outlives whoever started it: that is what it is for.
    pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning"),
]

SOURCE = Path(flic.__file__).parents[1]
PATIENCE = 240  # seconds; the machine may be busy
# Plain descent follows gradients, so that silos and simulator agree on every processor.
NETWORK = {
    "training": {
        **{"local": "5 steps", "shared": "2 steps", "batch_size": 16},
        "optimiser": {"kind": "sgd", "learning_rate": 0.01},
    }
}

# What a silo sends that does not want to be counted, round by round: 100 MB, little that would
# become 100 MB, NaN, far too large numbers, an answer of an old round, another shape.
LIAR = """
import sys
if "multiprocessing.forkserver" in " ".join(sys.orig_argv):
    from dataclasses import replace
    import flic.flower.messages as messages
    from flwr.app import Array
    honest = messages.pack_reply
    def lie(reply):
        if not reply.update.entries:
            return honest(reply)
        factor = {3: float("nan"), 4: 1e9}.get(reply.round, 1.0)
        for entry in reply.update.entries.values():
            entry.value.mul_(factor)
        packed = honest(reply if reply.round != 5 else replace(reply, round=1))
        size = {1: 10**8, 2: 10**8, 6: 64}.get(reply.round)
        if size is not None:
            data = bytearray(size)
            if reply.round == 1:
                data[:: 2**20] = bytes(range(1, 97))
            packed["update"]["anchor.0.mean"] = Array(
                dtype="float32", shape=(size // 8, 2), stype=messages.RAW, data=bytes(data)
            )
        return packed
    messages.pack_reply = lie
"""
LIES = {
    "100000000 bytes; expected 16777216": 2,
    "NaN": 3,
    "root mean square": 4,
    "is of round 1": 5,
    "expected float32[16]": 6,
}


def settings_of(**changes):
    known = {"classes": ("malignant", "benign"), "network": NETWORK, "evaluate_every": 0}
    return FederationSettings(**{**known, **changes})


def wait_for(condition, seconds=PATIENCE):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.5)


def processes_under(folder):
    """Living processes that name the folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            words = (path / "cmdline").read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if str(folder).encode() in words:
            found.append(words)
    return found


def same(ours, theirs):
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        torch.testing.assert_close(value, theirs[name], rtol=0, atol=1e-5, msg=name)


def refused(member, server):
    """The reason why a silo was not let in."""
    with pytest.raises(FederationError) as said:
        member.start(server, seconds=15)
    assert not member.service.running
    return str(said.value)


def strangers_are_refused(running, table, root):
    """A key that nobody admitted, no key, another authority, no encryption."""
    said, log = running.server, running.deployment.service
    other = certificates.create(root / "other", ["127.0.0.1"])
    ways = {
        "does not know this silo's key": said,
        "certificate is not of the authority": ServerAddress(said.address, other.authority),
        "one that speaks TLS hangs up on --insecure": ServerAddress(said.address, None),
    }
    strangers = [Membership(SiloFolder.create(root / f"stranger-{i}", table)) for i in range(3)]
    for stranger in strangers:
        stranger.make_key()
    with ThreadPoolExecutor(3) as pool:
        for reason, why in zip(ways, pool.map(refused, strangers, ways.values()), strict=True):
            assert reason in why
    assert "silo unknown, key" in log.tail()
    assert "refused 127.0.0.1 in the handshake: it does not trust" in log.tail()
    with pytest.raises(OSError, match=r"reset|Empty|closed"):
        urlopen(f"http://{said.address}/health", timeout=10)
    assert "refused 127.0.0.1 in the handshake: it spoke plain HTTP" in log.tail()

    keyless = Service("keyless", root / "keyless.pid", root / "keyless.log", "kill")
    words = ["--superlink", said.address, "--root-certificates", str(said.authority)]
    keyless.start([*script("supernode"), *words], environment(root / "stranger-0" / "flower"))
    try:
        wait_for(lambda: "[code: 2001]" in keyless.tail() and "ended with 1" in keyless.tail())
    finally:
        keyless.stop()
    assert "Flower refused /v1/fleet/register-node" in log.tail()


def messages_are_for_the_silo_alone(member):
    """Another user of a silo's machine is given no message of it."""
    [words] = [w.split(b"\0") for w in processes_under(member.folder) if b"executor.py" in w]
    address = words[words.index(b"--runtime-api-address") + 1].decode()
    wanted = Request(
        f"http://{address}/v1/runtime/acquire-task",
        data=AcquireTaskRequest(supported_task_types=["flwr-clientapp"]).SerializeToString(),
        headers={"Content-Type": "application/protobuf"},
    )
    with pytest.raises(HTTPError, match="401") as refused:
        urlopen(wanted, timeout=30)
    refused.value.close()


def sent_code_is_not_run(running, members, root):
    """Whoever may start a run still cannot make a silo run code."""
    app = root / "app"
    app.mkdir()
    settings = (running.deployment.folder / "app" / "pyproject.toml").read_text()
    (app / "pyproject.toml").write_text(settings.replace("flic.flower.", "evil."))
    (app / "evil").mkdir()
    (app / "evil" / "client_app.py").write_text(
        "from pathlib import Path\nfrom flwr.clientapp import ClientApp\napp = ClientApp()\n"
        f"Path({str(root / 'was here')!r}).touch()\n"
    )
    (app / "evil" / "server_app.py").write_text(
        "from flwr.app import Message, RecordDict\nfrom flwr.serverapp import ServerApp\n"
        "app = ServerApp()\n@app.main()\ndef main(grid, context):\n"
        "    asked = [Message(RecordDict(), n, 'train') for n in grid.get_node_ids()]\n"
        "    list(grid.send_and_receive(asked, timeout=8))\n"
    )
    ask_flower(running.deployment.folder / "flower", "run", str(app))
    for member in members:
        wait_for(lambda log=member.service: "refused the app of run" in log.tail())
    assert not (root / "was here").exists()


@contextmanager
def recorded(root, settings, columns=None):
    """A federation of three silos, all of whose bytes are kept: running, members, recorder."""
    # Fewer places than strangers ask for, where there are any.
    few = {"max_connections": 48, "max_connections_per_silo": 12}
    with on_loopback(root, settings, {}, **few) as running:
        members = admitted(running, root, clients(root, 3, columns=columns))
        for member in members:
            member.trust(running.deployment.lines())
        recorder = Recorder(running.server, running.deployment.certificates)
        try:
            with ThreadPoolExecutor(3) as pool:
                list(pool.map(lambda m: m.start(recorder.door, seconds=PATIENCE), members))
            yield running, members, recorder
        finally:
            for member in members:
                member.leave()
            recorder.close()


def admitted(running, root, tables):
    """Silos that the coordinator knows by their keys, and that do not run yet."""
    found = []
    for name, table in tables.items():
        member = Membership(SiloFolder.create(root / name, table))
        member.make_key()
        running.deployment.admit(name, str(member.public_key))
        found.append(member)
    return found


def test_a_federation_keeps_strangers_and_liars_out_and_has_the_simulators_result(
    tmp_path, monkeypatch
):
    settings = settings_of(rounds=6, deadline_s=40.0, max_offences=len(LIES), evaluate_every=3)
    with recorded(tmp_path, settings) as (running, members, recorder):
        deployment, silos = running.deployment, [member.silo for member in members]
        table = silos[0].file.model_copy(update={"name": "liar"})
        strangers_are_refused(running, silos[0].file, tmp_path)
        messages_are_for_the_silo_alone(members[0])
        [liar] = admitted(running, tmp_path, {"liar": table})
        (tmp_path / "lies").mkdir()
        (tmp_path / "lies" / "sitecustomize.py").write_text(LIAR)
        lies = Recorder(running.server, deployment.certificates)
        try:
            with monkeypatch.context() as own:
                own.setenv("PYTHONPATH", os.pathsep.join(map(str, (tmp_path / "lies", SOURCE))))
                liar.start(lies.door, seconds=PATIENCE)
            sources = [f"127.0.0.{n}" for n in range(2, 8)]
            port, authority = deployment.address.port, running.server.authority
            with siege(port, authority, sources=sources, number=80):
                deployment.train()
        finally:
            liar.leave()
            lies.close()

        journal = DiskJournal(deployment.folder / "checkpoints")
        alone = simulated(settings, silos)
        same(journal.server.shared, alone.server.shared)
        states = alone.states([silo.name for silo in silos])
        for silo, state in zip(silos, states, strict=True):
            same(silo.model().model.private, state)

        folder = deployment.folder
        refusals = {e["message"]: e["round"] for e in events(folder) if e["event"] == "refused"}
        assert [*refusals.values()] == [*LIES.values()]
        assert all(word in why for word, why in zip(LIES, refusals, strict=True))
        assert "liar" in finished_records(folder)[0]["absent"]
        said = deployment.service.log.read_text()
        assert "refused /v1/fleet/push-object from 127.0.0.1, silo liar, key" in said
        assert "no place is free" in said
        status = deployment.status()
        assert status["silos"]["liar"]["suspended"]
        assert all(status["silos"][silo.name]["online"] for silo in silos)

        sent_code_is_not_run(running, members, tmp_path)
        nodes = Coordinator.open(folder).members.silos
        deployment.revoke("silo-2")
        wait_for(lambda: "silo silo-2, key" in deployment.service.tail())
    assert processes_under(tmp_path) == []

    sent = answers(recorder.streams, elsewhere=lies.streams)
    assert len(sent) == 3 * (7 + 3)  # six rounds and a last one, of which three are measured
    for silo in silos:
        for content in [content for node, content in sent if node == nodes[silo.name]]:
            inspect_answer(silo, settings, {*journal.server.shared}, content)
    no_word_is_sent(recorder, silos)


def no_word_is_sent(recorder, silos, but=()):
    """Names and values of columns are in no request."""
    words = {word for silo in silos for word in words_of(silo)} - {*but}
    _, heads, bodies = zip(*requests(recorder.streams), strict=True)
    bytes_sent, lines = b"\0".join(bodies), "\0".join(heads)
    assert not [word for word in words if len(word) > 5 and word.encode() in bytes_sent]
    assert not [word for word in words if word.islower() and word in lines]  # not in times


def test_of_linked_columns_masks_are_on_the_wire_and_the_result_is_the_simulators(tmp_path):
    settings = settings_of(method="linked")
    with recorded(tmp_path, settings, columns=8) as (running, members, recorder):
        running.deployment.train()
    coordinator = Coordinator.open(running.deployment.folder)
    settings, nodes = coordinator.settings, coordinator.members.silos
    journal = DiskJournal(running.deployment.folder / "checkpoints")
    silos = [member.silo for member in members]
    sent = answers(recorder.streams)
    # Keys, four sums of five phases, the model, and a sum of figures.
    assert len(sent) == 3 * (1 + 4 * 5 + 1 + 5)
    for silo in silos:
        rows, announced = rows_on_disk(silo), announce(silo, settings)
        for content in [content for node, content in sent if node == nodes[silo.name]]:
            inspect_masked(rows, announced, content)
    no_word_is_sent(recorder, silos, but=nodes)  # peers are called by their names
    # The simulator lays sums out otherwise; what is made of them is the same.
    alone = simulated(settings, silos)
    ours, theirs = (own.records[-1]["scores"] for own in (journal, alone))
    figures = ours["3 silos"]
    exact = {name: sum(own[name] for own in theirs.values()) for name in figures}
    assert_told(figures, exact, silos=3)
    cv_scores = [name for name in alone.server.shared if name.startswith("scores.")]
    shared = {name: journal.server.shared[name] for name in cv_scores}
    same(shared, {name: alone.server.shared[name] for name in cv_scores})


def inspect_masked(rows, announced, content):
    """An answer about linked columns: keys that nobody can read, and masked numbers."""
    keys = content["answer"].get("keys", [])
    assert all(re.fullmatch("[0-9a-f]{32}", key) for key in keys)
    assert {*content["update"]} <= {"masked"}
    assert not content["numbers"]
    for array in content["update"].values():
        assert not {*array.shape} & {len(own) for own in rows.values()}
        words = np.frombuffer(array.data, "<u8")
        assert len(np.unique(words)) == len(words)  # also of zeros, and of counts that are equal
        if len(words) > 1000:
            assert 1e-5 < uniformity(words) < 1 - 1e-5
    number = content["answer"]["round"] - FIRST + 1
    due = {e.what: e.num_bytes for e in announced if e.when == f"once, in round {number}"}
    if keys:
        assert 0 < size(content) <= sum(due.values())


def kill(pid):
    os.kill(pid, signal.SIGKILL)


def below(pid):
    """All processes that a process started, and that those did."""
    own = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [*map(int, own), *(further for child in own for further in below(child))]


def visits(member):
    return [e["round"] for e in events(member.folder) if e["event"] == "trained"]


def test_silos_and_coordinators_that_are_killed_come_back(tmp_path):
    settings = settings_of(rounds=40, deadline_s=150.0, quorum=2)
    with (
        ThreadPoolExecutor() as pool,  # ends last, once there is nothing left to train
        on_loopback(tmp_path, settings, clients(tmp_path, 3)) as running,
    ):
        deployment, victim = running.deployment, running.members["silo-1"]

        def done():
            return len(finished_records(deployment.folder))

        training = pool.submit(deployment.train)
        wait_for(lambda: done() >= 1)
        learnt = max(visits(victim))
        kill(victim.service.facts()["child"])  # its supervisor brings it back
        wait_for(lambda: any("silo-1" in r["absent"] for r in finished_records(deployment.folder)))
        assert victim.silo.status()["rounds"].popitem()[1] >= learnt
        wait_for(lambda: max(visits(victim)) > learnt + 1)
        wait_for(lambda: finished_records(deployment.folder)[-1]["active"] == [*running.members])

        # The rest would be the same for long; the federation is told to end sooner.
        shorten(deployment.folder, done() + 2)
        for pid in below(deployment.service.facts()["pid"]):  # the app of the run is the last
            kill(pid)
        training.result(PATIENCE)
        status = deployment.status()
        assert (status["done"], status["training"]) == (True, False)
        rounds = [record["round"] for record in finished_records(deployment.folder)]
        assert rounds == [*range(1, len(rounds) + 1)]
    assert processes_under(tmp_path) == []


def shorten(folder, rounds):
    path = folder / "federation.json"
    whole = Coordinator.open(folder).settings.rounds
    changed = path.read_text().replace(f'"rounds": {whole}', f'"rounds": {rounds}')
    write_atomically(path, changed.encode())  # `train` reads it meanwhile
