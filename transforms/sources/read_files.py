"""Reads many small files at a time: plainly from this machine, side by side from a store."""

from __future__ import annotations

from collections.abc import Sequence

from fsspec.implementations.local import LocalFileSystem

from ...schemas.errors import StorageError
from ...schemas.recipe import OpenSource


def read_files(
    opened: OpenSource, paths: Sequence[str], *, stop: int | None = None
) -> list[bytes | Exception]:
    """Reads files, or their first ``stop`` bytes, in the order of ``paths``.

    Returns:
        For each file its bytes, or the error that reading it raised.
    """
    if isinstance(opened.filesystem, LocalFileSystem):
        return [_read(opened, path, stop) for path in paths]
    full = [opened.full_path(path) for path in paths]
    starts = [None if stop is None else 0] * len(full)
    found: list[bytes | Exception] = opened.filesystem.cat_ranges(
        full, starts, [stop] * len(full), on_error="return"
    )
    return found


def _read(opened: OpenSource, path: str, stop: int | None) -> bytes | Exception:
    try:
        return opened.read(path, 0, stop)
    except (OSError, StorageError) as error:
        return error
