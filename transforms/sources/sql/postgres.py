"""Reads PostgreSQL through ADBC, which uses binary COPY: streamed and typed.

Several connections read key ranges concurrently, from the same snapshot of the database.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from ....schemas.errors import DataError, RecipeError
from ..extracted import (
    extract_batches,
    keyed,
    numbered_rows,
    plain_batch,
    plain_schema,
    range_step,
)
from .rows import (
    UNIQUE,
    FilesAndColumns,
    check_key,
    check_num_keys,
    failing,
    import_driver,
    quoted,
)

NUM_CONNECTIONS = 4
"""Maximum number of connections that read key ranges."""

_INTEGERS = (pa.int16(), pa.int32(), pa.int64())
_RUN = "the query cannot be run"


def extract_postgres(uri: str, query: str, *, key: str | None, folder: str) -> FilesAndColumns:
    """Runs a query, and copies its rows to files.

    Args:
        uri: ``postgresql://…``.
        query: A single SELECT.
        key: The key column; None for rows in the order of the query.
        folder: The folder of the files.

    Raises:
        RecipeError: if the query fails.
        DataError: if there are no rows, or keys are missing or duplicated.
        StorageError: if the database cannot be reached or read.
    """
    reading = _Reading(uri)
    with reading.connection() as database:
        (snapshot,) = reading.fetch(database, "SELECT pg_export_snapshot()")
        schema = reading.schema(database, f"SELECT * FROM ({query}\n) AS q LIMIT 0")
        columns = tuple(schema.names)
        if key is None:
            rows = numbered_rows(reading.rows(database, query, schema))
            files = extract_batches(rows, schema, folder)
        else:
            check_key(key, columns)
            if schema.field(key).type not in _INTEGERS:
                raise RecipeError(
                    f"Sql: the key {key!r} is {schema.field(key).type}, expected integers. Name "
                    "another column, or cast it in the query."
                )
            column = quoted(key)
            num_rows, num_keys, low, high = reading.fetch(
                database,
                f"SELECT COUNT(*), COUNT({column}), MIN({column})::bigint, "
                f"MAX({column})::bigint FROM ({query}\n) AS q",
            )
            check_num_keys(key, num_rows=num_rows, num_keys=num_keys)
            ranges = () if not num_rows else _ranges(low, high, range_step(num_rows, low, high))
            files = _extract_ranges(
                reading, query, schema, key=key, ranges=ranges, snapshot=snapshot, folder=folder
            )
    if not files:
        raise DataError("Sql: the query returned no rows.")
    return files, columns


class _Reading:
    """Connections to one database."""

    def __init__(self, uri: str) -> None:
        self._driver = import_driver("postgresql")
        self._uri = uri

    @contextlib.contextmanager
    def connection(self, snapshot: str = "") -> Iterator[Any]:
        """A connection in a transaction with a consistent view: of the snapshot, or now."""
        with self._failing("the database cannot be reached"):
            database = self._driver.connect(self._uri)
        with contextlib.closing(database):
            self._execute(database, "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            if snapshot:
                self._execute(database, f"SET TRANSACTION SNAPSHOT '{snapshot}'")
            yield database

    def fetch(self, database: Any, text: str) -> tuple[Any, ...]:
        """The first row of a query."""
        with self._failing(_RUN), contextlib.closing(database.cursor()) as cursor:
            cursor.execute(text)
            row: tuple[Any, ...] = cursor.fetchone()
            return row

    def schema(self, database: Any, text: str) -> pa.Schema:
        """The columns of a query, in types that files can store."""
        with self._failing(_RUN), contextlib.closing(database.cursor()) as cursor:
            cursor.execute(text)
            fetched = cursor.fetch_record_batch().schema
        return plain_schema(fetched, path="the query")

    def rows(self, database: Any, text: str, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """The rows of a query."""
        with self._failing(_RUN), contextlib.closing(database.cursor()) as cursor:
            cursor.execute(text)
            for batch in cursor.fetch_record_batch():
                yield plain_batch(batch, schema)

    def _execute(self, database: Any, text: str) -> None:
        with self._failing(_RUN), contextlib.closing(database.cursor()) as cursor:
            cursor.execute(text)

    def _failing(self, what: str) -> contextlib.AbstractContextManager[None]:
        return failing(what, url=self._uri)


def _ranges(low: int, high: int, step: int) -> list[tuple[int, int]]:
    """First and last key of each range, at multiples of the step."""
    numbers = range(low // step, high // step + 1)
    return [(max(low, n * step), min(high, (n + 1) * step - 1)) for n in numbers]


def _extract_ranges(
    reading: _Reading,
    query: str,
    schema: pa.Schema,
    *,
    key: str,
    ranges: Sequence[tuple[int, int]],
    snapshot: str,
    folder: str,
) -> tuple[str, ...]:
    """Writes the rows of each range to separate files, over several connections."""

    def extract(part: Sequence[tuple[int, int]]) -> list[tuple[str, ...]]:
        column = quoted(key)
        names = []
        with reading.connection(snapshot) as database:
            for first, last in part:
                text = (
                    f"SELECT * FROM ({query}\n) AS q WHERE {column} BETWEEN {first} AND {last} "
                    f"ORDER BY {column}"
                )
                rows = keyed(reading.rows(database, text, schema), key, of="Sql", fix=UNIQUE)
                names.append(extract_batches(rows, schema, folder))
        return names

    num_threads = min(NUM_CONNECTIONS, len(ranges))
    if not num_threads:
        return ()
    with concurrent.futures.ThreadPoolExecutor(num_threads, "sql") as pool:
        files_of = list(pool.map(extract, [ranges[n::num_threads] for n in range(num_threads)]))
    names = {
        part: files
        for n in range(num_threads)
        for part, files in zip(ranges[n::num_threads], files_of[n], strict=True)
    }
    return tuple(name for part in ranges for name in names[part])
