"""Files of a source as Arrow reads them: mapped into memory here, by ranges from a store."""

from __future__ import annotations

import io
from typing import Any

import pyarrow as pa
from fsspec.implementations.local import LocalFileSystem

from ...schemas.recipe import OpenSource
from .. import storage


def open_for_arrow(opened: OpenSource, path: str) -> Any:
    """Opens a file as a ``pa.NativeFile``.

    What lies in an archive is read as a whole: its compression allows no jumps.

    Raises:
        StorageError: if it cannot be opened; from reading it, if the store fails.
    """
    full = opened.full_path(path)
    with storage.failing_as_storage_error("read", full):
        filesystem = opened.filesystem
        if isinstance(filesystem, LocalFileSystem):
            return pa.memory_map(full)
        if getattr(opened, "archived", False):
            return pa.BufferReader(opened.read(path))
        num_bytes = int(filesystem.size(full) or 0)
    return pa.PythonFile(_RangedFile(opened, path, num_bytes=num_bytes), mode="r")


class _RangedFile(io.RawIOBase):
    """A file whose every read is one request."""

    def __init__(self, opened: OpenSource, path: str, *, num_bytes: int) -> None:
        super().__init__()
        self._opened, self._path, self._num_bytes = opened, path, num_bytes
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def size(self) -> int:
        """Its length: what Arrow asks for first."""
        return self._num_bytes

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        origin = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._num_bytes}
        self._position = origin[whence] + offset
        return self._position

    def read(self, size: int | None = -1) -> bytes:
        stop = self._num_bytes
        if size is not None and size >= 0:
            stop = min(stop, self._position + size)
        if stop <= self._position:
            return b""
        found = self._opened.read(self._path, self._position, stop)
        self._position += len(found)
        return found
