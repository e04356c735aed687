"""`flic coordinator` and `flic silo` as they are typed."""

import json
import re
import shlex
import signal
import socket
import ssl
import stat
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pandas as pd
import pytest
from click import Group
from typer.main import get_command

from flic.cli.main import app
from flic.files import write_json
from flic.flower.coordinator_folder import Coordinator
from flic.flower.keys import fingerprint, read_public
from flic.flower.ops.deployment import Deployment
from flic.flower.ops.supernode import free_port
from flic.flower.pinned_keys import pinned_peers
from flic.flower.silo_folder import SiloFolder
from flic.tables import load_tables, read_federation

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]
FLIC = Path(sys.executable).with_name("flic")


@pytest.fixture
def flic(flic_here):
    """flic("words"): exit code and all that was printed; never a traceback."""

    def run(words):
        said = flic_here(*shlex.split(words))
        return said.code, said.out + said.err

    return run


@pytest.fixture
def rows(tmp_path):
    """A small table, rows.csv."""
    made = [{"age": 30 + i % 20, "dose": i % 7, "num": i % 3} for i in range(60)]
    pd.DataFrame(made).to_csv(tmp_path / "rows.csv", index=False)


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_a_new_coordinator_has_all_it_needs_and_shows_it_to_nobody(flic, tmp_path):
    code, said = flic(
        "coordinator init c --classes well,ill --rounds 7 --seed 5 --host a.example.org "
        "--set quorum=3"
    )
    assert code == 0, said
    assert "ca.crt" in said
    settings = json.loads((tmp_path / "c/federation.json").read_text())["settings"]
    assert (settings["classes"], settings["rounds"]) == (["well", "ill"], 7)
    assert (settings["seed"], settings["quorum"]) == (5, 3)
    assert {mode(tmp_path / "c" / f) for f in (".", "certificates", "flower", "app")} == {0o700}
    assert {p.name for p in (tmp_path / "c/app").iterdir()} == {"pyproject.toml"}
    code, said = flic("coordinator status c --format json")
    assert code == 0
    status = json.loads(said)
    assert (status["running"], status["rounds_done"], status["done"]) == (False, 0, False)
    assert status["address"] == "a.example.org:9443"


def test_a_new_silo_shows_exactly_what_will_leave(flic, tmp_path, rows):
    code, said = flic(
        "silo init north/silo.toml --data rows.csv --label num --name north "
        "--class well=0 --class ill=1,2 --missing dose=6"
    )
    assert code == 0, said
    shown = dict(re.findall(r"^(\S.*?)\s+(\[.*?\])\s+\d+\s+every round", said, re.MULTILINE))
    assert shown == {
        **{f"anchor.{c}.mean": "[16]" for c in (0, 1)},
        **{f"weight of anchor.{c}.mean": "[]" for c in (0, 1)},
        **{f"loss {term}": "[]" for term in ("data", "alignment", "calibration")},
    }
    assert "bytes in every round: 168" in said
    assert "never: rows, labels" in said
    assert mode(tmp_path / "north") == 0o700
    assert mode(tmp_path / "north/key") == 0o600
    assert "admit DIR north key.pub" in said
    code, said = flic("silo status north")
    assert (code, "does not run" in said) == (0, True)


def test_a_silo_may_live_beside_its_table_and_is_named_as_the_folder(flic, tmp_path, rows):
    assert flic("silo init silo.toml --data rows.csv --label num")[0] == 0
    assert f'name = "{tmp_path.name}"' in (tmp_path / "silo.toml").read_text()


def test_columns_of_a_new_silo_are_what_it_says(flic, tmp_path, rows):
    code, said = flic(
        "silo init s --data rows.csv --label num --classes 0,1,2 --numbers age --categories dose"
    )
    assert code == 0, said
    written = (tmp_path / "s/silo.toml").read_text()
    assert 'numbers = ["age"]' in written
    assert 'categories = ["dose"]' in written


@pytest.fixture
def made(flic, rows):
    """A coordinator `c` and a silo `s`, neither of which runs."""
    assert flic("coordinator init c --classes well,ill")[0] == 0
    words = "silo init s --data rows.csv --label num --name s --class well=0 --class ill=1,2"
    assert flic(words)[0] == 0


def test_linked_columns_have_a_salt_and_are_announced_round_by_round(flic, rows, tmp_path):
    assert flic("coordinator init c --classes well,ill --method linked")[0] == 0
    settings = json.loads((tmp_path / "c/federation.json").read_text())["settings"]
    assert (settings["method"], len(settings["salt"])) == ("linked", 32)
    code, said = flic(
        "silo init s --data rows.csv --label num --class well=0 --class ill=1,2 "
        "--federation c/federation.json"
    )
    assert code == 0, said
    # Two keys; then at most these again, counts and totals of two classes, squares, rows behind
    # them, and weights.
    numbers = 2 + 2 * 2 + 2 + 1
    assert f"bytes in round 1: {2 * 32}" in said
    assert f"bytes in round 2, before masks: 0 to {2 * 32 + 8 * numbers + 4 * 8}" in said
    assert "bytes in round 5, before masks: " in said
    assert "masked: the operator sees totals over 3 silos or more, not yours" in said
    assert "if fewer than 3 silos take part, this silo sends no sums" in said


def test_what_is_given_up_without_secure_sums_is_said_to_the_operator_and_to_silos(flic, rows):
    _, said = flic("coordinator init c --classes well,ill --method linked")
    assert "linked columns need 3 silos or more (min_holders)" in said
    assert "have every silo compare and trust it" in said
    assert "show single ones" not in said
    _, said = flic("coordinator init few --classes well,ill --method linked --set min_rows=1")
    assert "with min_rows = 1, numbers may rest on fewer than 5 rows, and show single ones" in said
    code, said = flic("coordinator init p --classes well,ill --method linked --no-secure-sums")
    assert code == 0
    assert "whoever runs this coordinator sees the sums of every silo" in said
    words = "silo init s --data rows.csv --label num --class well=0 --class ill=1,2 --federation"
    code, said = flic(f"{words} p/federation.json")
    assert code == 0, said
    assert "its operator sees all sums above as they are" in said
    assert "before masks" not in said


def test_networks_under_masks_are_announced_as_totals(flic, rows):
    code, said = flic("coordinator init c --classes well,ill --secure-sums")
    assert code == 0, said
    assert "have every silo compare and trust it" in said
    assert "3 silos or more (min_holders), the same in every round" in said
    words = "silo init s --data rows.csv --label num --class well=0 --class ill=1,2 --federation"
    code, said = flic(f"{words} c/federation.json")
    assert code == 0, said
    assert "bytes in every round, before masks: " in said
    assert "bytes in every evaluation, before masks: " in said
    assert "masked: the operator sees totals over 3 silos or more, not yours" in said
    assert "linked column" not in said
    assert "loss" not in said.split("never:")[0]
    assert "never: rows, labels" in said
    _, said = flic("coordinator init p --classes well,ill")
    assert "have every silo compare" not in said


def section_of_the_page(title):
    """Commands under a heading of docs/deploy.md."""
    page = (ROOT / "docs/deploy.md").read_text(encoding="utf-8")
    section = page.split(f"## {title}\n")[1].split("\n## ")[0]
    return re.findall(r"^flic (.*)$", section, re.MULTILINE)


def test_keys_are_compared_and_trusted_as_the_page_says(flic, rows, tmp_path):
    assert flic("coordinator init linked --classes well,ill --method linked")[0] == 0
    words = "silo init {} --data rows.csv --label num --class well=0 --class ill=1,2"
    deployment = Deployment.open(tmp_path / "linked")
    members = Coordinator.open(tmp_path / "linked").members
    lines = {}
    for number, name in enumerate(("heart", "south", "east")):
        assert flic(words.format(name))[0] == 0
        members.admit(name, number)
        lines[name] = read_public(tmp_path / name / "key.pub")
    # As `admit` does once Flower has the keys, which takes a coordinator that runs.
    write_json(tmp_path / "linked/keys.json", {line: name for name, line in lines.items()})
    assert deployment.lines() == lines
    commands = [c.replace("/srv/flic/", "") for c in section_of_the_page("Secure sums")]
    assert [c.split()[:2] for c in commands] == [
        ["coordinator", "keys"],
        ["silo", "trust"],
        ["silo", "fingerprint"],
        ["silo", "trust"],
    ]
    said = [flic(command) for command in commands]
    assert [code for code, _ in said] == [0, 0, 0, 0], said
    own = fingerprint(lines["heart"])
    assert "nothing is trusted yet" in said[1][1]
    assert all(fingerprint(line) in said[1][1] for line in lines.values())
    assert said[2][1].strip() == f"heart {own}"
    assert "trusts 3 keys, its own included" in said[3][1]
    assert pinned_peers(tmp_path / "heart") == lines
    assert "trusted" in flic("silo trust heart/silo.toml peers.txt")[1]


def test_a_list_that_is_none_is_refused(flic, made, tmp_path):
    (tmp_path / "peers.txt").write_text("ecdsa-sha2-nistp384 AAAA north\n")
    code, said = flic("silo trust s peers.txt --compared")
    assert (code, "is no public key" in said) == (2, True)
    (tmp_path / "peers.txt").write_text((tmp_path / "s/key.pub").read_text())
    code, said = flic("silo trust s peers.txt --compared")
    assert (code, "expected kind of key, key and a name" in said) == (2, True)


def commands_of_the_page():
    page = (ROOT / "docs/deploy.md").read_text(encoding="utf-8")
    return re.findall(r"^(?:ExecStart=/opt/flic/bin/)?flic (.*)$", page, re.MULTILINE)


@pytest.mark.parametrize("line", dict.fromkeys(commands_of_the_page()))
def test_every_command_of_the_page_is_understood(line):
    words, command = shlex.split(line), get_command(app)
    while isinstance(command, Group):
        command = command.commands[words.pop(0)]
    command.make_context(command.name, words)  # which refuses unknown options


REFUSED = [
    ("coordinator init new --classes a,b --insecure --host a.example.org", 2, "this machine alone"),
    ("coordinator init c --classes a,b", 1, "already holds something"),
    ("coordinator init new --classes a", 2, "two or more names"),
    ("coordinator init new --classes a,,b,", 2, "two or more names, all different"),
    ("coordinator init new --classes a,b --set max_message_mb=0.0001", 2, "Raise max_message_mb"),
    ("coordinator init new --classes a,b --host 'bad name'", 2, "is no host name"),
    (
        "coordinator init new --classes a,b --rounds 100000000000",
        2,
        "most of it for training.rounds",
    ),
    (
        "coordinator init new --classes a,b --set network.embedding.latent_dim=100000000000",
        2,
        "most of it for embedding and model",
    ),
    ("coordinator init new --classes a,b --set qorum=3", 2, "init, with --set qorum=3:"),
    ("coordinator start s", 1, "holds no coordinator"),
    ("coordinator admit c s s/key", 2, "is a private key"),
    ("coordinator admit c s rows.csv", 2, "is no public key"),
    ("coordinator revoke c nobody", 2, "nobody"),
    ("coordinator train c", 1, "has no silos"),
    ("silo init s --data rows.csv --label num --name s --classes 0,1,2", 2, "exists already"),
    ("silo init new --data rows.csv --label nom --name s", 1, "no label column 'nom'"),
    ("silo init new --data rows.csv --label num --name s --class ill", 2, "expected NAME=VALUES"),
    (
        "silo init new --data rows.csv --label num --name s --federation x.json",
        2,
        "federation.json",
    ),
    (
        "silo init new --data rows.csv --label num --numbers dose --categories age,dose",
        2,
        "'dose' is declared to be two things",
    ),
    ("silo init new --data rows.csv --label num --dates doze", 1, "declares 'doze'"),
    ("silo init new.toml --data rows.csv --label num --name s", 2, "new/silo.toml"),
    ("silo init new --data nothing.csv --label num --name s --classes 0,1,2", 1, "no such file"),
    ("silo start s --server a.example.org:1 --insecure", 2, "this machine alone"),
    ("silo start s --server 0.0.0.0:1 --insecure", 2, "this machine alone"),
    ("silo start s --server localhost:1", 2, "neither of --ca and --insecure"),
    ("silo start s --server localhost:1 --ca rows.csv --insecure", 2, "both of --ca and"),
    ("silo start s --server localhost:1 --ca nothing.crt", 2, "no such file"),
    ("silo start s --server localhost:1 --ca rows.csv", 2, "no certificate"),
    ("silo start s --server https://localhost --ca rows.csv", 2, "expected HOST:PORT"),
    ("silo start c --server localhost:1 --insecure", 2, "silo.toml: no such file"),
    ("silo predict s rows.csv --out p.csv", 1, "has no model yet"),
]


@pytest.mark.parametrize(("words", "code", "reason"), REFUSED, ids=lambda value: str(value)[:60])
def test_what_cannot_be_done_is_said_in_a_sentence(flic, made, tmp_path, words, code, reason):
    got, said = flic(words)
    assert reason in said
    assert got == code
    assert not any((tmp_path / name).exists() for name in ("new/silo.toml", "new/deployment.json"))


@pytest.mark.parametrize("words", ["coordinator stop c", "silo leave s"])
def test_stopping_what_does_not_run_is_no_error(flic, made, words):
    code, said = flic(words)
    assert (code, "did not run" in said) == (0, True)


@pytest.mark.parametrize("words", ["coordinator init c --classes a,b", "silo status s"])
def test_without_flower_one_is_told_what_to_install(words, tmp_path):
    program = "import sys; sys.modules['flwr'] = None\nfrom flic.cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program, *words.split()],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 2
    assert "pip install 'flic[flower]'" in done.stderr
    assert "Traceback" not in done.stderr


def own_address():
    """An address of this machine that is not loopback, if it has one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing
        except OSError:
            return None
        return probe.getsockname()[0]


def status_of(url, authority):
    request = urllib.request.Request(url, data=b"")
    safe = ssl.create_default_context(cafile=authority)
    try:
        return urllib.request.urlopen(request, timeout=30, context=safe).status
    except urllib.error.HTTPError as error:
        with error:
            return error.code


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning")
def test_the_network_reaches_no_control(flic, tmp_path):
    address, port = own_address(), free_port()
    if address is None or address.startswith("127."):
        pytest.skip("needs a network interface")
    assert flic(f"coordinator init c --classes a,b --host {address} --port {port}")[0] == 0
    code, said = flic("coordinator start c")
    assert code == 0, said
    try:
        authority = tmp_path / "c/certificates/ca.crt"
        control = "/v1/control/list-runs"
        assert status_of(f"https://{address}:{port}{control}", authority) == 403
        # What gets past the gate, Flower refuses for not being one of its messages.
        assert status_of(f"https://127.0.0.1:{port}{control}", authority) == 415
        assert status_of(f"https://{address}:{port}/v1/fleet/activate-node", authority) == 415
        code, said = flic("coordinator start c")
        assert (code, "runs already" in said) == (1, True)
        assert flic(f"coordinator init d --classes a,b --port {port}")[0] == 0
        code, said = flic("coordinator start d")
        assert (code, f"port {port} is in use" in said) == (1, True)
    finally:
        assert flic("coordinator stop c")[1] == "stopped\n"
    assert "only for the operator" in (tmp_path / "c/superlink.log").read_text()


def test_of_linked_columns_it_is_said_what_the_sums_may_show(flic, rows):
    code, said = flic("coordinator init c --classes well,ill --method linked")
    assert (code, "holds the salt that hides column names" in said) == (0, True)
    words = "silo init s --data rows.csv --label num --class well=0 --class ill=1,2"
    code, said = flic(f"{words} --federation c/federation.json")
    assert code == 0, said
    assert "never: single rows and labels, column names (only keys of them)" in said
    assert "at most 0.5 sums are sent per encoded value of your rows" in said
    assert (
        flic(
            "coordinator init d --classes well,ill --method linked "
            "--set network.linked.max_numbers_per_value=0.1"
        )[0]
        == 0
    )
    code, said = flic(f"{words.replace(' s ', ' t ')} --federation d/federation.json")
    assert "at most 0.1 sums are sent" in said
    assert "keys of columns" in said


@pytest.mark.slow
def test_a_start_that_is_interrupted_leaves_nothing_running(flic, tmp_path):
    assert flic(f"coordinator init c --classes a,b --port {free_port()}")[0] == 0
    with subprocess.Popen([FLIC, "coordinator", "start", "c"], cwd=tmp_path) as starting:
        service = Deployment.open(tmp_path / "c").service
        until = time.monotonic() + 60
        while not service.running and time.monotonic() < until:
            time.sleep(0.02)
        assert service.running
        starting.send_signal(signal.SIGINT)
        assert starting.wait(60) != 0
    assert not service.running


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning")
def test_plain_text_works_on_this_machine(flic, rows, tmp_path):
    port = free_port()
    assert flic(f"coordinator init c --classes well,ill --insecure --port {port}")[0] == 0
    words = "silo init s --data rows.csv --label num --name s --class well=0 --class ill=1,2"
    assert flic(words)[0] == 0
    foreground = [FLIC, "coordinator", "start", "c", "--foreground"]
    with subprocess.Popen(foreground, cwd=tmp_path) as coordinator:
        try:
            code, said = flic(f"silo start s --server localhost:{port} --insecure --wait 200")
            assert code == 0, said
            node = re.search(r"as node (\d+)", said)[1]
            code, said = flic("coordinator admit c s s/key.pub")
            assert (code, "knows no keys" in said) == (2, True)
            assert flic(f"coordinator admit c s {node}")[0] == 0
            status = json.loads(flic("coordinator status c --format json")[1])
            assert (status["running"], status["silos"]["s"]["online"]) == (True, True)
            assert "has left" in flic("silo leave s")[1]
        finally:
            flic("silo leave s")
            coordinator.terminate()
        assert coordinator.wait(60) == 0


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning")
def test_the_cost_of_flower_is_measured(flic, monkeypatch):
    monkeypatch.setattr("flic.flower.ops.benchmark.ROUNDS", 1)
    code, said = flic("coordinator bench --silos 2 --format json")
    assert code == 0, said
    (found,) = json.loads(said)
    assert found["silos"] == 2
    assert (found["flower_bytes"], found["simulator_bytes"]) == (168, 128)
    assert found["flower_seconds"] > found["simulator_seconds"] > 0


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning")
def test_the_cost_of_masks_is_measured(flic, monkeypatch):
    monkeypatch.setattr("flic.flower.ops.benchmark.ROUNDS", 1)
    code, said = flic("coordinator bench --silos 3 --secure-sums --format json")
    assert code == 0, said
    (found,) = json.loads(said)
    # 34 numbers of 16 bytes, and what silos say in five phases.
    assert 34 * 16 < found["flower_bytes"] < 100 * 34 * 16
    assert found["flower_seconds"] > found["simulator_seconds"] > 0


def test_masks_are_measured_without_messages(flic):
    code, said = flic(
        "coordinator bench --silos 3 --silos 6 --secure-sums --in-process --format json"
    )
    assert code == 0, said
    three, six = json.loads(said)
    assert (three["silos"], six["silos"]) == (3, 6)
    assert three["numbers"] == six["numbers"] == 34  # two anchors of sixteen, and their weights
    assert 34 * 16 < three["silo_sends"] < six["silo_sends"]
    assert min(one[f"{who}_seconds"] for one in (three, six) for who in ("silo", "coordinator")) > 0
    assert "kB a silo sends" in flic("coordinator bench --secure-sums --silos 3 --in-process")[1]


@pytest.mark.parametrize(
    ("options", "words"),
    [("--silos 2 --secure-sums", "3 at least"), ("--in-process", "expected --secure-sums")],
)
def test_masks_are_not_measured_where_there_are_none(flic, options, words):
    code, said = flic(f"coordinator bench {options}")
    assert (code, words in said) == (2, True)


def quick_start():
    page = (ROOT / "docs/deploy.md").read_text(encoding="utf-8")
    section = page.split("## On one machine")[1]
    return re.findall(r"```text\n(.*?)```", section, re.DOTALL)[0].splitlines()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning")
def test_the_quick_start_works_as_printed(need_data, flic, tmp_path):
    need_data("heart_disease/heart_disease_4sites.csv")
    port = str(free_port())
    lines = [line.replace("localhost:9443", f"localhost:{port}") for line in quick_start()]
    assert len(lines) > 15
    ends = [words for words in lines if " leave " in words or " stop " in words]
    try:
        for line in lines:
            if " coordinator init " in line:
                line = line.replace("--rounds 10", f"--rounds 2 --port {port}")
            typed(line, flic, tmp_path)
    finally:
        for line in ends:
            typed(line, flic, tmp_path)
    assert len(pd.read_csv(tmp_path / "predicted.csv")) == 200
    said = flic("silo evaluate va hospitals/va.csv --format json")[1]
    measured = json.loads(said.splitlines()[0])
    assert (measured["rows"], measured["trained_rows_left_out"]) == (50, 150)
    assert "left out 150 rows that the model was trained on" in said
    hospitals = tmp_path / "hospitals"
    for table in load_tables(read_federation(hospitals / "federation.toml"), hospitals).tables:
        if (tmp_path / table.name).exists():
            run = SiloFolder.open(tmp_path / table.name).newest()
            assert (run.columns, run.labelling) == (table.columns, table.labelling)


def typed(line, flic, folder):
    first, _, rest = line.partition(" ")
    if first.startswith("scripts/"):
        words = [sys.executable, str(ROOT / first), *shlex.split(rest)]
        subprocess.run(words, cwd=folder, check=True, capture_output=True, timeout=600)
        return
    assert first == "flic"
    code, said = flic(rest)
    assert code == 0, f"{line}\n{said}"
    assert said
