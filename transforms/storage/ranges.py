"""Bytes of a file, or of a part of one, as a file object."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

Read = Callable[[int, int], bytes]
"""Reads bytes [start, stop) of a file; fewer at its end."""


class Ranges(io.RawIOBase):
    """A file object whose every read is one read of the underlying file."""

    def __init__(self, read: Read, num_bytes: int, offset: int = 0) -> None:
        """Stores the read function, the number of bytes, and the position of the first one."""
        super().__init__()
        self._read, self._num_bytes, self._offset = read, num_bytes, offset
        self._position = 0

    def readable(self) -> bool:
        """True, as for all files open for reading."""
        return True

    def seekable(self) -> bool:
        """True: the length is known."""
        return True

    def tell(self) -> int:
        """Position of the next read."""
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Moves the position of the next read, as for all files."""
        origin = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._num_bytes}
        self._position = max(origin[whence] + offset, 0)
        return self._position

    def read(self, size: int | None = -1) -> bytes:
        """Up to ``size`` bytes, or all that are left."""
        stop = self._num_bytes
        if size is not None and size >= 0:
            stop = min(stop, self._position + size)
        if stop <= self._position:
            return b""
        found = self._read(self._offset + self._position, self._offset + stop)
        self._position += len(found)
        return found

    def readall(self) -> bytes:
        """All that is left, in one read instead of many small ones."""
        return self.read()

    def readinto(self, buffer: Any) -> int:
        """Like :meth:`read`, into existing memory."""
        found = self.read(len(buffer))
        buffer[: len(found)] = found
        return len(found)
