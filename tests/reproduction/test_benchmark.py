"""The benchmark on a workload small enough to test."""

import math
from dataclasses import asdict

import pytest

from flic_paper.benchmark import speed as benchmark


@pytest.mark.slow
def test_all_figures_are_finite_and_positive(monkeypatch):
    small = {"CLIENTS": 4, "CLASSES": 4, "ROWS": 100, "ACTIVE": 2, "REPETITIONS": 1}
    small |= {"IMAGE_CLIENTS": 2, "IMAGE_ROWS": 10}
    for name, value in small.items():
        monkeypatch.setattr(benchmark, name, value)
    figures = asdict(benchmark.measure())
    assert all(math.isfinite(value) and value > 0 for value in figures.values()), figures
    # One thread cannot be faster than the machine's own matrix product.
    assert figures["peak_share"] < 1
    # Embedding (features → 64 → 64 → 64) and head of 4 classes, four times over, in float32.
    least = 4 * 4 * (5 * 64 + 64 + 2 * 64 * 65 + 4 * 65) / 1024
    assert least < figures["kib_per_client"] < 3 * least
