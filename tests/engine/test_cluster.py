"""A cluster that fails while it works says so in a sentence."""

import os

import pytest
from distributed import LocalCluster

from flic.engine import cluster as clusters
from flic.engine.cluster import open_cluster
from flic.errors import ConfigError, FederationError

HERE = {"host": "127.0.0.1", "protocol": "tcp://", "dashboard_address": "127.0.0.1:0"}


def square(number: int) -> int:
    return number * number


@pytest.fixture
def small():
    """A cluster inside this process, which can be spoilt."""
    with LocalCluster(n_workers=1, threads_per_worker=1, processes=False, **HERE) as cluster:
        yield cluster


@pytest.mark.process
def test_each_result_comes_with_the_number_of_its_item(small):
    with open_cluster(small.scheduler_address) as opened:
        found = dict(opened.as_done(square, ((number,) for number in range(9))))
        assert found == {number: number * number for number in range(9)}
        assert list(opened.as_done(square, [])) == []


@pytest.mark.process
def test_a_file_that_a_worker_cannot_read(small, tmp_path):
    with open_cluster(small.scheduler_address) as opened, pytest.raises(FederationError) as caught:
        opened.submit(os.stat, str(tmp_path / "nowhere")).result()
    assert str(caught.value).startswith("worker tcp://127.0.0.1:")
    assert "a file could not be read or written ([Errno 2]" in str(caught.value)


@pytest.mark.process
def test_a_worker_that_came_later_with_other_versions(small, monkeypatch):
    with open_cluster(small.scheduler_address) as opened:
        other = {**opened.versions, "torch": "1.0"}
        monkeypatch.setattr(opened, "versions", other)
        with pytest.raises(ConfigError, match="it has torch 2") as caught:
            opened.submit(square, 3).result()
    assert str(caught.value).startswith("worker tcp://127.0.0.1:")


@pytest.mark.process
def test_all_workers_are_gone(small, monkeypatch):
    monkeypatch.setattr(clusters, "PATIENCE_S", 0.2)
    with open_cluster(small.scheduler_address) as opened:
        small.scale(0)
        small.sync(small._correct_state)
        with pytest.raises(FederationError, match="it has had no worker for some time"):
            opened.submit(square, 3).result()


@pytest.mark.process
def test_the_scheduler_is_gone(small, monkeypatch):
    monkeypatch.setattr(clusters, "CONNECT_S", 1.0)
    with open_cluster(small.scheduler_address) as opened:
        small.close()
        with pytest.raises(FederationError, match="connection to its scheduler was lost"):
            opened.submit(square, 3).result()
