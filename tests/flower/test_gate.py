"""The guards between the network and Flower: the coordinator's gate, the silo's look at code."""

import asyncio
import json
import logging
from base64 import b64encode
from io import BytesIO
from zipfile import ZipFile

import httpx
import pytest
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_ssh_public_key,
)
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from flic.flower import keys
from flic.flower.ops.listener import PEER, Peer
from flic.flower.ops.superlink import PART_OF_MESSAGE, START_OF_MESSAGE, Gate
from flic.flower.ops.supernode import COMPONENTS, objection

LARGEST = 1000


async def answer(request):
    status = int(request.headers.get("wanted-status", "200"))
    return PlainTextResponse(f"{len(await request.body())} bytes", status)


@pytest.fixture
def ask(tmp_path):
    """ask(path, …): the response that a request from some address gets."""
    app = Starlette(routes=[Route("/{rest:path}", answer, methods=["GET", "POST"])])
    gate = Gate(app, LARGEST, tmp_path / "keys.json")

    async def connected(scope, receive, send):
        scope["state"] = {PEER: Peer(scope["client"][0])}
        await gate(scope, receive, send)

    def request(path, *, peer="192.0.2.7", content=b"", headers=None):
        async def post():
            way = httpx.ASGITransport(connected, client=(peer, 5000))
            async with httpx.AsyncClient(transport=way, base_url="http://coordinator") as client:
                return await client.post(path, content=content, headers=headers)

        return asyncio.run(post())

    return request


async def endless():
    yield b"x" * 10


@pytest.mark.parametrize(
    ("path", "peer", "status"),
    [
        ("/v1/control/start-run", "192.0.2.7", 403),
        ("/v1/runtime/pull-message", "192.0.2.7", 403),
        ("/docs", "192.0.2.7", 403),
        ("//v1/fleet/../control/start-run", "192.0.2.7", 403),
        ("/v1/control/start-run", "fd00::7", 403),
        ("/v1/control/start-run", "not an address", 403),
        ("/v1/control/start-run", "127.0.0.1", 200),
        ("/v1/control/start-run", "::1", 200),
        ("/v1/control/start-run", "::ffff:127.0.0.1", 200),
        ("/v1/fleet/pull-messages", "192.0.2.7", 200),
        ("/health", "192.0.2.7", 200),
    ],
)
def test_only_silos_requests_come_in_from_the_network(ask, path, peer, status):
    assert ask(path, peer=peer).status_code == status


def test_a_body_that_is_too_large_is_not_read(ask):
    assert ask("/v1/fleet/push-object", content=b"x" * LARGEST).status_code == 200
    assert ask("/v1/fleet/push-object", content=b"x" * (LARGEST + 1)).status_code == 413
    assert ask("/v1/fleet/push-object", content=endless()).status_code == 411


def test_the_parts_of_one_message_count_together(ask):
    part = {"content": b"x" * 600, "headers": {"flwr-public-key": "north"}}
    other = {"content": b"x" * 600, "headers": {"flwr-public-key": "south"}}
    forged = {"content": b"x" * 600, "headers": {"flwr-public-key": "east", "wanted-status": "401"}}
    assert ask(PART_OF_MESSAGE, **part).status_code == 200
    assert ask(PART_OF_MESSAGE, **part).status_code == 413
    assert ask(PART_OF_MESSAGE, **other).status_code == 200
    assert ask(START_OF_MESSAGE, headers=part["headers"]).status_code == 200
    assert ask(PART_OF_MESSAGE, **part).status_code == 200
    assert [ask(PART_OF_MESSAGE, **forged).status_code for _ in range(3)] == [401, 401, 401]


def test_whom_flower_turns_away_is_named_in_the_log(ask, tmp_path, caplog):
    for name in ("north", "stranger"):
        keys.create_pair(tmp_path / name, tmp_path / f"{name}.pub")
    silos = {keys.read_public(tmp_path / "north.pub"): "north"}
    (tmp_path / "keys.json").write_text(json.dumps(silos))

    def shown(name):
        key = load_ssh_public_key((tmp_path / f"{name}.pub").read_bytes())
        pem = key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        return {"flwr-public-key": b64encode(pem).decode(), "wanted-status": "412"}

    with caplog.at_level(logging.WARNING, logger="flwr"):
        logging.getLogger("flwr").addHandler(caplog.handler)
        try:
            odd = {"flwr-public-key": b64encode(b"no key").decode(), "wanted-status": "401"}
            for headers in (shown("north"), shown("stranger"), {"wanted-status": "401"}, odd):
                ask("/v1/fleet/activate-node", headers=headers)
            ask("/v1/control/start-run")
        finally:
            logging.getLogger("flwr").removeHandler(caplog.handler)
    said = caplog.text
    assert "192.0.2.7, silo north, key " in said
    assert "192.0.2.7, silo unknown, key " in said
    assert "192.0.2.7, without a key" in said
    assert "192.0.2.7, with something that is no key" in said
    assert "refused /v1/control/start-run from 192.0.2.7" in said


def bundle(components=COMPONENTS, **files):
    lines = [f'{part} = "{place}"' for part, place in components.items()]
    settings = "\n".join(["[tool.flwr.app.components]", *lines])
    buffer = BytesIO()
    with ZipFile(buffer, "w") as archive:
        archive.writestr("pyproject.toml", settings)
        archive.writestr(".info/CONTENT", "")
        for name, text in files.items():
            archive.writestr(name, text)
    return buffer.getvalue()


def test_flics_own_bundle_is_taken():
    assert objection(bundle()) is None


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (bundle(**{"flic/flower/client_app.py": "import os"}), "flic/flower/client_app.py"),
        (bundle(**{"README.md": ""}), "README.md"),
        (bundle({**COMPONENTS, "clientapp": "os:system"}), "os:system"),
        (bundle({}), "names {}"),
        (b"no archive", "cannot be read"),
    ],
)
def test_a_silo_runs_no_code_that_it_is_sent(content, reason):
    assert reason in str(objection(content))
