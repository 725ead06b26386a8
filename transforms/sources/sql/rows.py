"""Shared by the SQL databases: errors, drivers, and the checks of keys."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from ....schemas.errors import DataError, RecipeError, StorageError
from ...activity import waiting_to
from ...storage import redact, redact_repeated
from ..extracted import import_extra

# Classes of SQLSTATE caused by the query, the address or the password.
_QUERYS_FAULT = ("22", "28", "42", "0A", "2F", "3D", "3F", "25")
_LOCKED = "database is locked"
"""What SQLite says of a database to which another program writes."""


FilesAndColumns = tuple[tuple[str, ...], tuple[str, ...]]
"""The names of the files of extracted rows, and of their columns."""
UNIQUE = "Name a column of unique integers, or leave out key= and end the query with ORDER BY."
"""What to do if several rows have one key."""


@contextlib.contextmanager
def failing(what: str, *, url: str = "") -> Iterator[None]:
    """Converts errors of a database, keeping their text.

    Args:
        what: What failed, as in "Sql: <what>: …".
        url: The address, whose credentials must not be shown.

    Raises:
        RecipeError: if the query caused the error.
        StorageError: if the database did.
    """
    adbc = _imported("adbc_driver_manager")
    try:
        with waiting_to(f"query {redact(url) if url else 'the database'}"):
            yield
    except adbc.Error as error:
        words = _words(error, url)
        if _LOCKED in words:
            raise StorageError(
                f"Sql: {what}: another program holds a transaction open ({words}). Run the same "
                "command again once it has ended."
            ) from None
        state = error.sqlstate or ""
        mistaken = isinstance(error, adbc.ProgrammingError) and not state
        if mistaken or state.startswith(_QUERYS_FAULT):
            raise RecipeError(f"Sql: {what}: {words}. Fix query= or uri=.") from None
        raise StorageError(f"Sql: {what}: {words}.") from None
    except (pa.ArrowException, OSError) as error:
        raise StorageError(f"Sql: {what}: {_words(error, url)}.") from None


def import_driver(name: str) -> Any:
    """The ``dbapi`` module of an ADBC driver.

    Raises:
        RecipeError: if it is not installed.
    """
    return _imported(f"adbc_driver_{name}.dbapi")


def _imported(module: str) -> Any:
    return import_extra(module, of="ss.Sql", extra="sql")


def quoted(name: str) -> str:
    """A column name, quoted for SQL."""
    return '"' + name.replace('"', '""') + '"'


def check_key(key: str, columns: Sequence[str]) -> None:
    """Checks that the key is a column.

    Raises:
        RecipeError: if it is not.
    """
    if key not in columns:
        raise RecipeError(
            f"Sql: key names {key!r}, which is not a column of the query. Its columns are "
            f"{', '.join(map(repr, columns))}."
        )


def check_num_keys(key: str, *, num_rows: int, num_keys: int) -> None:
    """Checks that every row has a key.

    Raises:
        DataError: if keys are missing.
    """
    if num_keys < num_rows:
        raise DataError(
            f"Sql: {num_rows - num_keys:,} of {num_rows:,} rows have no integer in the key "
            f"{key!r}. Leave them out in the query (WHERE {quoted(key)} IS NOT NULL), or name "
            "another key."
        )


def _words(error: BaseException, url: str) -> str:
    text = str(error)
    text = text.partition("\nquery:")[0].partition(". Vendor code")[0]
    text = " ".join(redact_repeated(text, url).split())
    return text.rstrip(" .") or type(error).__name__
