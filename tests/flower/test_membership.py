"""A silo's standing with its coordinator, read from Flower's log, and who may read that log."""

import os
import signal
import stat
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

import flic
from flic.flower.log import LOG, events, note
from flic.flower.ops.membership import standing
from flic.flower.ops.processes import environment, script

ADMITTED = "INFO : SuperNode ID: 77\n"
LOST = "WARNING : Connection attempt failed, retrying in 0.37 seconds\n"
UNKNOWN = "ERROR : [/v1/fleet/activate-node][code: 2004] no such key\n"


@pytest.mark.parametrize(
    ("said", "stands"),
    [
        ("", "is starting"),
        (ADMITTED, "is let in"),
        (ADMITTED + LOST, "is not let in: the coordinator does not answer"),
        (ADMITTED + LOST + "INFO : Connection successful after 27 seconds\n", "is let in"),
        (ADMITTED + UNKNOWN, "is not let in: the coordinator does not know this silo's key"),
        (LOST + "ERROR: CERTIFICATE_VERIFY_FAILED\n", "is not let in: the coordinator's"),
        (UNKNOWN + ADMITTED, "is let in"),
    ],
)
def test_the_latest_sign_counts(said, stands):
    assert standing(said).startswith(stands)


def test_nobody_else_reads_a_silo_s_log(tmp_path):
    note(tmp_path, "failed", message="row 3 has no age")
    note(tmp_path, "failed", message="row 4 has no age")
    assert stat.S_IMODE((tmp_path / LOG).stat().st_mode) == 0o600
    assert [line["message"][4] for line in events(tmp_path)] == ["3", "4"]


def test_a_log_holds_names_of_files_that_are_no_text(tmp_path):
    note(tmp_path, "failed", message="no file 'caf\udce9 bücher.csv'")
    with (tmp_path / LOG).open("ab") as log:
        log.write(b'{"event": "torn')
    assert [line["message"] for line in events(tmp_path)] == ["no file 'caf? bücher.csv'"]


def test_a_log_that_is_a_pipe_is_refused(tmp_path):
    os.mkfifo(tmp_path / LOG)
    with pytest.raises(OSError, match="it is a pipe or a device"):
        list(events(tmp_path))


# A connection that is lost for good as soon as it is there.
LOST_FOR_GOOD = """
import sys
if sys.orig_argv[2].endswith("supernode.py"):
    from contextlib import contextmanager
    import flwr.supernode.start_client_internal as node

    @contextmanager
    def lost(**named):
        try:
            yield (1, *[None] * 7)
        except TypeError:
            print("lost", flush=True)

    node._init_connection = lost
"""


@pytest.mark.process
def test_a_silo_that_lost_its_connection_ends_and_is_not_deaf_for_ever(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(LOST_FOR_GOOD)
    source = Path(flic.__file__).parents[1]
    own = {"PYTHONPATH": os.pathsep.join(map(str, (tmp_path, source)))}
    with (tmp_path / "log").open("w") as log:
        node = subprocess.Popen(
            [*script("supernode"), "--insecure", "--superlink", "127.0.0.1:9"],
            env=environment(tmp_path) | own,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        node.wait(60)
    finally:  # also what it started, which its supervisor would end
        with suppress(ProcessLookupError):
            os.killpg(node.pid, signal.SIGKILL)
        node.wait()
    said = (tmp_path / "log").read_text()
    assert "lost" in said
    assert "the connection was given up" in said
