"""How a silo stands with its coordinator, as Flower's log has it, and who may read its log."""

import stat

import pytest

from flic.flower.log import LOG, events, note
from flic.flower.membership import standing

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
