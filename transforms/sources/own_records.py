"""Calling a user's function on a file: what it gets, what it may yield, and what it raises."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NoReturn

import pyarrow as pa
from fsspec.implementations.local import LocalFileSystem

from ...schemas.errors import RECORD_ERROR, SnapshardError
from ...schemas.recipe import OpenSource
from .. import storage
from ..activity import advance, reading
from ..code.user_reads import running
from ..storage.redaction import redact_repeated

_WORDS = 500


class RaisedError(Exception):
    """What a user's function has done wrong, with a reason to group by."""

    def __init__(self, reason: str, message: str, *, exception: str = RECORD_ERROR) -> None:
        """Takes a stable class of failure, the finding, and the class of what was raised."""
        super().__init__(message)
        self.reason, self.exception = reason, exception


@dataclasses.dataclass(frozen=True)
class InputFile:
    """A file of the source, as the user's function gets it."""

    path: str
    """Relative to the source's root."""
    _opened: OpenSource = dataclasses.field(repr=False)

    def open(self) -> Any:
        """Opens it: a binary file object, from which any part may be read.

        Raises:
            StorageError: if it cannot be opened.
        """
        self._opened.hold(self.path)
        full = self._opened.full_path(self.path)
        with running(None), storage.failing_as_storage_error("read", full):
            if isinstance(self._opened.filesystem, LocalFileSystem):
                return io.BufferedReader(self._opened.open_local(self.path))
            return self._opened.filesystem.open(full, "rb")

    def read(self) -> bytes:
        """Its content.

        Raises:
            StorageError: if it cannot be read.
        """
        with running(None):
            return self._opened.read(self.path)


ReadFn = Callable[[InputFile], Iterable[Any]]


def records_of(function: ReadFn, path: str, opened: OpenSource) -> Iterator[Any]:
    """What a function yields for a file: Mappings and RecordBatches.

    Raises:
        RaisedError: for what it raises, or yields besides. Errors of ours go on as they are.
    """
    name = getattr(function, "__qualname__", type(function).__name__)
    records: Any = None
    own = ""
    if getattr(opened, "local", False):
        own = opened.full_path(path)
        opened.hold(path)  # the function may open it by its path
    watched = running(function, own=own)
    reading(path)
    try:
        try:
            with watched:
                records = iter(function(InputFile(path, opened)))
        except Exception as error:
            _reraise(error, name)
        while True:
            try:
                with watched:
                    found = next(records)
            except StopIteration:
                return
            except Exception as error:
                _reraise(error, name)
            advance()
            if isinstance(found, pa.Table):
                yield from found.to_batches()
            elif isinstance(found, Mapping | pa.RecordBatch):
                yield found
            else:
                raise RaisedError(
                    "not a record",
                    f"{name} yields {type(found).__name__}, expected a dict or a pa.RecordBatch",
                )
    finally:
        # A generator that is left early lets go of the file.
        if hasattr(records, "close"):
            records.close()


def _reraise(error: Exception, name: str) -> NoReturn:
    if isinstance(error, SnapshardError):
        raise error
    words = " ".join(redact_repeated(str(error)).split())[:_WORDS]
    raise RaisedError(
        f"the function raised {type(error).__name__}",
        f"{name} raised {type(error).__name__}{f': {words}' if words else ''}",
        exception=type(error).__name__,
    ) from None
