"""SQLite that is not as it should be: errors that say why, or rejects of single rows."""

import contextlib
import os
import sqlite3
import zipfile
from pathlib import Path
from typing import Any

import fsspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import snapshard as ss
from snapshard.schemas.errors import RecipeError, SnapshardError, SourceChangedError, StorageError
from snapshard.transforms.sources.sql.rows import failing
from snapshard.transforms.storage.opened_source import OpenedSource

from .conftest import Got, Reading


def make(path: Path, rows: list[tuple[Any, ...]], *, columns: str = "id, v") -> Path:
    path.unlink(missing_ok=True)
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.execute(f"CREATE TABLE t ({columns})")
        marks = ", ".join("?" * len(columns.split(",")))
        database.executemany(f"INSERT INTO t VALUES ({marks})", rows)
        database.commit()
    return path


def read(reading: Reading, source: Any) -> Got:
    return reading.read(source.extract(str(reading.folder / "work/extracted"), base="."))


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return make(tmp_path / "t.db", [(i, i * 2) for i in range(20)])


def test_a_database_that_another_program_writes_to() -> None:
    manager = pytest.importorskip("adbc_driver_manager")
    locked = manager.ProgrammingError(
        "INVALID_ARGUMENT: [SQLite] Failed to prepare query: database is locked",
        status_code=manager.AdbcStatusCode.INVALID_ARGUMENT,
    )
    with (
        pytest.raises(StorageError, match="another program holds a transaction open") as told,
        failing("the query cannot be run on t.db"),
    ):
        raise locked
    assert "Fix query" not in str(told.value)


@pytest.mark.parametrize(
    ("query", "key", "words"),
    [
        ("SELEC id FROM t", "id", "syntax error"),
        ("SELECT id FROM nope", "id", "no such table: nope"),
        ("SELECT nope FROM t", "id", "no such column: nope"),
        ("SELECT id FROM t", "nope", "key names 'nope', which is not a column"),
        (
            "SELECT id || 'x' AS k FROM t",
            "k",
            "the key 'k' must be integers, found 20 of type text",
        ),
        ("SELECT id / 2.0 AS k FROM t", "k", "the key 'k' must be integers, found 20 of type real"),
        ("SELECT id / 2 AS k FROM t", "k", "the key 'k' is 0 in several records"),
        ("SELECT NULL AS k FROM t", "k", "the key 'k' must be integers, found no values"),
        ("SELECT nullif(id, 3) AS k FROM t", "k", "1 of 20 rows have no integer in the key 'k'"),
        ("SELECT id FROM t WHERE 0", "id", "returned no rows"),
        ("SELECT id FROM t WHERE 0 ORDER BY id", None, "returned no rows"),
        ("SELECT id FROM t; DELETE FROM t", "id", "syntax error"),
        ("DELETE FROM t", "id", "syntax error"),
        ("DROP TABLE t", "id", "syntax error"),
        ("SELECT id, v AS '' FROM t", "id", "name that is empty"),
        ("SELECT id, v AS 'snapshard.position' FROM t", "id", "Rename it"),
        ("SELECT id FROM t WHERE nofunction(id)", "id", "no such function: nofunction"),
        ("SELECT id, json_extract('{', '$') AS j FROM t", "id", "malformed JSON"),
        ("PRAGMA table_info(t) -- order by", None, "syntax error"),
    ],
)
def test_errors_are_in_the_words_of_the_database(
    reading: Reading, database: Path, query: str, key: str | None, words: str
) -> None:
    with pytest.raises(SnapshardError) as caught:
        read(reading, ss.Sql(str(database), query, key=key))
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("uri", "query", "key", "words"),
    [
        ("", "SELECT 1", "k", "names no database"),
        ("sqlite://", "SELECT 1", "k", "names no database"),
        ("mysql://host/db", "SELECT 1", "k", "uri= has the scheme mysql://"),
        ("a.db", "", "k", "query= is empty"),
        ("a.db", " ; ", "k", "query= is empty"),
        ("a.db", "SELECT 1", None, "in no defined order"),
        ("sqlite:///no.db", "SELECT 1", "k", "there is no SQLite database"),
        ("$SNAPSHARD_NOT_SET", "SELECT 1", "k", "refers to $SNAPSHARD_NOT_SET, which is not set"),
    ],
)
def test_arguments_are_checked(
    reading: Reading, uri: str, query: str, key: str | None, words: str
) -> None:
    with pytest.raises(RecipeError) as caught:
        read(reading, ss.Sql(uri, query, key=key))
    assert words in str(caught.value)


def test_a_file_that_is_no_database_or_was_cut(reading: Reading, database: Path) -> None:
    content = database.read_bytes()
    cut = reading.folder / "cut.db"
    for stop in [1, 15, 16, 50, 99, 100, *range(200, len(content), 700)]:
        cut.write_bytes(content[:stop])
        with pytest.raises(SnapshardError, match="Sql: "):
            read(reading, ss.Sql(str(cut), "SELECT * FROM t", key="id"))
    cut.write_bytes(b"")
    with pytest.raises(RecipeError, match="no such table: t"):
        read(reading, ss.Sql(str(cut), "SELECT * FROM t", key="id"))


def small(folder: Path) -> Path:
    """A database of few bytes, of three pages, whose rows fill one."""
    path = folder / "small.db"
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA page_size = 512")
        database.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, v)")
        database.executemany("INSERT INTO t VALUES (?, ?)", [(i, "x" * 40) for i in range(15)])
        database.commit()
    return path


@pytest.mark.slow
def test_a_database_cut_at_every_byte_is_refused_by_its_name(reading: Reading) -> None:
    content = small(reading.folder).read_bytes()
    assert len(content) < 3000
    cut = reading.folder / "cut.db"
    for stop in range(len(content)):
        cut.write_bytes(content[:stop])
        with pytest.raises(SnapshardError, match=r"Sql: .*cut\.db") as caught:
            read(reading, ss.Sql(str(cut), "SELECT * FROM t", key="id"))
        assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    ("uri", "words"),
    [
        ("zip://no.db::{}/a.zip", "does not exist"),
        ("zip://::{}/a.zip", "is a folder or an archive, expected one SQLite database"),
        ("zip://text::{}/a.zip", "run on zip://text::{}/a.zip: "),
        ("zip://a.db::{}/text.zip", "not a zip archive"),
        ("zip://a.db::{}/no.zip", "does not exist"),
        ("memory://sql_malformed/no.db", "does not exist"),
        ("nothing://a.db", "uri= has the scheme nothing://"),
        ("sqlite:///zip://a.db", "there is no SQLite database"),
    ],
)
def test_databases_elsewhere_that_are_none(reading: Reading, uri: str, words: str) -> None:
    with zipfile.ZipFile(reading.folder / "a.zip", "w") as archive:
        archive.writestr("text", "no database, but some text that is long enough" * 9)
        archive.writestr("b/text", "")
    (reading.folder / "text.zip").write_text("no archive")
    with pytest.raises(SnapshardError) as caught:
        read(reading, ss.Sql(uri.format(reading.folder), "SELECT id FROM t", key="id"))
    assert words.format(reading.folder) in str(caught.value)


MIXED: list[tuple[str, list[Any], list[Any], list[int]]] = [
    ("a text among integers", [1, 2, "n/a", 4], [1, 2, 4], [2]),
    ("a blob among integers", [1, 2, b"\x00\xff", 4], [1, 2, 4], [2]),
    ("a text among floats", [0.5, "x'y", 1.5], [0.5, 1.5], [1]),
    ("integers among floats", [0.5, 1, 2], [0.5, 1.0, 2.0], []),
    ("an integer that no float holds", [0.5, 2**53 + 1, 2], [0.5, 2.0], [1]),
    ("numbers among texts", ["a", 7, "b", "c", 0.1], [b"a", b"7", b"b", b"c", b"0.1"], []),
    ("a blob among texts", ["a", b"\xff\x00", "b"], [b"a", b"\xff\x00", b"b"], []),
    ("missing integers", [1, None, 3], [1, None, 3], []),
    ("nothing at all", [None, None], [None, None], []),
    ("the largest integers", [2**63 - 1, -(2**63)], [2**63 - 1, -(2**63)], []),
    ("a float with all its digits among texts", ["a", "b", 1 / 3], [b"a", b"b", None], []),
]


@pytest.mark.parametrize(
    ("cells", "kept", "rejected"), [case[1:] for case in MIXED], ids=[case[0] for case in MIXED]
)
@pytest.mark.parametrize("key", ["id", None])
def test_cells_of_several_types(
    reading: Reading, cells: list[Any], kept: list[Any], rejected: list[int], key: str | None
) -> None:
    path = make(reading.folder / "t.db", list(enumerate(cells)))
    got = read(reading, ss.Sql(str(path), "SELECT id, v FROM t ORDER BY id", key=key))
    found = got.column("v")
    if got.features["v"] == ss.Scalar("float64"):
        import struct

        found = [struct.unpack("<d", value)[0] for value in found]
    if kept[-1] is None and len(kept) == 3 and cells[-1] == 1 / 3:
        assert float(found[-1]) == 1 / 3
    else:
        assert found == kept
    assert list(got.rejected) == [f"query#{row}" for row in rejected]
    for row, message in zip(rejected, got.rejected.values(), strict=True):
        assert message.startswith(f"query {'key' if key else 'row'} {row}: column 'v' is ")


def test_a_type_may_be_declared(reading: Reading) -> None:
    path = make(reading.folder / "t.db", [(0, 1), (1, "n/a"), (2, 3)])
    source = ss.Sql(str(path), "SELECT * FROM t", key="id", types={"v": "string"})
    assert read(reading, source).column("v") == [b"1", b"n/a", b"3"]


def test_types_are_told_from_all_rows(reading: Reading) -> None:
    cells = [None] * 3000 + ["text"]
    path = make(reading.folder / "t.db", list(enumerate(cells)))
    got = read(reading, ss.Sql(str(path), "SELECT * FROM t", key="id"))
    assert got.column("v")[-1] == b"text"
    assert len(got.rows) == 3001


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25)
@given(
    cells=st.lists(
        st.one_of(
            st.none(),
            st.integers(-(2**63), 2**63 - 1),
            st.floats(allow_nan=False),
            st.text(st.characters(codec="utf-8", exclude_characters="\0")),
            st.binary(),
        ),
        min_size=1,
    )
)
def test_each_row_is_kept_or_rejected(reading: Reading, cells: list[Any]) -> None:
    path = make(reading.folder / "t.db", list(enumerate(cells)))
    got = read(reading, ss.Sql(str(path), "SELECT * FROM t", key="id"))
    rows = {int(name.partition("#")[2]) for name in (*got.rows, *got.rejected)}
    assert rows == set(range(len(cells)))
    assert len(got.rows) + len(got.rejects) == len(cells)


def _changing(monkeypatch: pytest.MonkeyPatch, *, at: str, change: Any) -> None:
    """Has something change when a file is about to be copied, and once more behind its start."""
    chunks = OpenedSource.chunks

    def changed(self: OpenedSource, path: str, *, chunk_bytes: int) -> Any:
        for chunk in chunks(self, path, chunk_bytes=4096):
            yield chunk
            if path.endswith(at):
                change()

    monkeypatch.setattr(OpenedSource, "chunks", changed)


@pytest.mark.parametrize(
    ("at", "changed"),
    [(".db", "a.db"), (".db-wal", "a.db"), (".db-wal", "a.db-wal"), (".db", "a.db-journal")],
)
def test_a_database_of_a_store_that_changes_while_it_is_copied_is_refused(
    database: Path, reading: Reading, monkeypatch: pytest.MonkeyPatch, at: str, changed: str
) -> None:
    store = fsspec.filesystem("memory")
    content = database.read_bytes()
    store.pipe({"/sql_changing/a.db": content, "/sql_changing/a.db-wal": b""})
    source = ss.Sql("memory://sql_changing/a.db", "SELECT id, v FROM t", key="id")
    assert len(read(reading, source).rows) == 20
    store.pipe("/sql_changing/a.db-wal", b"wal")
    _changing(
        monkeypatch, at=at, change=lambda: store.pipe(f"/sql_changing/{changed}", content + b"x")
    )
    with pytest.raises(SourceChangedError, match=rf"{changed}( of .*)? changed while the build"):
        read(reading, source)


def test_a_pipe_is_told_for_a_pipe(reading: Reading, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "p.db")
    with pytest.raises(RecipeError, match=r"p\.db is a named pipe, expected a file"):
        read(reading, ss.Sql(str(tmp_path / "p.db"), "SELECT id FROM t", key="id"))
