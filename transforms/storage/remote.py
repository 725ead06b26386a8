"""Files of fsspec filesystems: read by range, and put so that nobody sees half of one."""

from __future__ import annotations

import contextlib
import posixpath
from collections.abc import Callable
from typing import Any

from fsspec.callbacks import Callback

from ..activity import advance
from .local import temporary_name
from .zip_members import read_part

_ATOMIC = frozenset(
    ["s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "oci", "oss", "tos", "tosfs", "hf", "memory"]
)
"""Protocols of stores that show a file when the last byte of its one put has arrived."""


def read_remote(
    found: Any, path: str, start: int = 0, stop: int | None = None, *, pin: str = ""
) -> bytes:
    """Reads bytes [start, stop) of a file of an fsspec filesystem, in one request.

    Args:
        found: The filesystem.
        path: The file's path there.
        start: The first byte.
        stop: The end; None for the file's.
        pin: The tag that the file must have (``unchanged.pin_of``): another file is an error.
    """
    if pin:
        return _read_pinned(found, path, start, stop, pin=pin)
    if start == 0 and stop is None:
        return bytes(found.cat_file(path))
    if stop is None:
        stop = int(found.info(path)["size"])
    if stop <= start:
        return b""
    if found.protocol == "zip":
        return read_part(found, path, start, stop)
    content = bytes(found.cat_file(path, start=start, end=stop))
    # Web servers that know no ranges send the whole file instead.
    return content if len(content) <= stop - start else content[start:stop]


def _read_pinned(found: Any, path: str, start: int, stop: int | None, *, pin: str) -> bytes:
    if "s3" not in found.protocol:
        return bytes(found.cat_file(path, start=start, end=stop, generation=pin))
    # The only function of s3fs that takes a precondition and tries again where a connection breaks.
    from s3fs.core import _fetch_range

    if stop is None:
        stop = int(found.info(path)["size"])
    if stop <= start:
        return b""
    bucket, key, version = found.split_path(path)
    return bytes(_fetch_range(found, bucket, key, version, start, stop, req_kw={"IfMatch": pin}))


def open_remote(found: Any, path: str, *, chunk_bytes: int) -> Any:
    """Opens a file of an fsspec filesystem to read it once, from start to end, in chunks."""
    if "http" in found.protocol:
        # As one stream: servers need not know ranges.
        return found.open(path, "rb", block_size=0)
    return found.open(path, "rb", block_size=chunk_bytes, cache_type="none")


def put_bytes_remotely(found: Any, path: str, content: bytes) -> None:
    """Puts a file of an fsspec filesystem in place; readers find the whole or what lay there."""
    _put(found, path, lambda target: found.pipe_file(target, content))


def put_file_remotely(local: str, found: Any, path: str) -> None:
    """Copies a local file to its place on an fsspec filesystem, as :func:`put_bytes_remotely`."""
    _put(found, path, lambda target: found.put_file(local, target, callback=_Advancing()))


class _Advancing(Callback):
    """Reports each part of a file that a store has taken."""

    def call(self, *arguments: Any, **options: Any) -> None:
        """Reports that the put advances."""
        super().call(*arguments, **options)
        advance()


def _put(found: Any, path: str, put: Callable[[str], object]) -> None:
    protocols = {found.protocol} if isinstance(found.protocol, str) else set(found.protocol)
    if protocols & _ATOMIC:
        put(path)
        return
    # Over SFTP, SMB and the like a file grows under its name, and stays half when that fails.
    folder = posixpath.dirname(path)
    found.makedirs(folder, exist_ok=True)
    temporary = posixpath.join(folder, temporary_name())
    try:
        put(temporary)
        _rename(found, temporary, path)
    except BaseException:
        with contextlib.suppress(Exception):
            found.rm_file(temporary)
        raise


def _rename(found: Any, temporary: str, path: str) -> None:
    try:
        found.mv(temporary, path)
    except Exception:
        if not (found.exists(temporary) and found.exists(path)):
            raise
    if found.exists(temporary):
        # Some do not replace a file, and some of them say nothing.
        found.rm_file(path)
        found.mv(temporary, path)
