"""Damage is said and survived: the step before is used, and the run ends as it would have."""

import errno
import json
import os

import pytest

from flic.engine.checkpoint import DiskJournal
from flic.errors import Damaged
from flic.files import write_atomically

LAST = "00003"


def truncate(folder):
    path = folder / f"{LAST}.json"
    path.write_bytes(path.read_bytes()[:-40])
    return path


def empty(folder):
    path = folder / f"{LAST}.json"
    path.write_bytes(b"")
    return path


def forge(folder):
    """Valid JSON whose record is not what was written."""
    path = folder / f"{LAST}.json"
    content = json.loads(path.read_bytes())
    content["commit"]["record"]["round"] += 1
    path.write_text(json.dumps(content))
    return path


def flip(path):
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    return path


def flip_client_state(folder):
    return flip(folder / f"{LAST}.0.safetensors")


def flip_server_state(folder):
    return flip(folder / f"{LAST}.server.safetensors")


def lose_client_state(folder):
    path = folder / f"{LAST}.0.safetensors"
    path.unlink()
    return path


def lose_server_state(folder):
    path = folder / f"{LAST}.server.safetensors"
    path.unlink()
    return path


def pipe_as_server_state(folder):
    """A pipe that nobody writes to would be read for ever."""
    path = lose_server_state(folder)
    os.mkfifo(path)
    return path


def endless_client_state(folder):
    path = lose_client_state(folder)
    path.symlink_to("/dev/zero")
    return path


DAMAGES = [
    truncate,
    empty,
    forge,
    flip_client_state,
    flip_server_state,
    lose_client_state,
    lose_server_state,
    pipe_as_server_state,
    endless_client_state,
]


def result(journal, names):
    records = [
        {k: v for k, v in record.items() if not k.endswith("seconds")} for record in journal.records
    ]
    states = [{n: v.tolist() for n, v in s.items()} for s in journal.states(names)]
    return records, states, {n: v.tolist() for n, v in journal.server.shared.items()}


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_a_damaged_step_is_refused_and_done_again(federation, simulation, tmp_path, damage):
    data = federation()
    names = [client.name for client in data.clients]
    whole = DiskJournal(tmp_path / "whole")
    list(simulation(data, whole).steps())
    interrupted = simulation(data, DiskJournal(tmp_path / "damaged")).steps()
    for _ in range(4):
        next(interrupted)

    path = damage(tmp_path / "damaged")
    journal = DiskJournal(tmp_path / "damaged")
    assert len(journal.records) == 3
    [notice] = journal.notices
    assert str(path) in notice
    assert "damaged" in notice
    assert "it is not used; the run goes on from step 2" in notice

    assert len(list(simulation(data, journal).steps())) == 2
    assert result(journal, names) == result(whole, names)
    assert DiskJournal(tmp_path / "damaged").notices == []


def test_when_nothing_is_whole_the_run_cannot_go_on(federation, simulation, tmp_path):
    list(simulation(federation(), DiskJournal(tmp_path)).steps())
    for path in tmp_path.glob("*.safetensors"):
        flip(path)
    with pytest.raises(Damaged) as refusal:
        DiskJournal(tmp_path)
    assert "and the step before it can no longer be restored" in str(refusal.value)
    assert "start it anew in another folder" in str(refusal.value)


def lose_first_commit(folder):
    (folder / "00000.json").write_bytes(b"{")


def lose_first_server_state(folder):
    (folder / "00000.server.safetensors").unlink()


@pytest.mark.parametrize("damage", [lose_first_commit, lose_first_server_state])
def test_a_damaged_first_step_means_starting_over(federation, simulation, tmp_path, damage):
    next(simulation(federation(), DiskJournal(tmp_path)).steps())
    damage(tmp_path)
    journal = DiskJournal(tmp_path)
    assert (journal.records, journal.server) == ([], None)
    assert "the run goes on from the beginning" in journal.notices[0]
    assert len(list(simulation(federation(), journal).steps())) == 5


# ---- writes that fail ------------------------------------------------------------------------


def fail_to_sync(handle):
    raise OSError(errno.ENOSPC, "No space left on device")


def test_an_interrupted_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "rounds.json"
    write_atomically(path, b"old")
    monkeypatch.setattr(os, "fsync", fail_to_sync)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["rounds.json"]


def test_a_step_that_could_not_be_written_is_done_again(
    federation, simulation, tmp_path, monkeypatch
):
    data = federation()
    names = [client.name for client in data.clients]
    whole = DiskJournal(tmp_path / "whole")
    list(simulation(data, whole).steps())

    steps = simulation(data, DiskJournal(tmp_path / "full")).steps()
    next(steps)
    next(steps)
    with monkeypatch.context() as full_disk:
        full_disk.setattr(os, "fsync", fail_to_sync)
        with pytest.raises(OSError, match="No space left"):
            next(steps)
    journal = DiskJournal(tmp_path / "full")
    assert (len(journal.records), journal.notices) == (2, [])
    list(simulation(data, journal).steps())
    assert result(journal, names) == result(whole, names)


@pytest.mark.parametrize("writes", range(1, 7))
def test_a_crash_after_any_write_loses_no_committed_step(
    federation, simulation, tmp_path, monkeypatch, writes
):
    """The process dies between two writes of a step, wherever that is."""

    class Dead(BaseException):
        pass

    data = federation(4, dims=(3, 300))
    steps = simulation(data, DiskJournal(tmp_path), participation=1.0).steps()
    next(steps)
    left = writes
    fsync = os.fsync

    def die_later(handle):
        nonlocal left
        left -= 1
        if not left:
            raise Dead
        fsync(handle)

    with monkeypatch.context() as doomed:
        doomed.setattr(os, "fsync", die_later)
        with pytest.raises(Dead):
            next(steps)
    journal = DiskJournal(tmp_path)
    assert len(journal.records) == 1
    assert journal.notices == []
