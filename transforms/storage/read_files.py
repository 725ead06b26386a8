"""Reads the files of a source: many small ones at a time, or ranges of one for Arrow.

Local files are opened directly. Requests to a store run concurrently.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import pyarrow as pa
from fsspec.implementations.local import LocalFileSystem

from ...schemas.blocks import FileRange, SourceFile
from ...schemas.errors import SourceChangedError, StorageError
from ...schemas.recipe import OpenSource
from .. import storage
from .decompress import Ranges

Contents = list[tuple[FileRange, bytes]]
"""Files with their contents; a file with a problem has an empty one."""

_HEADER_BYTES = 64 << 10
_HEADER_FILES = 256
_H = TypeVar("_H")


def read_ahead(opened: OpenSource, chunks: Iterable[Sequence[FileRange]]) -> Generator[Contents]:
    """Reads complete files in chunks, each while the caller works on the previous one.

    Raises:
        SourceChangedError: if a file is no longer what the inventory found.
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
    contents: list[bytes | Exception | None] = [b"" if part.problem else None for part in parts]
    if isinstance(opened.filesystem, LocalFileSystem):
        for i, part in enumerate(parts):
            if not part.problem:
                path = opened.full_path(part.path)
                contents[i] = storage.read_expected(path, part.stop - part.start)
    # Files that could not be read this way are read, or fail, in the general way.
    rest = [i for i, content in enumerate(contents) if content is None]
    for i, content in zip(rest, read_files(opened, [parts[i].path for i in rest]), strict=True):
        contents[i] = content
    return [(part, _verify(opened, part, data)) for part, data in zip(parts, contents, strict=True)]


def _verify(opened: OpenSource, part: FileRange, data: bytes | Exception | None) -> bytes:
    if not isinstance(data, bytes):
        with storage.failing_as_storage_error("read", opened.full_path(part.path)):
            raise data or StorageError("not read")
    if part.problem or hashlib.sha256(data).hexdigest() == part.sha256:
        return data
    raise SourceChangedError.of(storage.redact(opened.full_path(part.path)))


def read_files(
    opened: OpenSource, paths: Sequence[str], *, stop: int | None = None
) -> list[bytes | Exception]:
    """Reads files, or their first ``stop`` bytes, in the order of ``paths``.

    Returns:
        For each file its bytes, or the error that reading it raised.
    """
    if isinstance(opened.filesystem, LocalFileSystem):
        return [_read(opened, path, stop) for path in paths]
    if stop is not None:  # complete files are hashed
        opened.note(paths)
    full = [opened.full_path(path) for path in paths]
    starts = [None if stop is None else 0] * len(full)
    found: list[bytes | Exception] = opened.filesystem.cat_ranges(
        full, starts, [stop] * len(full), on_error="return"
    )
    return found


def read_headers(
    files: Iterable[SourceFile],
    opened: OpenSource,
    *,
    read: Callable[[SourceFile, bytes], _H],
    unreadable: type[ValueError],
    cut_short: str,
) -> Iterator[_H]:
    """The headers of the files that have one, from their first bytes if these suffice.

    Args:
        files: Files with a problem are skipped.
        opened: Their root.
        read: Parses the header from a file's bytes, all of them or only the first.
        unreadable: What it raises, with a ``reason``.
        cut_short: The reason that means more bytes may help: long metadata precedes the header.
    """
    readable = [file for file in files if not file.problem]
    max_bytes = opened.limits.max_record_bytes
    for start in range(0, len(readable), _HEADER_FILES):
        batch = readable[start : start + _HEADER_FILES]
        contents = read_files(opened, [file.path for file in batch], stop=_HEADER_BYTES)
        for file, data in zip(batch, contents, strict=True):
            header, reason = _try_header(file, data, read, unreadable)
            more = len(data) < file.num_bytes <= max_bytes if isinstance(data, bytes) else False
            if reason == cut_short and more:
                whole = read_files(opened, [file.path])[0]
                header, _ = _try_header(file, whole, read, unreadable)
            if header is not None:
                yield header


def _try_header(
    file: SourceFile,
    data: bytes | Exception,
    read: Callable[[SourceFile, bytes], _H],
    unreadable: type[ValueError],
) -> tuple[_H | None, str]:
    """The header, or the reason why there is none."""
    if not isinstance(data, bytes):
        return None, "not read"
    try:
        return read(file, data), ""
    except unreadable as error:
        return None, getattr(error, "reason", "")


def _read(opened: OpenSource, path: str, stop: int | None) -> bytes | Exception:
    try:
        return opened.read(path, 0, stop)
    except (OSError, StorageError) as error:
        return error


def open_for_arrow(opened: OpenSource, path: str) -> Any:
    """Opens a file as a ``pa.NativeFile``.

    A member of an archive is read completely: its compression does not allow seeking.

    Raises:
        StorageError: if it cannot be opened; from later reads, if the store fails.
    """
    full = opened.full_path(path)
    with storage.failing_as_storage_error("read", full):
        filesystem = opened.filesystem
        if isinstance(filesystem, LocalFileSystem):
            opened.hold(path)
            with opened.open_local(path) as file:
                # Not mapped: data already read must not change with the file. Opened through its
                # descriptor, because the path may lead elsewhere by now.
                return pa.OSFile(f"/dev/fd/{file.fileno()}")
        if getattr(opened, "archived", False):
            return pa.BufferReader(opened.read(path))
        num_bytes = int(filesystem.size(full) or 0)
    read = functools.partial(opened.read, path)
    return pa.PythonFile(Ranges(read, num_bytes), mode="r")


def is_at_hand(source: Any) -> bool:
    """Whether reading a few bytes anywhere in an open file needs no request."""
    return isinstance(source, pa.OSFile | pa.BufferReader)
