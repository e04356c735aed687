"""Requests and answers as Flower's records: what comes back, and what is not read at all."""

import json

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord

from flic.errors import ConfigError, FederationError, IncompatibleUpdate
from flic.flower.federation_settings import federation_settings
from flic.flower.messages import (
    Reply,
    Request,
    pack_reply,
    pack_request,
    read_reply,
    read_request,
)
from flic.flower.pooling import FIRST
from flic.methods.protocol import Entry, ServerState, Update
from hospitals import settings_of

RUN = "0123456789abcdef"
MEAN, WEIGHT = "anchor.0.mean", "hidden.weight"
SERVER = ServerState(
    7, {MEAN: torch.linspace(-1, 1, 8), WEIGHT: torch.rand(8, 3), "meta_classes": torch.tensor([1])}
)


def request(refused=None):
    return pack_request(Request(RUN, "update", SERVER, settings_of(seed=5, rounds=9), refused))


@pytest.mark.parametrize("refused", [None, "update of silo 'a' holds NaN"])
def test_a_request_arrives_as_it_was_sent(refused):
    read = read_request(request(refused))
    assert (read.run, read.stage, read.refused) == (RUN, "update", refused)
    assert read.settings == settings_of(seed=5, rounds=9)
    assert read.server.round == 7
    for name, value in SERVER.shared.items():
        assert read.server.shared[name].dtype == value.dtype
        assert torch.equal(read.server.shared[name], value)


@pytest.mark.parametrize(
    "changes",
    [
        {"run": "../../elsewhere"},
        {"run": 3},
        {"stage": "dance"},
        {"round": "7"},
        {"round": -1},
        {"round": 0},
        {"round": 11},
        {"settings": "{"},
        {"settings": "[" * 100_000},
        {"settings": 1.0},
        {"refused": 1},
    ],
    ids=lambda changes: str(changes)[:40],
)
def test_a_request_that_is_none_is_refused(changes):
    content = request()
    content["request"] = ConfigRecord({**content["request"], **changes})
    with pytest.raises(FederationError, match="expected one of flic's coordinator"):
        read_request(content)


@pytest.mark.parametrize(("round", "is_one"), [(FIRST - 1, False), (FIRST, True), (1, False)])
def test_rounds_of_linked_columns_have_numbers_of_their_own(round, is_one):
    sent = Request(RUN, "prepare", ServerState(round, {}), settings_of(method="linked"))
    if is_one:
        assert read_request(pack_request(sent)).server.round == round
    else:
        with pytest.raises(FederationError, match=f"round {round} is none of"):
            read_request(pack_request(sent))


@pytest.mark.parametrize("part", ["shared", "request"])
def test_a_request_without_a_part_is_refused(part):
    content = request()
    del content[part]
    with pytest.raises(FederationError, match=part):
        read_request(content)


def test_settings_of_a_request_are_checked_like_any_others():
    content = request()
    raw = json.loads(content["request"]["settings"]) | {"quorum": 0}
    content["request"]["settings"] = json.dumps(raw)
    with pytest.raises(ConfigError, match="quorum: got 0"):
        read_request(content)


# ---- answers -------------------------------------------------------------------------------


def answer():
    entries = {MEAN: Entry(torch.rand(8), 1.0), WEIGHT: Entry(torch.rand(8, 3), 12.0)}
    return Reply(7, Update("east", entries), {"data": 0.25, "test_rows": 3.0})


def read(content, max_bytes=10_000):
    return read_reply(content, silo="east", expected=lambda keys: SERVER, max_bytes=max_bytes)


def test_an_answer_arrives_as_it_was_sent():
    sent = answer()
    reply = read(pack_reply(sent))
    assert (reply.round, reply.numbers, reply.update.client) == (7, sent.numbers, "east")
    assert reply.update.entries.keys() == sent.update.entries.keys()
    for name, entry in sent.update.entries.items():
        assert reply.update.entries[name].weight == entry.weight
        assert torch.equal(reply.update.entries[name].value, entry.value)


def test_the_name_of_a_silo_is_not_taken_from_its_answer():
    content = pack_reply(answer())
    assert b"east" not in repr(content).encode()


def test_tensors_cost_their_numbers_and_no_more():
    content = pack_reply(answer())
    assert sum(len(array.data) for array in content["update"].values()) == 4 * (8 + 24)


def test_an_answer_is_weighed_before_it_is_read():
    content = pack_reply(answer())
    content["update"][MEAN] = Array(dtype="?", shape=(-1,), stype="pickle", data=bytes(10_001))
    with pytest.raises(IncompatibleUpdate, match="bytes; expected 10000 at most"):
        read(content)


@pytest.mark.parametrize("where", ["numbers", "answer", "weights"])
def test_nothing_large_hides_beside_the_tensors(where):
    content = pack_reply(answer())
    kind = ConfigRecord if where == "answer" else MetricRecord
    content[where] = kind({"a": [1.0] * 2000})
    with pytest.raises(IncompatibleUpdate, match="expected 10000 at most"):
        read(content)


def array(**changes):
    facts = {"dtype": "float32", "shape": (8,), "stype": "flic.raw", "data": bytes(32)}
    return Array(**{**facts, **changes})


IN_NUMPY = Array(np.zeros(8, np.float32))


@pytest.mark.parametrize(
    "wrong",
    [
        {"dtype": "float64"},
        {"dtype": "object"},
        {"shape": (4, 2)},
        {"shape": (8, -1)},
        {"shape": ()},
        {"data": bytes(31)},
        {"data": b""},
        {"stype": IN_NUMPY.stype, "data": IN_NUMPY.data},
    ],
    ids=str,
)
def test_a_tensor_unlike_the_server_s_is_refused(wrong):
    content = pack_reply(answer())
    content["update"][MEAN] = array(**wrong)
    with pytest.raises(IncompatibleUpdate, match=r"expected float32\[8\] in 32"):
        read(content)


@pytest.mark.parametrize(
    ("part", "record"),
    [
        ("update", MetricRecord({MEAN: 1.0})),
        ("weights", ConfigRecord({MEAN: "1"})),
        ("weights", MetricRecord({MEAN: 1.0})),
        ("weights", MetricRecord({MEAN: 1.0, WEIGHT: float("nan")})),
        ("weights", MetricRecord({MEAN: 1.0, WEIGHT: [1.0]})),
        ("weights", MetricRecord({MEAN: 1.0, WEIGHT: 1.0, "b": 1.0})),
        ("numbers", ArrayRecord({})),
        ("numbers", MetricRecord({"Mrs. Smith": 1.0})),
        ("numbers", MetricRecord({"data": float("inf")})),
        ("numbers", MetricRecord({"data": [0.1, 0.2]})),
        ("numbers", MetricRecord({f"n{i}": 0.0 for i in range(33)})),
        ("answer", ConfigRecord({})),
        ("answer", ConfigRecord({"round": "7"})),
        ("answer", ConfigRecord({"round": 7, "note": "a patient"})),
        ("rows", ArrayRecord({})),
    ],
    ids=str,
)
def test_an_answer_of_other_parts_is_refused(part, record):
    content = pack_reply(answer())
    content[part] = record
    with pytest.raises(IncompatibleUpdate, match="answer of silo 'east'"):
        read(content)


@pytest.mark.parametrize("part", ["update", "weights", "numbers", "answer"])
def test_an_answer_without_a_part_is_refused(part):
    content = pack_reply(answer())
    del content[part]
    with pytest.raises(IncompatibleUpdate, match="a part is missing"):
        read(content)


def test_a_name_that_the_server_does_not_share_is_refused():
    content = pack_reply(answer())
    content["update"]["embedding.0.weight"] = array()
    with pytest.raises(IncompatibleUpdate, match=r"'embedding\.0\.weight', which the server"):
        read(content)


def test_a_request_for_more_rounds_than_fit_a_machine_is_refused():
    raw = settings_of().model_dump(mode="json") | {"rounds": 2**63 - 1}
    with pytest.raises(ConfigError, match=r"most of it for training\.rounds"):
        federation_settings(raw, source="settings of the federation")
