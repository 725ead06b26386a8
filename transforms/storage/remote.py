"""Files of fsspec filesystems: read by range, and put atomically."""

from __future__ import annotations

import contextlib
import posixpath
from collections.abc import Callable
from typing import Any

from fsspec.asyn import sync
from fsspec.callbacks import Callback

from ..activity import advance
from .local import temporary_name
from .zip_members import read_part

_ATOMIC = frozenset(
    ["s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "oci", "oss", "tos", "tosfs", "hf", "memory"]
)
"""Protocols of stores that show a file only once the last byte of its single put has arrived."""
_PARTIAL, _NOT_SATISFIABLE = 206, 416
"""HTTP's answers to a range: a part of the file; nothing, because the file ends before."""


def read_remote(
    found: Any, path: str, start: int = 0, stop: int | None = None, *, pin: str = ""
) -> bytes:
    """Reads bytes [start, stop) of a file of an fsspec filesystem: exactly these, or to its end.

    A server may answer a range with less of it (RFC 9110, 15.3.7): the rest is asked for, until the
    file ends or nothing more comes.

    Args:
        found: The filesystem.
        path: The file's path there.
        start: The first byte.
        stop: The end; None for the end of the file.
        pin: The tag that the file must have (``unchanged.pin_of``): any other is an error.

    Raises:
        OSError: if the store stops in the middle of the file.
    """
    if start == 0 and stop is None and not (pin and "s3" in found.protocol):
        return bytes(found.cat_file(path, **({"generation": pin} if pin else {})))
    size = None
    if stop is None:
        stop = size = _size_of(found, path)
    parts = []
    while start < stop:
        part = _read_range(found, path, start, stop, pin=pin)
        parts.append(part)
        start += len(part)
        if start < stop and size is None:
            size = _size_of(found, path)
            stop = min(stop, size) if size else stop
        if start < stop and not part:
            if not size:
                break
            raise OSError(f"the store sent nothing of bytes {start:,} to {stop:,} of {size:,}")
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _size_of(found: Any, path: str) -> int:
    """The size of a file; 0 also if the store does not say."""
    return int(found.info(path)["size"] or 0)


def _read_range(found: Any, path: str, start: int, stop: int, *, pin: str) -> bytes:
    """The answer to one request: bytes from ``start`` on, at most up to ``stop``."""
    if found.protocol == "zip":
        return read_part(found, path, start, stop)
    if "http" in found.protocol:
        return bytes(sync(found.loop, _http_range, found, path, start, stop))
    if not pin:
        return bytes(found.cat_file(path, start=start, end=stop))
    if "s3" not in found.protocol:
        return bytes(found.cat_file(path, start=start, end=stop, generation=pin))
    # The only s3fs function that takes a precondition and retries when a connection breaks.
    from s3fs.core import _fetch_range

    bucket, key, version = found.split_path(path)
    return bytes(_fetch_range(found, bucket, key, version, start, stop, req_kw={"IfMatch": pin}))


async def _http_range(found: Any, url: str, start: int, stop: int) -> bytes:
    """Asks a web server for a range; one without support for ranges sends the complete file."""
    options = {**found.kwargs}
    headers = {**options.pop("headers", {}), "Range": f"bytes={start}-{stop - 1}"}
    session = await found.set_session()
    async with session.get(found.encode_url(url), headers=headers, **options) as response:
        if response.status == _NOT_SATISFIABLE:  # the file ends before
            return b""
        content: bytes = await response.read()
        found._raise_not_found_for_status(response, url)
        return content if response.status == _PARTIAL else content[start:stop]


def open_remote(found: Any, path: str, *, chunk_bytes: int) -> Any:
    """Opens a file of an fsspec filesystem to read it once, from start to end, in chunks."""
    if "http" in found.protocol:
        # As one stream: the server may not support ranges.
        return found.open(path, "rb", block_size=0)
    return found.open(path, "rb", block_size=chunk_bytes, cache_type="none")


def put_bytes_remotely(found: Any, path: str, content: bytes) -> None:
    """Puts a file of an fsspec filesystem in place; readers see the new file or the old."""
    _put(found, path, lambda target: found.pipe_file(target, content))


def put_file_remotely(local: str, found: Any, path: str) -> None:
    """Copies a local file to its place on an fsspec filesystem; see :func:`put_bytes_remotely`."""
    _put(found, path, lambda target: found.put_file(local, target, callback=_Advancing()))


class _Advancing(Callback):
    """Reports each part of a file that a store has accepted."""

    def call(self, *arguments: Any, **options: Any) -> None:
        """Reports that the put advances."""
        super().call(*arguments, **options)
        advance()


def _put(found: Any, path: str, put: Callable[[str], object]) -> None:
    protocols = {found.protocol} if isinstance(found.protocol, str) else set(found.protocol)
    if protocols & _ATOMIC:
        put(path)
        return
    # Over SFTP, SMB etc. a file grows under its final name, and remains partial after a failure.
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
        # Some filesystems do not replace a file, and some of those report no error.
        found.rm_file(path)
        found.mv(temporary, path)
