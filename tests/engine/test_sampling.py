"""The active set.  Paper: algo:FLIC-FEDREP, step 2."""

from collections import Counter

import pytest

from flic.engine.rounds import active_clients, num_active
from flic.errors import ConfigError

NAMES = [f"client-{i}" for i in range(10)]


@pytest.mark.parametrize(
    ("clients", "participation", "expected"),
    [(10, 0.1, 1), (10, 0.19, 1), (10, 0.2, 2), (100, 0.29, 29), (7, 0.5, 3), (3, 1.0, 3)],
)
def test_the_floor_of_r_times_b_is_active(clients, participation, expected):
    assert num_active(clients, participation) == expected


def test_every_decimal_share_of_a_hundred_is_that_many():
    """0.29 · 100 is 28.999999999999996 in floating point."""
    assert [num_active(100, i / 100) for i in range(1, 101)] == list(range(1, 101))


def test_a_share_that_rounds_to_nobody_is_refused():
    with pytest.raises(ConfigError) as refusal:
        num_active(5, 0.1)
    assert str(refusal.value) == (
        "training.participation = 0.1 of 5 clients rounds to no client; expected at least 0.2. "
        "Raise it or add clients."
    )


def test_the_simulation_refuses_it_before_any_work(federation, simulation):
    class Untouchable:
        """A journal that nobody may ask anything."""

    with pytest.raises(ConfigError, match="rounds to no client"):
        simulation(federation(4), Untouchable(), participation=0.2)


def draw(names=NAMES, seed=0, round=1, participation=0.3):
    return active_clients(names, participation, seed=seed, round=round)


def test_a_draw_is_distinct_clients_in_order():
    for round in range(20):
        drawn = draw(round=round)
        assert drawn == sorted(set(drawn))
        assert set(drawn) < set(NAMES)
        assert len(drawn) == 3


def test_a_draw_depends_on_seed_and_round():
    assert draw() == draw()
    assert len({tuple(draw(round=t)) for t in range(20)}) > 10
    assert len({tuple(draw(seed=s)) for s in range(20)}) > 10


def test_a_draw_does_not_depend_on_the_order_of_names():
    for round in range(5):
        assert draw(round=round) == draw(NAMES[::-1], round=round)


def test_clients_are_drawn_evenly():
    counts = Counter(name for t in range(1000) for name in draw(round=t))
    # Binomial(1000, 0.3): six standard deviations are 87.
    assert all(abs(counts[name] - 300) < 87 for name in NAMES)
