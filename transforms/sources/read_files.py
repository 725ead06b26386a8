"""Reads many small files at a time: plainly from this machine, side by side from a store."""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from fsspec.implementations.local import LocalFileSystem

from ...schemas.blocks import FileRange
from ...schemas.errors import StorageError
from ...schemas.recipe import OpenSource
from .. import storage

Contents = list[tuple[FileRange, bytes]]
"""Files with their contents; one with a problem has none."""


def read_ahead(opened: OpenSource, chunks: Iterable[Sequence[FileRange]]) -> Generator[Contents]:
    """Reads whole files in chunks, each while the one before is worked on.

    Raises:
        StorageError: if a file is no longer what the inventory found.
    """
    with ThreadPoolExecutor(1, "read_ahead") as pool:
        pending: Future[Contents] | None = None
        for chunk in chunks:
            following = pool.submit(_read_verified, opened, chunk)
            if pending is not None:
                yield pending.result()
            pending = following
        if pending is not None:
            yield pending.result()


def _read_verified(opened: OpenSource, parts: Sequence[FileRange]) -> Contents:
    found: list[bytes | Exception | None] = [b"" if part.problem else None for part in parts]
    if isinstance(opened.filesystem, LocalFileSystem):
        for i, part in enumerate(parts):
            if not part.problem:
                path = opened.full_path(part.path)
                found[i] = storage.read_expected(path, part.stop - part.start)
    # What is amiss is found out in the general way.
    rest = [i for i, content in enumerate(found) if content is None]
    for i, content in zip(rest, read_files(opened, [parts[i].path for i in rest]), strict=True):
        found[i] = content
    return [(part, _verify(opened, part, data)) for part, data in zip(parts, found, strict=True)]


def _verify(opened: OpenSource, part: FileRange, data: bytes | Exception | None) -> bytes:
    cause: Exception | None = None
    if not isinstance(data, bytes):
        says, cause = f"cannot be read any more ({data})", data
    elif part.problem or hashlib.sha256(data).hexdigest() == part.sha256:
        return data
    else:
        says = f"has other content ({len(data):,} bytes) than when it was listed"
    raise StorageError(
        f"{opened.full_path(part.path)} {says}: the source changed while the build read it. "
        "Wait until nothing writes there, then start again: it goes on from what is done."
    ) from cause


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
