"""Files of every format become frames; what cannot be read is refused in a sentence."""

import os
import sqlite3
import struct
import sys
from contextlib import closing
from pathlib import Path

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flic.errors import DataError
from flic.tables import as_pandas, read_table, stream_table

ROWS = pd.DataFrame({"code": ["007", "008"], "age": ["41", "NA"]})


def write(tmp_path, content, name="a.csv"):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.mark.parametrize("mark", [",", ";", "\t", "|"])
@pytest.mark.parametrize("start", [b"", b"\xef\xbb\xbf"], ids=["plain", "bom"])
def test_text_stays_text_whatever_separates_it(tmp_path, mark, start):
    text = f"code{mark}age\n007{mark}41\n008{mark}NA\n"
    pd.testing.assert_frame_equal(read_table(write(tmp_path, start + text.encode())), ROWS)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ('a;b\n"x;y";1,5\n', [["x;y", "1,5"]]),
        ('a,b\n"two\nlines",1\n', [["two\nlines", "1"]]),
        ("a,b\n\n1,2\n\n", [["1", "2"]]),
        ("a,b\n1,", [["1", ""]]),
        ("a\n1\n\n2\n", [["1"], [""], ["2"]]),
        (" a , b\n1,2\n", [["1", "2"]]),
    ],
    ids=["quoted", "lines in a cell", "blank lines", "no last end", "one column", "spaces"],
)
def test_odd_but_sound_text(tmp_path, text, values):
    frame = read_table(write(tmp_path, text))
    assert list(frame.columns) == ["a", "b"][: len(values[0])]
    assert frame.to_numpy().tolist() == values


def test_a_column_without_name_gets_one(tmp_path):
    assert list(read_table(write(tmp_path, ",a\n0,1\n")).columns) == ["unnamed 1", "a"]


@pytest.mark.parametrize("encoding", ["cp1252", "utf-16", "latin-1"])
def test_other_encodings_can_be_declared(tmp_path, encoding):
    path = write(tmp_path, "name,age\nRené,41\n".encode(encoding))
    assert read_table(path, encoding=encoding)["name"].tolist() == ["René"]


def test_typed_formats_agree(tmp_path):
    frame = pd.DataFrame({"n": [1.5, None], "day": pd.to_datetime(["2024-01-02", None])})
    frame["word"] = ["x", None]
    frame.to_parquet(tmp_path / "a.parquet", index=False)
    frame.to_feather(tmp_path / "a.feather")
    with sqlite3.connect(tmp_path / "a.sqlite") as database:
        frame[["n", "word"]].to_sql("t", database, index=False)
    database.close()
    with duckdb.connect(str(tmp_path / "a.duckdb")) as database:
        database.execute(f"CREATE TABLE t AS SELECT * FROM '{tmp_path}/a.parquet'")
    parquet = read_table(tmp_path / "a.parquet")
    pd.testing.assert_frame_equal(parquet, frame, check_dtype=False)
    pd.testing.assert_frame_equal(read_table(tmp_path / "a.feather"), parquet)
    by_query = read_table(tmp_path / "a.duckdb", query="SELECT * FROM t")
    pd.testing.assert_frame_equal(by_query, parquet, check_dtype=False)
    by_query = read_table(tmp_path / "a.sqlite", query="SELECT word, n FROM t WHERE n > 1")
    assert by_query.to_numpy().tolist() == [["x", 1.5]]


BAD = {
    "empty": (b"", "is empty; expected a heading"),
    "heading only": (b"a,b\n", "has a heading and no rows"),
    "heading without end": (b"a,b", "has a heading and no rows"),
    "long row": (b"a,b\n1,2\n1,2,3\n", "line 3 has 3 fields; expected 2"),
    "short row": (b"a,b\n1,2\n1\n", "line 3 has 1 fields; expected 2"),
    "one name twice": (b"a,b, a\n1,2,3\n", "more than one column of the name 'a'"),
    "other delimiter": (b"a:b\n1:2\n", "has one column, and 2 if ':' separates them"),
    "spaces": (b"a b\n1 2\n", "has one column, and 2 if ' ' separates them"),
    "open quote": (b'a,b\n1,2\n1,"2\n3,4\n', 'a quote (") is opened and never closed'),
    "latin-1": (b"a,b\n1,2\n1,\xe9\n", "has bytes in line 3 that are not utf-8"),
    "late latin-1": (b"a,b\n" + b"1,2\n" * 99 + b"1,\xe9\n", "has bytes in line 101"),
    "utf-16": (
        "a,b\n1,2\n".encode("utf-16"),
        'is UTF-16; expected utf-8. Write `encoding = "utf-16"`',
    ),
}


@pytest.mark.parametrize(("content", "expected"), BAD.values(), ids=BAD)
@pytest.mark.parametrize("read", ["whole", "stream"])
def test_bad_text_is_refused(tmp_path, content, expected, read):
    path = write(tmp_path, content)
    with pytest.raises(DataError) as refusal:
        read_table(path) if read == "whole" else list(stream_table(path, chunk_rows=10))
    assert str(refusal.value).startswith(f"{path}: ")
    assert expected in str(refusal.value)


@pytest.mark.parametrize("name", ["a.parquet", "a.feather"])
@pytest.mark.parametrize("content", [b"", b"no such format at all"])
def test_damaged_files_are_refused(tmp_path, name, content):
    with pytest.raises(DataError, match=rf"{name}: cannot be read \(.+\); expected a sound"):
        read_table(write(tmp_path, content, name))


def test_what_pandas_noted_beside_columns_is_not_read(tmp_path):
    for note in (b"{", b"\xff"):
        noted = pa.Table.from_pandas(ROWS).replace_schema_metadata({b"pandas": note})
        pq.write_table(noted, tmp_path / "a.parquet")
        pd.testing.assert_frame_equal(read_table(tmp_path / "a.parquet"), ROWS)


@pytest.mark.parametrize(
    ("suffix", "old", "new"),
    [
        ("parquet", b"letter", b"l\xfftter"),
        ("feather", b"letter", b"l\xfftter"),
        ("feather", b"abcde", b"abc\xff\xff"),
        ("feather", struct.pack("<3q", 0, 3, 5), struct.pack("<3q", 0, 3, 2**40)),
    ],
    ids=["name in parquet", "name in feather", "no text", "text beyond the file"],
)
def test_tables_that_lie_about_their_text_are_refused(tmp_path, suffix, old, new):
    path = tmp_path / f"a.{suffix}"
    frame = pd.DataFrame({"letter": ["abc", "de"]})
    if suffix == "feather":
        frame.to_feather(path, compression="uncompressed")
    else:
        frame.to_parquet(path)
    assert old in path.read_bytes()
    path.write_bytes(path.read_bytes().replace(old, new))
    with pytest.raises(DataError, match=f"cannot be read .* expected a sound .{suffix} file"):
        read_table(path)


def test_bytes_that_are_no_text_are_refused(tmp_path):
    path = tmp_path / "a.parquet"
    array = pa.StringArray.from_buffers(
        1, pa.py_buffer(np.array([0, 2], np.int32)), pa.py_buffer(b"\xb1\xb1")
    )
    pq.write_table(pa.table({"a": array}), path)
    with pytest.raises(DataError, match="Invalid UTF8"):
        read_table(path)
    database = tmp_path / "a.sqlite"
    with closing(sqlite3.connect(database)) as made:
        made.execute("create table rows (word text)")
        made.commit()
    database.write_bytes(database.read_bytes().replace(b"(word text)", b"(wo\xed\xed text"))
    with pytest.raises(DataError, match="the query failed"):
        read_table(database, query="select * from rows")


def test_lists_in_cells_are_refused(tmp_path):
    pd.DataFrame({"a": [[1, 2], [3]]}).to_parquet(tmp_path / "a.parquet")
    with pytest.raises(DataError, match="has lists or records in 'a'"):
        read_table(tmp_path / "a.parquet")


def test_what_is_no_table_is_refused(tmp_path):
    for path, expected in [
        (tmp_path, "is a folder; expected a file"),
        (tmp_path / "none.csv", "no such file"),
        (tmp_path / f"{'long' * 100}.csv", "no such file"),
        (tmp_path / "a\0b.csv", "no such file"),
        (write(tmp_path, "x", "a.xlsx"), r"ends in '.xlsx'; expected one of .csv"),
    ]:
        with pytest.raises(DataError, match=expected):
            read_table(path)


@pytest.mark.parametrize("name", ["a.csv", "a.parquet", "a.sqlite"])
@pytest.mark.parametrize("what", ["pipe", "device"])
def test_what_has_no_end_is_refused(tmp_path, name, what):
    path = tmp_path / name
    if what == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    for read in (read_table, lambda path: next(stream_table(path, chunk_rows=1))):
        with pytest.raises(DataError, match="is a pipe or a device, which may have no end"):
            read(path)


NO_TEXT = ["klingon", "base64", "hex", "rot13", "zip", "undefined", "a\0b", "\udcff", "x" * 100_000]


@pytest.mark.parametrize("encoding", NO_TEXT, ids=range(len(NO_TEXT)))
def test_an_encoding_of_no_text_is_refused(tmp_path, encoding):
    with pytest.raises(DataError, match="which is not a text encoding; expected a name") as told:
        read_table(write(tmp_path, "a,b\n1,2\n"), encoding=encoding)
    assert len(str(told.value)) < 400


def test_a_large_file_is_refused_before_it_is_read(tmp_path):
    path = write(tmp_path, "a,b\n")
    with path.open("r+b") as file:
        file.truncate(2 * 2**30)
    with pytest.raises(DataError, match=r"has 2,048 MB; expected at most 1,024.*max_file_mb"):
        read_table(path)


@pytest.mark.parametrize("name", ["a.sqlite", "a.duckdb"])
@pytest.mark.parametrize(
    ("query", "expected"),
    [
        (None, "is a database; expected a `query`"),
        ("SELECT * FROM nowhere", r"the query failed \(.*nowhere"),
        ("SELECT n AS a, n AS a FROM t", "more than one column of the name 'a'"),
        ("SELECT * FROM t WHERE n > 9", "gives no rows"),
        ("DROP TABLE t", "the query failed"),
    ],
)
def test_bad_queries_are_refused(tmp_path, name, query, expected):
    connect = sqlite3.connect if name == "a.sqlite" else duckdb.connect
    database = connect(str(tmp_path / name))
    database.execute("CREATE TABLE t (n INTEGER)")
    database.execute("INSERT INTO t VALUES (1)")
    database.commit()
    database.close()
    with pytest.raises(DataError, match=expected):
        read_table(tmp_path / name, query=query)
    assert len(read_table(tmp_path / name, query="SELECT * FROM t")) == 1


def test_a_query_on_a_text_file_and_a_missing_duckdb_are_said(tmp_path, monkeypatch):
    with pytest.raises(DataError, match="got a query; expected one only for"):
        read_table(write(tmp_path, "a\n1\n"), query="SELECT 1")
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(DataError, match=r"pip install 'flic\[duckdb\]'"):
        read_table(write(tmp_path, "", "a.duckdb"), query="SELECT 1")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a.csv", "a.parquet", "a.feather"])
@pytest.mark.parametrize("chunk_rows", [1, 300, 70_000, 200_000])
def test_a_stream_has_all_rows_in_order(tmp_path, name, chunk_rows):
    rows = 3_000 if chunk_rows == 1 else 150_000
    frame = pd.DataFrame({"n": range(rows), "word": "x"})
    writer = {"a.csv": frame.to_csv, "a.parquet": frame.to_parquet, "a.feather": frame.to_feather}
    writer[name](tmp_path / name, **({} if name == "a.feather" else {"index": False}))
    chunks = list(stream_table(tmp_path / name, chunk_rows=chunk_rows))
    assert [len(chunk) for chunk in chunks[:-1]] == [chunk_rows] * (len(chunks) - 1)
    assert pd.concat(chunks)["n"].astype(int).tolist() == list(range(rows))


def test_polars_frames_are_taken(tmp_path):
    frame = pl.DataFrame({"n": [1, None], "word": ["x", None]})
    assert as_pandas(frame)["word"].isna().tolist() == [False, True]
    with pytest.raises(DataError, match="got a dict; expected a pandas or polars"):
        as_pandas({})
    with pytest.raises(DataError, match="more than one column of the name 'a'"):
        as_pandas(pd.DataFrame([[1, 2]], columns=["a", "a"]))


def test_empty_lines_before_the_heading_are_skipped(tmp_path):
    (tmp_path / "a.csv").write_text("\n \nage,ill\n1,0\n2,1\n")
    frame = read_table(tmp_path / "a.csv")
    assert frame.to_dict("list") == {"age": ["1", "2"], "ill": ["0", "1"]}


def test_a_very_long_cell_is_read(tmp_path):
    (tmp_path / "a.csv").write_text("note,ill\n" + "x" * 200_000 + ",0\nb,1\n")
    assert len(read_table(tmp_path / "a.csv")["note"][0]) == 200_000


@pytest.mark.parametrize("long", [2, 1_000_000], ids=["in the first rows", "far below"])
def test_no_row_is_lost_after_a_row_that_is_too_long(tmp_path, long):
    text = "a,b\n" + "1,x\n" * long + "2," + "y" * 5_000_000 + "\n" + "3,x\n" * 10
    for read in (read_table, lambda path: list(stream_table(path, chunk_rows=10**6))):
        with pytest.raises(DataError, match="has a row of more than 4 MB; expected shorter ones"):
            read(write(tmp_path, text))


def test_rows_are_counted_once_they_are_unpacked(tmp_path):
    path = tmp_path / "small.parquet"
    pd.DataFrame({"a": np.zeros(2_000_000)}).to_parquet(path)
    assert path.stat().st_size < 200_000
    with pytest.raises(DataError, match=r"takes more than 0\.95 MB, or 8 times that once it is"):
        read_table(path, max_bytes=1_000_000)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="a file that has no size")
def test_bytes_are_counted_while_they_are_read(tmp_path):
    path = tmp_path / "a.csv"
    path.symlink_to("/proc/self/status")
    assert path.stat().st_size == 0
    with pytest.raises(DataError, match=r"a\.csv: takes more than 9.5e-06 MB"):
        read_table(path, max_bytes=10)
