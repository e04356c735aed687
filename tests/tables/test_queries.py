"""Queries read, and do nothing else, whatever they say."""

import sqlite3
import time

import duckdb
import pytest

from flic.errors import DataError
from flic.tables import databases, read_table


@pytest.fixture(params=["visits.sqlite", "visits.duckdb"])
def database(request, tmp_path):
    path = tmp_path / request.param
    connect = duckdb.connect if path.suffix == ".duckdb" else sqlite3.connect
    made = connect(str(path))
    made.execute("create table t as select 1 as a union select 2")
    if path.suffix == ".sqlite":
        made.commit()
    made.close()
    return path


@pytest.mark.parametrize(
    "query", ["select * from t", "  WITH u AS (SELECT a FROM t) SELECT * FROM u"]
)
def test_a_selection_is_read(database, query):
    assert sorted(read_table(database, query=query)["a"].astype(int)) == [1, 2]


@pytest.mark.parametrize("query", ["copy t to '{}'", "vacuum into '{}'", "attach '{}' as x"])
def test_a_query_writes_no_file(database, tmp_path, query):
    target = tmp_path / "written"
    with pytest.raises(DataError, match="expected a SELECT"):
        read_table(database, query=query.format(target))
    assert not target.exists()


def test_a_query_reads_no_other_file(tmp_path):
    secret, path = tmp_path / "secret.csv", tmp_path / "x.duckdb"
    secret.write_text("a\n1\n")
    duckdb.connect(str(path)).close()
    with pytest.raises(DataError, match="the query failed"):
        read_table(path, query=f"select * from read_csv('{secret}')")


ENDLESS = "with recursive c(x) as (select 1 union all select x + 1 from c) select {} from c"


@pytest.mark.parametrize("what", ["count(*) as n", "x", "x, x as y", "max(x) as m"])
def test_a_query_without_an_end_is_stopped(database, what):
    begun = time.monotonic()
    with pytest.raises(DataError, match=r"the query takes longer than 0\.3 s; expected its rows"):
        read_table(database, query=ENDLESS.format(what), max_seconds=0.3)
    assert time.monotonic() - begun < 30
    assert len(read_table(database, query="select * from t")) == 2  # the file is free again


def test_a_query_gives_so_many_rows(database):
    rows = {".sqlite": ENDLESS.format("x"), ".duckdb": "select range as x from range(10000000000)"}
    with pytest.raises(DataError, match=r"gives more than 1 MB of rows; expected fewer.*max_file"):
        read_table(database, query=rows[database.suffix], max_bytes=2**20)
    assert len(read_table(database, query="select * from t")) == 2


def test_a_query_takes_so_much_memory(database, monkeypatch):
    monkeypatch.setattr(databases, "MEMORY_MB", 100)
    large = {
        ".sqlite": "select zeroblob(900000000) as b from t",
        ".duckdb": "select list(range) as b from range(100000000000)",
    }
    with pytest.raises(
        DataError, match=r"the query failed \((string or blob too big|Out of Memory)"
    ):
        read_table(database, query=large[database.suffix])


def test_a_query_lifts_no_limit(tmp_path):
    path = tmp_path / "x.duckdb"
    duckdb.connect(str(path)).close()
    with pytest.raises(DataError, match="the configuration has been locked"):
        read_table(path, query="select 1 as a; set memory_limit = '9GB'; select 2 as a")
