"""Reads SQLite through ADBC. The type of a column is the most frequent type of its cells.

In SQLite, each cell has its own type. So cells are first counted by type. Then the query runs again
with each column converted to its type, plus a column that describes cells that do not fit.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import struct
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from ....schemas.errors import DataError, RecipeError
from ...examples.dtypes import PRECISION
from ...storage import git_lfs
from ...storage.opened_source import kind_of
from ...storage.redaction import redact
from ..extracted import (
    PROBLEM,
    extract_batches,
    keyed,
    numbered_rows,
    plain_schema,
    range_step,
    write_ranges,
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

_CLASSES = ("integer", "real", "text", "blob")
_COLUMNS_AT_ONCE = 50
_SHOWN_CHARS = 32 << 10
"""Maximum length of a misfit kept in a reject."""
BESIDE = ("-wal", "-journal")
"""Suffixes of the files that may hold changes that are not in the database yet."""
_HEAD = struct.Struct(">16sH6xII60xI4x")
_MAX_PAGE_BYTES = 1 << 16


def extract_sqlite(
    path: str,
    query: str,
    *,
    key: str | None,
    folder: str,
    types: Mapping[str, Any] | None,
    shown: str,
) -> FilesAndColumns:
    """Runs a query, and copies its rows to files.

    Args:
        path: The path of the database.
        query: A single SELECT.
        key: The key column; None for rows in the order of the query.
        folder: The folder of the files.
        types: The declared types of columns.
        shown: The name of the database, for messages.

    Raises:
        RecipeError: if the database does not exist, or the query fails.
        DataError: if there are no rows, keys are missing or duplicated, or the database is
            truncated.
        StorageError: if the database cannot be read.
    """
    if os.path.exists(path) and not os.path.isfile(path):
        kind = kind_of(os.stat(path).st_mode)
        raise RecipeError(f"Sql: {redact(shown)} is a {kind}, expected a file. Correct uri=.")
    if not os.path.isfile(path):
        raise RecipeError(
            f"Sql: there is no SQLite database {redact(shown)}. Correct uri=; a PostgreSQL "
            'one is "postgresql://host/db".'
        )
    _refuse_cut_off(path, shown)
    driver = import_driver("sqlite")
    with failing(f"{shown} cannot be opened"):
        opened = driver.connect(f"file:{urllib.parse.quote(path)}?mode=ro")
    # A single transaction, so the result is consistent.
    with failing(f"the query cannot be run on {shown}"), contextlib.closing(opened) as database:
        counts = _count(database, query)
        if not counts:
            raise DataError(f"Sql: the query returned no rows of {shown}.")
        columns = [_column(counted, (types or {}).get(name)) for name, counted in counts.items()]
        names = tuple(counts)
        if key is None:
            schema = _schema(columns)
            batches = numbered_rows(_rows(database, query, columns, order=""))
            return extract_batches(batches, schema, folder), names
        check_key(key, names)
        if counts[key].kind != "integer" or counts[key].num_misfits:
            raise RecipeError(
                f"Sql: the key {key!r} must be integers, found {counts[key].described()}. Name "
                "another column."
            )
        check_num_keys(key, num_rows=counts[key].num_rows, num_keys=counts[key].num_values)
        (bounds,) = _fetch(
            database, f"SELECT MIN({quoted(key)}), MAX({quoted(key)}) FROM ({query}\n)"
        )
        step = range_step(counts[key].num_rows, *bounds)
        batches = _rows(database, query, columns, order=f"ORDER BY {quoted(key)}")
        rows = keyed(batches, key, of="Sql", fix=UNIQUE)
        return write_ranges(rows, _schema(columns), folder, step=step), names


def _refuse_cut_off(path: str, shown: str) -> None:
    """Refuses a truncated database: SQLite reads the missing part of its last page as zeros.

    The header is documented at https://www.sqlite.org/fileformat2.html.
    """
    with failing(f"{shown} cannot be opened"):
        num_bytes = os.path.getsize(path)
        with open(path, "rb") as file:
            head = file.read(_HEAD.size)
        unmoved = any(
            os.path.exists(f"{path}{s}") and os.path.getsize(f"{path}{s}") for s in BESIDE
        )
    if git_lfs.is_pointer(head):
        raise git_lfs.refusal(shown)
    # With pending changes in other files, the size may differ from the header.
    if unmoved or len(head) < _HEAD.size or not head.startswith(b"SQLite format 3\0"):
        return
    _, page_bytes, changed, num_pages, changed_when_counted = _HEAD.unpack(head)
    page_bytes = _MAX_PAGE_BYTES if page_bytes == 1 else page_bytes
    expected = page_bytes * num_pages if changed == changed_when_counted else 0
    if page_bytes and (num_bytes < expected or num_bytes % page_bytes):
        of = f"of {expected:,}" if expected else f"in pages of {page_bytes:,}"
        raise DataError(
            f"Sql: {shown} is truncated: it has {num_bytes:,} bytes {of}. Copy it again."
        )


@dataclasses.dataclass(frozen=True)
class _Counts:
    """The number of cells of each type in a column."""

    name: str
    num_rows: int
    of: Mapping[str, int]

    @property
    def num_values(self) -> int:
        return sum(self.of.values())

    @property
    def num_numbers(self) -> int:
        return self.of["integer"] + self.of["real"]

    @property
    def kind(self) -> str:
        """The type of the column."""
        if self.num_numbers and 2 * self.num_numbers >= self.num_values:
            return "real" if self.of["real"] else "integer"
        return "blob" if self.of["blob"] else "text"

    @property
    def num_misfits(self) -> int:
        """Cells that cannot be converted to the type, not counting large integers."""
        numeric = self.kind in ("integer", "real")
        return self.num_values - self.num_numbers if numeric else 0

    def described(self) -> str:
        kinds = [f"{number:,} of type {kind}" for kind, number in self.of.items() if number]
        return ", ".join(kinds) or "no values"


@dataclasses.dataclass(frozen=True)
class _Column:
    """A column of the second query."""

    name: str
    expression: str
    sample: str
    """A value for an extra first row, because ADBC infers types from the first rows."""
    type: pa.DataType
    problem: str = ""
    """A text expression: why a cell does not fit, or null; empty if all cells fit."""


def _column(counts: _Counts, declared: object) -> _Column:
    name, cell = counts.name, quoted(counts.name)
    wants_text = declared == "string" or getattr(declared, "dtype", "") == "string"
    kind = counts.kind
    if wants_text and kind in ("integer", "real"):
        kind = "blob" if counts.of["blob"] else "text"
    if kind == "integer":
        if not counts.num_misfits:
            return _Column(name, cell, "0", pa.int64())
        value = f"CASE typeof({cell}) WHEN 'integer' THEN {cell} WHEN 'null' THEN NULL ELSE 0 END"
        return _Column(name, value, "0", pa.int64(), _misfit(counts, "an integer"))
    if kind == "real":
        dtype = declared if isinstance(declared, str) else getattr(declared, "dtype", "")
        dtype = dtype if dtype in PRECISION else "float64"
        value = cell if not counts.of["integer"] else f"CAST({cell} AS REAL)"
        problem = ""
        if counts.num_misfits:
            value = (
                f"CASE typeof({cell}) WHEN 'integer' THEN CAST({cell} AS REAL) WHEN 'real' THEN "
                f"{cell} WHEN 'null' THEN NULL ELSE 0.0 END"
            )
            problem = _misfit(counts, "a number", dtype)
        elif counts.of["integer"]:
            problem = _misfit(counts, f"a number that {dtype} can represent", dtype)
        return _Column(name, value, "0.0", pa.float64(), problem)
    # CAST formats a real with 15 digits, which loses precision.
    text = (
        f"CASE typeof({cell}) WHEN 'real' THEN printf('%!.17g', {cell}) ELSE {cell} END"
        if counts.of["real"]
        else cell
    )
    if kind == "blob":
        return _Column(name, f"CAST({text} AS BLOB)", "x''", pa.binary())
    return _Column(name, f"CAST({text} AS TEXT)", "''", pa.string())


def _misfit(counts: _Counts, expected: str, dtype: str = "") -> str:
    """A text expression that describes a cell that cannot become a number of the dtype."""
    cell, name = quoted(counts.name), counts.name.replace("'", "''")
    bad = f"typeof({cell}) IN ('text', 'blob')"
    if counts.of["integer"] and dtype:
        # Like holds_exactly: too many binary digits without trailing zeros.
        digits = f"abs({cell} / ({cell} & -{cell}))"
        bad += f" OR typeof({cell}) = 'integer' AND {digits} >= {1 << PRECISION[dtype]}"
    # As text, a blob ends at its first zero byte; quote() shows all of it.
    shown = f"substr(quote({cell}), 1, {_SHOWN_CHARS})"
    return f"CASE WHEN {bad} THEN 'column ''{name}'' is ' || {shown} || ', expected {expected}' END"


def _schema(columns: Sequence[_Column]) -> pa.Schema:
    fields = [pa.field(column.name, column.type) for column in columns]
    if any(column.problem for column in columns):
        fields.append(pa.field(PROBLEM, pa.string()))
    return pa.schema(fields)


def _rows(
    database: Any, query: str, columns: Sequence[_Column], *, order: str
) -> Iterator[pa.RecordBatch]:
    """The converted rows, in the order of the query or of ``order``."""
    schema = _schema(columns)
    firsts = [f"{column.sample} AS {quoted(column.name)}" for column in columns]
    values = [f"{column.expression} AS {quoted(column.name)}" for column in columns]
    problems = [column.problem for column in columns if column.problem]
    if problems:
        firsts.append(f"'' AS {quoted(PROBLEM)}")
        values.append(f"COALESCE({', '.join(problems)}, NULL) AS {quoted(PROBLEM)}")
    inner = f"SELECT {', '.join(values)} FROM ({query}\n) {order}"
    text = f"SELECT {', '.join(firsts)} UNION ALL SELECT * FROM ({inner})"
    with contextlib.closing(database.cursor()) as cursor:
        cursor.execute(text)
        skipped = 1
        for batch in cursor.fetch_record_batch():
            rows = batch.slice(skipped)
            skipped = max(0, skipped - len(batch))
            yield pa.RecordBatch.from_arrays(rows.columns, schema=schema)


def _count(database: Any, query: str) -> dict[str, _Counts]:
    """The number of cells of each column by type; {} if there are no rows."""
    with contextlib.closing(database.cursor()) as cursor:
        cursor.execute(f"SELECT * FROM ({query}\n) LIMIT 0")
        names = list(cursor.fetch_record_batch().schema.names)
    plain_schema(pa.schema([(name, pa.null()) for name in names]), path="the query")
    counts: dict[str, _Counts] = {}
    for start in range(0, len(names), _COLUMNS_AT_ONCE):
        part = names[start : start + _COLUMNS_AT_ONCE]
        sums = [f"TOTAL(typeof({quoted(name)}) = '{kind}')" for name in part for kind in _CLASSES]
        (row,) = _fetch(database, f"SELECT COUNT(*), {', '.join(sums)} FROM ({query}\n)")
        num_rows = int(row[0])
        if not num_rows:
            return {}
        for index, name in enumerate(part):
            cells = row[1 + index * len(_CLASSES) :]
            of = {kind: int(number) for kind, number in zip(_CLASSES, cells, strict=False)}
            counts[name] = _Counts(name, num_rows, of)
    return counts


def _fetch(database: Any, text: str) -> list[tuple[Any, ...]]:
    with contextlib.closing(database.cursor()) as cursor:
        cursor.execute(text)
        rows: list[tuple[Any, ...]] = cursor.fetchall()
    return rows
