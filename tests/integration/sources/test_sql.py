"""Queries of SQLite and of a real PostgreSQL: built, verified, read back equal to the tables."""

import contextlib
import decimal
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import adbc_driver_postgresql.dbapi
import fsspec
import numpy as np
import pytest

import snapshard as ss
from snapshard.pipelines.inspect.forecast import forecast
from snapshard.schemas.errors import RecipeError
from snapshard.schemas.progress import Silent

from .built import build

NUM = 60
SECRET = "geheim7"


@pytest.fixture
def sqlite(tmp_path: Path) -> Path:
    """A database of one table, whose rows were not inserted in the order of their keys."""
    path = tmp_path / "made.db"
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, n, x REAL, name, raw BLOB, kind)")
        rows = [row_of(i) for i in range(NUM)]
        database.executemany("INSERT INTO t VALUES (?, ?, ?, ?, ?, ?)", reversed(rows))
        database.commit()
    return path


def row_of(i: int) -> tuple[Any, ...]:
    return (i * 7 - 20, i, None if i % 5 == 1 else i / 7, f"é{i}", bytes([i, 255]), "ab"[i % 2])


def test_sqlite_comes_back_equal(lab: Any, tmp_path: Path, sqlite: Path) -> None:
    source = ss.Sql(f"sqlite:///{sqlite}", "SELECT * FROM t", key="id", label="kind")
    snapshot = build(tmp_path, source)
    assert snapshot.manifest.label == "kind"
    rows = {
        record_id: tuple(values[name] for name in ("id", "n", "x", "name", "raw", "kind"))
        for record_id, _, values in lab.read_back(snapshot).rows()
    }
    expected = {}
    for key, n, x, name, raw, kind in map(row_of, range(NUM)):
        expected[f"query#{key}"] = (key, n, x, name.encode(), raw, "ab".index(kind))
    # The reader gives a missing float as NaN.
    found = {i: (*r[:2], None if np.isnan(r[2]) else r[2], *r[3:]) for i, r in rows.items()}
    assert found == expected
    assert build(tmp_path, source).cached


@pytest.mark.slow  # a build for each place
@pytest.mark.parametrize(("place", "workers"), [("memory", 1), ("memory", 2), ("zip", 1)])
def test_sqlite_elsewhere_comes_back_equal(
    lab: Any, tmp_path: Path, sqlite: Path, place: str, workers: int
) -> None:
    """Workers read what this process has extracted, so a memory of its own is no obstacle."""
    if place == "memory":
        uri = "memory://test_sql/made.db"
        fsspec.filesystem("memory").pipe("/test_sql/made.db", sqlite.read_bytes())
    else:
        uri = f"zip://in/made.db::{tmp_path}/a.zip"
        with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
            archive.write(sqlite, "in/made.db")
    source = ss.Sql(uri, "SELECT id, n, name FROM t", key="id")
    snapshot = build(tmp_path, source, workers=workers)
    assert lab.rows_back(snapshot) == {
        f"query#{key}": {"id": key, "n": n, "name": name.encode()}
        for key, n, _, name, *_ in map(row_of, range(NUM))
    }
    assert not list((tmp_path / "out/made/.work").rglob("*.db"))
    assert build(tmp_path, source).cached


def test_what_sqlite_has_not_moved_into_the_database_is_read(tmp_path: Path, sqlite: Path) -> None:
    """A database in use keeps its last rows in a file beside it."""
    with contextlib.closing(sqlite3.connect(sqlite)) as database:
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("INSERT INTO t (id, n) VALUES (7777, 1)")
        database.commit()
        with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
            for name in ("made.db", "made.db-wal"):
                archive.write(tmp_path / name, name)
    query = "SELECT id FROM t"
    source = ss.Sql(f"zip://made.db::{tmp_path}/a.zip", query, key="id")
    found = forecast(ss.Recipe(name="made", source=source), progress=Silent())
    assert found.num_examples == NUM + 1


@pytest.mark.slow
def test_rows_that_come_later_move_no_others(lab: Any, tmp_path: Path, sqlite: Path) -> None:
    source = ss.Sql(str(sqlite), "SELECT id, n FROM t", key="id")
    before = lab.read_back(build(tmp_path, source))
    with contextlib.closing(sqlite3.connect(sqlite)) as database:
        database.execute("INSERT INTO t (id, n) VALUES (-1, 5), (100000, 6)")
        database.commit()
    after = lab.read_back(build(tmp_path, source))
    splits = dict(zip(after.ids, after.splits, strict=True))
    assert len(splits) == NUM + 2
    assert all(splits[i] == split for i, split in zip(before.ids, before.splits, strict=True))


def test_without_a_key_the_order_of_the_query_counts(
    lab: Any, tmp_path: Path, sqlite: Path
) -> None:
    query = "SELECT n AS m FROM t ORDER BY id DESC"
    held = lab.read_back(build(tmp_path, ss.Sql(str(sqlite), query)))
    found = dict(zip(held.ids, held.values["m"].tolist(), strict=True))
    assert found == {f"query#{row}": NUM - 1 - row for row in range(NUM)}


def test_cells_of_another_type_are_rejects(lab: Any, tmp_path: Path, sqlite: Path) -> None:
    with contextlib.closing(sqlite3.connect(sqlite)) as database:
        database.execute("UPDATE t SET n = 'n/a' WHERE id = 1")
        database.commit()
    source = ss.Sql(str(sqlite), "SELECT id, n FROM t", key="id")
    with pytest.raises(ss.SnapshardError, match=r"query key 1: column 'n' is 'n/a', expected an"):
        build(tmp_path, source)
    snapshot = build(tmp_path, source, max_rejects=1)
    (reject,) = lab.rejects(snapshot)
    assert (reject["id"], reject["position"]) == ("query#1", 1)
    assert len(lab.read_back(snapshot).ids) == NUM - 1


@pytest.mark.slow  # worker processes
def test_worker_processes_and_recipe_files(lab: Any, tmp_path: Path, sqlite: Path) -> None:
    recipe = tmp_path / "recipe.py"
    recipe.write_text(
        "import snapshard as ss\n"
        "recipe = ss.Recipe(name='made', source=ss.Sql('sqlite:///made.db', "
        "'SELECT id, n FROM t', key='id'))\n"
    )
    several = lab.build(recipe, tmp_path / "two", workers=2)
    assert lab.hashes(several) == lab.hashes(lab.build(recipe, tmp_path / "one"))


@pytest.mark.parametrize("missing", ["adbc_driver_manager", "adbc_driver_sqlite.dbapi"])
def test_a_missing_driver_is_told(
    tmp_path: Path, sqlite: Path, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    package = missing.partition(".")[0].replace("_", "-")
    with pytest.raises(
        RecipeError, match=rf"needs the package {package}, .*pip install .snapshard\[sql\]"
    ):
        build(tmp_path, ss.Sql(f"sqlite:///{sqlite}", "SELECT * FROM t", key="id"))


def test_a_dry_run_leaves_nothing_behind(tmp_path: Path, sqlite: Path) -> None:
    recipe = ss.Recipe(name="made", source=ss.Sql(str(sqlite), "SELECT * FROM t", key="id"))
    found = forecast(recipe, progress=Silent())
    assert found.num_examples == NUM
    assert set(os.listdir(tmp_path)) == {"made.db"}


def test_a_recipe_file_that_holds_the_password_is_refused(
    lab: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = tmp_path / "recipe.py"
    text = (
        "import snapshard as ss\n"
        "recipe = ss.Recipe(name='made', source=ss.Sql('postgresql://ann:{}@localhost:1/db', "
        "'SELECT 1 AS k', key='k'))\n"
    )
    recipe.write_text(text.format(SECRET))
    with pytest.raises(ss.SnapshardError, match=r"recipe\.py contains the password") as caught:
        lab.build(recipe, tmp_path / "out")
    assert SECRET not in str(caught.value)
    monkeypatch.setenv("DB_PASSWORD", SECRET)
    recipe.write_text(text.format("$DB_PASSWORD"))
    with pytest.raises(ss.SnapshardError, match="cannot be reached") as caught:
        lab.build(recipe, tmp_path / "out")
    assert SECRET not in str(caught.value)


@pytest.fixture(scope="module")
def postgres() -> Iterator[str]:
    """The address of a PostgreSQL server of this test's own, with a password."""
    places = [None, *map(str, sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True))]
    found = [shutil.which("initdb", path=place) for place in places]
    initdb = next((path for path in found if path), None)
    if initdb is None:
        pytest.skip("needs a PostgreSQL server: apt-get install postgresql")
    # Its server refuses to run as root.
    user = ["runuser", "-u", "postgres", "--"] if os.getuid() == 0 else []
    bin_folder = Path(os.path.realpath(initdb)).parent
    with tempfile.TemporaryDirectory(prefix="pg-", ignore_cleanup_errors=True) as folder:
        if user:
            shutil.chown(folder, "postgres")
        password = Path(folder, "password")
        password.write_text(SECRET)
        password.chmod(0o644)
        data, log = f"{folder}/data", f"{folder}/log"

        def run(*arguments: str) -> None:
            subprocess.run([*user, *arguments], check=True, capture_output=True, cwd=folder)

        run(
            *(initdb, "-D", data, "-U", "ann", "-A", "scram-sha-256", f"--pwfile={password}"),
            *("-E", "UTF8", "--no-sync", "--locale=C"),
        )
        options = f"-c listen_addresses='' -k {folder} -c fsync=off -c timezone=UTC"
        run(str(bin_folder / "pg_ctl"), "-D", data, "-w", "-l", log, "-o", options, "start")
        try:
            yield f"postgresql://ann:{SECRET}@/postgres?host={folder}"
        finally:
            run(str(bin_folder / "pg_ctl"), "-D", data, "-m", "immediate", "stop")


def execute(uri: str, *statements: str) -> None:
    with (
        contextlib.closing(adbc_driver_postgresql.dbapi.connect(uri, autocommit=True)) as database,
        contextlib.closing(database.cursor()) as cursor,
    ):
        for statement in statements:
            cursor.execute(statement)


@pytest.fixture(scope="module")
def table(postgres: str) -> str:
    execute(
        postgres,
        "CREATE TYPE mood AS ENUM ('sad', 'happy')",
        "CREATE TABLE t (id bigint PRIMARY KEY, small smallint, x double precision, y real, "
        "yes boolean, name text, raw bytea, at timestamptz, day date, price numeric(10, 2), "
        "ids integer[], feeling mood, maybe integer)",
        "INSERT INTO t SELECT i * 1000, i % 7, i / 7.0, i / 3.0, i % 2 = 0, 'é' || i, "
        "decode(lpad(to_hex(i), 2, '0') || 'ff', 'hex'), "
        "timestamptz '2020-01-01 00:00Z' + i * interval '1 hour', date '2020-01-01' + i, "
        "i / 4.0, ARRAY[i, i + 1], (ARRAY['sad', 'happy'])[1 + i % 2]::mood, "
        "CASE WHEN i % 4 <> 1 THEN i END FROM generate_series(0, 59) AS i",
    )
    return postgres


@pytest.mark.engine
@pytest.mark.smoke
def test_postgres_comes_back_equal(lab: Any, tmp_path: Path, table: str) -> None:
    source = ss.Sql(table, "SELECT * FROM t", key="id", label="feeling")
    snapshot = build(tmp_path, source)
    start = 1577836800
    expected = {
        f"query#{i * 1000}": {
            "id": i * 1000,
            "small": i % 7,
            "x": float(decimal.Decimal(i) / 7),
            "y": np.float32(i / 3),
            "yes": i % 2 == 0,
            "name": f"é{i}".encode(),
            "raw": bytes([i, 255]),
            "at": (start + i * 3600) * 1_000_000,
            "day": start + i * 86400,
            "price": f"{i / 4:.2f}".encode(),
            "ids": (i, i + 1),
            "feeling": ("happy", "sad").index(("sad", "happy")[i % 2]),
            "maybe": 0 if i % 4 == 1 else i,
            "maybe_present": i % 4 != 1,
        }
        for i in range(NUM)
    }
    found = {}
    for record_id, _, values in lab.read_back(snapshot).rows():
        found[record_id] = {**values, "ids": tuple(values["ids"])}
    assert found.keys() == expected.keys()
    for record_id, values in expected.items():
        assert found[record_id] == values, record_id
    assert build(tmp_path, source).cached


@pytest.mark.engine
def test_postgres_ranges_are_read_by_several_connections(
    lab: Any, tmp_path: Path, postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("snapshard.transforms.sources.extracted.RANGE_ROWS", 100)
    query = "SELECT i AS id, i * 2 AS n FROM generate_series(-500, 2499) AS i"
    source = ss.Sql(postgres, query, key="id")
    extracted: Any = source.extract(str(tmp_path / "extracted"), base=".")
    assert len(extracted.files) == 24
    held = lab.read_back(build(tmp_path, source))
    found = dict(zip(held.ids, held.values["n"].tolist(), strict=True))
    assert found == {f"query#{i}": 2 * i for i in range(-500, 2500)}


@pytest.mark.engine
def test_postgres_without_a_key(lab: Any, tmp_path: Path, table: str) -> None:
    held = lab.read_back(build(tmp_path, ss.Sql(table, "SELECT id FROM t ORDER BY id DESC")))
    found = dict(zip(held.ids, held.values["id"].tolist(), strict=True))
    assert found == {f"query#{row}": (NUM - 1 - row) * 1000 for row in range(NUM)}


@pytest.mark.engine
def test_no_password_comes_into_workspace_snapshot_or_message(
    tmp_path: Path, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DB_URI", table)
    build(tmp_path, ss.Sql("$DB_URI", "SELECT id FROM t", key="id"))
    contents = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert len(contents) > 10
    assert not any(SECRET.encode() in content for content in contents)
    source = ss.Sql(table, "SELECT id FROM t", key="id")
    assert SECRET not in repr(source)
    assert SECRET not in str(ss.Recipe(name="made", source=source))


@pytest.mark.engine
@pytest.mark.parametrize(
    ("query", "key", "words"),
    [
        ("SELEC 1", "id", "syntax error at or near"),
        ("SELECT * FROM nope", "id", 'relation "nope" does not exist'),
        ("SELECT nope FROM t", "id", 'column "nope" does not exist'),
        ("SELECT id FROM t", "no", "key names 'no', which is not a column"),
        ("SELECT name FROM t", "name", "the key 'name' is string, expected integers"),
        ("SELECT price FROM t", "price", "expected integers"),
        ("SELECT maybe FROM t", "maybe", "15 of 60 rows have no integer in the key"),
        ("SELECT id / 2000 AS k FROM t", "k", "the key 'k' is 0 in several records"),
        ("SELECT id FROM t WHERE false", "id", "the query returned no rows"),
        ("SELECT id, id FROM t", "id", "two columns are named 'id'"),
        ("SELECT id, 1 / (id - 5000) AS z FROM t", "id", "division by zero"),
        ("SELECT id, name::int FROM t", "id", "invalid input syntax for type integer"),
        ("DELETE FROM t RETURNING id", "id", "syntax error"),
        ("SELECT id FROM t; DROP TABLE t", "id", "syntax error"),
        ("SELECT id, pg_sleep(0) FROM t ORDER BY id", None, None),
    ],
)
def test_postgres_says_what_is_wrong(
    tmp_path: Path, table: str, query: str, key: str | None, words: str | None
) -> None:
    source = ss.Sql(table, query, key=key)
    if words is None:
        source.extract(str(tmp_path / "extracted"), base=".")
        return
    with pytest.raises(ss.SnapshardError) as caught:
        source.extract(str(tmp_path / "extracted"), base=".")
    assert words in str(caught.value)
    assert SECRET not in str(caught.value)


@pytest.mark.engine
def test_postgres_that_cannot_be_reached(tmp_path: Path, postgres: str) -> None:
    for uri, words in (
        (postgres.replace(SECRET, "falsch9"), "password authentication failed"),
        (postgres.replace("/postgres?", "/nope?"), 'database "nope" does not exist'),
        (postgres.replace("host=", "host=/nowhere"), "No such file"),
    ):
        with pytest.raises(ss.SnapshardError, match="cannot be reached") as caught:
            ss.Sql(uri, "SELECT 1", key="id").extract(str(tmp_path / "extracted"), base=".")
        assert words in str(caught.value)
        assert not any(secret in str(caught.value) for secret in (SECRET, "falsch9"))
