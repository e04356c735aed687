"""Tensors leave a client in one order: sets of names have another in every process."""

import os
import subprocess
import sys

import pytest

PROGRAM = """
from flic.data.digits import DigitsConfig
from flic.engine.engine import Engine, Job
from flic.method_settings import MethodSettings
data = DigitsConfig(num_clients=2).make(seed=0)
settings = MethodSettings.model_validate({"training": {"local": "1 steps", "shared": "1 steps"}})
engine = Engine.of("within-space", settings, data, seed=0)
server, name = engine.method.init_server(), engine.clients.names[0]
state = engine.method.init_client(engine.clients[name], engine.clients.architecture(name))
print(*engine.do(Job("update", server, (name,), [state])).updates[0].entries)
"""


@pytest.mark.slow
@pytest.mark.process
def test_updates_have_the_same_order_in_every_process():
    said = [
        subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "1")
    ]
    assert said[0].strip()
    assert said[0] == said[1]
