"""Files of a source as Arrow reads them: from this machine, or by ranges from a store."""

from __future__ import annotations

import functools
from typing import Any

import pyarrow as pa
from fsspec.implementations.local import LocalFileSystem

from ...schemas.recipe import OpenSource
from .. import storage
from .ranges import Ranges


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
            opened.hold(path)
            with opened.open_local(path) as file:
                # Not mapped: what was read must not change with the file. Opened by what is open
                # already: the path may lead elsewhere by now.
                return pa.OSFile(f"/dev/fd/{file.fileno()}")
        if getattr(opened, "archived", False):
            return pa.BufferReader(opened.read(path))
        num_bytes = int(filesystem.size(full) or 0)
    read = functools.partial(opened.read, path)
    return pa.PythonFile(Ranges(read, num_bytes), mode="r")


def is_at_hand(source: Any) -> bool:
    """Whether a few bytes anywhere in an open file cost no request."""
    return isinstance(source, pa.OSFile | pa.BufferReader)
