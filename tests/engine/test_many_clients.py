"""Ten thousand registered clients cost a round no more than a thousand do."""

import time

import pytest
from safetensors import safe_open

from flic.engine.checkpoint import DiskJournal

ROUNDS = 3


def timed_rounds(federation, simulation, folder, registered):
    """Seconds of the fastest round with 100 active clients, and who was active."""
    run = simulation(
        federation(registered, dims=(3,), rows=(4,)),
        DiskJournal(folder),
        participation=100 / registered,
        evaluate_every=0,
        final_round=False,
        rounds=ROUNDS,
    ).steps()
    next(run)  # preparation
    seconds, active = [], set()
    for _ in range(ROUNDS):
        start = time.perf_counter()
        record = next(run)
        seconds.append(time.perf_counter() - start)
        active |= set(record["active"])
    return min(seconds), active


def clients_in(path):
    with safe_open(path, framework="pt") as tensors:
        return {key.rsplit("/", 1)[0] for key in tensors.keys()}  # noqa: SIM118 - not a mapping


@pytest.mark.slow
def test_a_round_costs_what_its_active_clients_cost(federation, simulation, tmp_path):
    few, _ = timed_rounds(federation, simulation, tmp_path / "few", 1_000)
    many, active = timed_rounds(federation, simulation, tmp_path / "many", 10_000)
    assert many < 3 * few + 0.05
    files = [p for p in (tmp_path / "many").glob("*.safetensors") if "server" not in p.name]
    assert len(active) > 200
    assert {name for path in files for name in clients_in(path)} == active
