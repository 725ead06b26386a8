"""The SQL source: queries of SQLite and PostgreSQL databases, through ADBC.

Results arrive as Arrow columns and are written to workspace files batch by batch, so no result is
ever entirely in memory. A single transaction reads everything, so the records are consistent.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

from fsspec.registry import known_implementations

from ....schemas.config import config_class
from ....schemas.errors import RecipeError
from ....schemas.limits import DEFAULT_LIMITS, Limits
from ....schemas.recipe import Source
from ... import storage
from ...storage.opened_source import open_source
from ...storage.redaction import learn, passwords_in
from ..extracted import ExtractedTable
from ..table_files import check_types
from .postgres import extract_postgres
from .sqlite import BESIDE, extract_sqlite

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_VARIABLE = re.compile(r"\$(?:\w+|\{\w+\})")
_ORDERED = re.compile(r"\border\s+by\b", re.IGNORECASE)
_POSTGRES = ("postgresql", "postgres")
_EXPECTED = (
    "expected the path of an SQLite database (sqlite:///data.db), a URL of one "
    "(zip://data.db::data.zip, s3://bucket/data.db), or postgresql://user@host/database"
)
_CHUNK_BYTES = 4 << 20


@config_class
class Sql:
    r"""Rows of a query.

    With a ``key``, a record's id is ``query#<key>``, and rows are grouped into files by key range:
    if rows are added, only their ranges are prepared again, and no other record moves. Without a
    key, the id is ``query#<row>``, and the query must specify the order of its rows.

    SQLite: a column has the type of most of its values, numbers or texts. A text among numbers is
    a reject, a number among texts becomes text. Numbers are int64 if all are integers, else
    float64. PostgreSQL: ``numeric`` becomes a string, which keeps all digits.

    Attributes:
        uri: ``sqlite:///data.db`` (relative to the recipe's folder; ``sqlite:////data.db`` is
            absolute), ``postgresql://user@host:port/database``, or an SQLite database at any
            fsspec URL, which is copied to a scratch folder for the query. ``$NAME`` is replaced by
            an environment variable where the build starts. Put passwords there, in PGPASSWORD or
            in a .pgpass file. They are not stored or passed on.
        query: A single SELECT.
        key: A column of unique integers without missing values.
        label: The column to predict. Strings and bools become a ClassLabel; numbers are kept.
        types: Overrides inferred types: ``{"age": "float32"}``, or a feature such as
            ``ss.ClassLabel(("no", "yes"))``.
    """

    uri: str = dataclasses.field(repr=False)
    query: str
    key: str | None = None
    label: str | None = None
    types: Mapping[str, Any] | None = None

    media = False

    def __post_init__(self) -> None:
        """Checks the address, the order and the types."""
        check_types(self.types)
        scheme = _SCHEME.match(self.uri)
        if scheme and scheme[1] not in ("sqlite", *_POSTGRES, *known_implementations):
            raise RecipeError(f"Sql: uri= has the scheme {scheme[1]}://, {_EXPECTED}.")
        if not self.uri or self.uri.rstrip("/") == "sqlite:":
            raise RecipeError(f"Sql: uri= names no database, {_EXPECTED}.")
        if not self.query.strip().rstrip(";"):
            raise RecipeError("Sql: query= is empty, expected a SELECT.")
        if self.key is None and not _ORDERED.search(self.query):
            raise RecipeError(
                "Sql: the query returns its rows in no defined order. Name a column of unique "
                "integers with key=, or end the query with ORDER BY over columns that identify "
                "each row."
            )

    @property
    def secrets(self) -> tuple[str, ...]:
        """Passwords that are written literally in the uri."""
        return tuple(s for s in passwords_in(self.uri) if not _VARIABLE.fullmatch(s))

    def extract(self, folder: str, *, base: str, limits: Limits = DEFAULT_LIMITS) -> Source:
        """Runs the query, and copies its rows to files in the folder.

        Raises:
            RecipeError: if the query fails, or a column or the database does not exist.
            DataError: if there are no rows, or keys are missing or duplicated.
            StorageError: if the database cannot be reached, or the files cannot be written.
        """
        uri = os.path.expandvars(self.uri)
        unset = _VARIABLE.search(uri)
        if unset:
            raise RecipeError(
                f"Sql: uri= refers to {unset[0]}, which is not set in the environment. Export it."
            )
        learn(uri)
        query = self.query.strip().rstrip(";").rstrip()
        scheme = _SCHEME.match(uri)
        if scheme and scheme[1] in _POSTGRES:
            files, columns = extract_postgres(uri, query, key=self.key, folder=folder)
        else:
            near = folder.rpartition("/")[0] or "."
            with _database(uri, base=base, limits=limits, near=near) as (path, shown):
                files, columns = extract_sqlite(
                    path, query, key=self.key, folder=folder, types=self.types, shown=shown
                )
        return ExtractedTable(
            folder,
            files=files,
            name="query",
            of="Sql",
            columns=columns,
            unit="row" if self.key is None else "key",
            label=self.label,
            types=self.types,
        )


@contextlib.contextmanager
def _database(uri: str, *, base: str, limits: Limits, near: str) -> Iterator[tuple[str, str]]:
    """The path of an SQLite database, and its name for messages.

    A database in an archive or a store is first copied to a scratch folder.

    Raises:
        RecipeError: if it does not exist or is not a single file.
        DataError: if an archive is damaged.
        SourceChangedError: if it, or its journal, changed while it was copied.
        StorageError: if it cannot be copied.
    """
    written = re.sub(r"^sqlite:/{2,3}", "", uri)
    if storage.is_local(uri) or written != uri:
        local = os.path.expanduser(written) if written != uri else storage.local_path(uri)
        path = os.path.join(base, local)
        yield path, path
        return
    opened = open_source(uri, base, limits)
    if not opened.single:
        raise RecipeError(
            f"Sql: {opened.shown} is a folder or an archive, expected one SQLite database, such as "
            "zip://data.db::data.zip. Correct uri=."
        )
    opened = opened.proving([])
    proof = opened.proof
    assert proof is not None
    with storage.scratch_folder(near) as scratch:
        path = os.path.join(scratch, "copied.db")
        absent = [s for s in BESIDE if opened.look(opened.single + s) is None]
        for suffix in ("", *BESIDE):
            if suffix in absent:
                continue
            with (
                storage.failing_as_storage_error("write", path),
                open(path + suffix, "wb") as file,
            ):
                for chunk in opened.chunks(opened.single + suffix, chunk_bytes=_CHUNK_BYTES):
                    file.write(chunk)
        # The files are consistent only if none changed or appeared.
        proof.check()
        for suffix in absent:
            if opened.look(opened.single + suffix) is not None:
                proof.fail(opened.single + suffix)
        yield path, opened.shown
