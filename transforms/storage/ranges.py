"""Bytes that lie in a file, or in a part of one, as a file of their own."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

Read = Callable[[int, int], bytes]
"""Reads bytes [start, stop) of a file; fewer at its end."""


class Ranges(io.RawIOBase):
    """A file whose every read is one read of what it lies in."""

    def __init__(self, read: Read, num_bytes: int, offset: int = 0) -> None:
        """Takes what reads, how many bytes there are, and where the first of them lies."""
        super().__init__()
        self._read, self._num_bytes, self._offset = read, num_bytes, offset
        self._position = 0

    def readable(self) -> bool:
        """As all files that are read."""
        return True

    def seekable(self) -> bool:
        """As files of a known length."""
        return True

    def tell(self) -> int:
        """Where the next read begins."""
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Moves the next read, in the way of all files."""
        origin = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._num_bytes}
        self._position = max(origin[whence] + offset, 0)
        return self._position

    def read(self, size: int | None = -1) -> bytes:
        """So many bytes, or all that are left; fewer at the end."""
        stop = self._num_bytes
        if size is not None and size >= 0:
            stop = min(stop, self._position + size)
        if stop <= self._position:
            return b""
        found = self._read(self._offset + self._position, self._offset + stop)
        self._position += len(found)
        return found

    def readall(self) -> bytes:
        """All that is left, by one read and not by many small ones."""
        return self.read()

    def readinto(self, buffer: Any) -> int:
        """As :meth:`read`, into memory that is there."""
        found = self.read(len(buffer))
        buffer[: len(found)] = found
        return len(found)
