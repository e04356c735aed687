"""Both journals keep what was committed and nothing else."""

import pytest
import torch

from flic.engine.checkpoint import DiskJournal
from flic.engine.journal import MemoryJournal
from flic.methods.protocol import ServerState


@pytest.fixture(params=["memory", "disk"])
def journal(request, tmp_path):
    return MemoryJournal() if request.param == "memory" else DiskJournal(tmp_path / "steps")


def state(value):
    return {"embedding.0.bias": torch.full((3,), float(value)), "head.bias": torch.zeros(2)}


def server(value, round=0):
    return ServerState(round, {"hidden.bias": torch.full((2,), float(value))})


def value_of(found):
    return None if found is None else found["embedding.0.bias"][0].item()


def values(journal, *names):
    return [value_of(found) for found in journal.states(names)]


def test_nothing_is_known_before_anything_was_put(journal):
    assert journal.records == []
    assert journal.server is None
    assert journal.states(["a"]) == [None]


def test_what_was_put_is_read_before_it_is_committed(journal):
    journal.put({"a": state(1), "b": state(2)})
    journal.put({"b": state(3)})
    assert values(journal, "b", "a", "c") == [3, 1, None]
    assert journal.records == []


def test_a_commit_keeps_states_server_and_record(journal):
    journal.put({"a": state(1)})
    journal.commit(server(5, round=2), {"stage": "update", "round": 2})
    journal.put({"b": state(2)})
    journal.commit(server(6, round=3), {"stage": "update", "round": 3})
    assert values(journal, "a", "b") == [1, 2]
    assert [record["round"] for record in journal.records] == [2, 3]
    assert journal.server.round == 3
    assert journal.server.shared["hidden.bias"].tolist() == [6, 6]


def test_a_step_without_changes_is_a_step(journal):
    journal.put({})
    journal.commit(server(1), {"stage": "update", "round": 0})
    assert len(journal.records) == 1


def test_empty_server_states_survive(tmp_path):
    """Methods that share nothing."""
    journal = DiskJournal(tmp_path)
    journal.commit(ServerState(4, {}), {"stage": "update", "round": 4})
    again = DiskJournal(tmp_path)
    assert again.server == ServerState(4, {})


def test_names_with_slashes_and_odd_letters(tmp_path):
    name = "Ward/7 – Köln/head.bias"
    journal = DiskJournal(tmp_path)
    journal.put({name: state(7), "Ward": state(8)})
    journal.commit(server(0), {"stage": "update", "round": 0})
    assert values(DiskJournal(tmp_path), name, "Ward") == [7, 8]


def test_a_fresh_journal_reads_what_another_one_committed(tmp_path):
    journal = DiskJournal(tmp_path)
    journal.put({"a": state(1), "b": state(2)})
    journal.commit(server(5, round=1), {"stage": "update", "round": 1, "losses": {"data": 0.1}})
    journal.put({"b": state(3)})
    journal.commit(server(6, round=2), {"stage": "update", "round": 2, "losses": {"data": 1 / 3}})
    again = DiskJournal(tmp_path)
    assert again.notices == []
    assert again.records == journal.records
    assert values(again, "a", "b") == [1, 3]
    assert again.server.round == 2
    assert torch.equal(again.server.shared["hidden.bias"], journal.server.shared["hidden.bias"])


def test_what_was_not_committed_never_happened(tmp_path):
    journal = DiskJournal(tmp_path)
    journal.put({"a": state(1)})
    journal.commit(server(5), {"stage": "update", "round": 0})
    journal.put({"a": state(2), "b": state(2)})
    again = DiskJournal(tmp_path)
    assert values(again, "a", "b") == [1, None]
    again.put({"c": state(3)})
    again.commit(server(6), {"stage": "update", "round": 1})
    assert values(DiskJournal(tmp_path), "a", "b", "c") == [1, None, 3]


def test_superseded_files_go_but_one_step_back_stays(tmp_path):
    journal = DiskJournal(tmp_path)
    for step in range(5):
        journal.put({"a": state(step)})
        if step == 1:
            journal.put({"idle": state(9)})
        journal.commit(server(step), {"stage": "update", "round": step})
    kept = sorted(path.name for path in tmp_path.glob("*.safetensors"))
    assert kept == [
        "00001.1.safetensors",
        "00003.0.safetensors",
        "00003.server.safetensors",
        "00004.0.safetensors",
        "00004.server.safetensors",
    ]
    assert len(list(tmp_path.glob("*.json"))) == 5
    assert values(DiskJournal(tmp_path), "a", "idle") == [4, 9]
