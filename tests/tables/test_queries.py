"""Queries read, and do nothing else, whatever they say."""

import sqlite3

import duckdb
import pytest

from flic.errors import DataError
from flic.tables import read_table


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
