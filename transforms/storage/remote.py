"""Files of fsspec filesystems: listed, read by range, and put atomically."""

from __future__ import annotations

import asyncio
import contextlib
import posixpath
from collections.abc import Callable, Iterator
from typing import Any

from fsspec.asyn import sync
from fsspec.callbacks import Callback

from ..activity import advance
from .local import Staged, temporary_name
from .zip_members import read_part

_ATOMIC = frozenset(
    ["s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "oci", "oss", "tos", "tosfs", "hf", "memory"]
)
"""Protocols of stores that show a file only once the last byte of its single put has arrived."""
_PARTIAL, _NOT_SATISFIABLE = 206, 416
"""HTTP's answers to a range: a part of the file; nothing, because the file ends before."""
_ENDLESS = 1 << 62
"""The end of a file of unknown size."""
_COPY_BYTES = 1 << 20


def read_remote(
    found: Any,
    path: str,
    start: int = 0,
    stop: int | None = None,
    *,
    pin: str = "",
    copies: dict[str, Staged] | None = None,
) -> bytes:
    """Reads bytes [start, stop) of a file of an fsspec filesystem: exactly these, or to its end.

    A server may answer a range with less of it (RFC 9110, 15.3.7): the rest is asked for, until the
    file ends or, if the store does not state its size, nothing more comes.

    Args:
        found: The filesystem.
        path: The file's path there.
        start: The first byte.
        stop: The end; None for the end of the file.
        pin: The tag that the file must have (``unchanged.pin_of``): any other is an error.
        copies: By path, copies of files of which a web server sends no parts, and which it
            therefore sends once; None keeps none. Their owner must notice if a file changes.

    Raises:
        OSError: if the store stops in the middle of the file.
    """
    if start == 0 and stop is None and not (pin and "s3" in found.protocol):
        return bytes(found.cat_file(path, **({"generation": pin} if pin else {})))
    copies = {} if copies is None else copies
    size, is_asked = None, stop is None
    if stop is None:
        size = _size_of(found, path)
        stop = _ENDLESS if size is None else size
    parts = []
    while start < stop:
        part = _read_range(found, path, start, stop, pin=pin, copies=copies)
        parts.append(part)
        start += len(part)
        if start < stop and not is_asked:
            size, is_asked = _size_of(found, path), True
            stop = stop if size is None else min(stop, size)
        if start < stop and not part:
            if size is None:
                break
            raise OSError(f"the store sent nothing of bytes {start:,} to {stop:,} of {size:,}")
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _size_of(found: Any, path: str) -> int | None:
    """The size of a file; None if the store does not state it."""
    size = found.info(path).get("size")
    return None if size is None else int(size)


def _read_range(
    found: Any, path: str, start: int, stop: int, *, pin: str, copies: dict[str, Staged]
) -> bytes:
    """The answer to one request: bytes from ``start`` on, at most up to ``stop``."""
    if found.protocol == "zip":
        return read_part(found, path, start, stop)
    if "http" in found.protocol:
        if path not in copies:
            part: bytes | None = sync(found.loop, _http_range, found, path, start, stop)
            if part is not None:
                return part
        return _copied(found, path, copies, stop=stop).read(start, stop)
    if not pin:
        return bytes(found.cat_file(path, start=start, end=stop))
    if "s3" not in found.protocol:
        return bytes(found.cat_file(path, start=start, end=stop, generation=pin))
    # The only s3fs function that takes a precondition and retries when a connection breaks.
    from s3fs.core import _fetch_range

    bucket, key, version = found.split_path(path)
    return bytes(_fetch_range(found, bucket, key, version, start, stop, req_kw={"IfMatch": pin}))


async def _http_range(found: Any, url: str, start: int, stop: int) -> bytes | None:
    """Asks a web server for a range.

    One without support for ranges sends the complete file: its beginning is read up to ``stop``;
    None if the range begins later.
    """
    options = {**found.kwargs}
    # Compressed on the way, parts would be those of other bytes.
    wanted = {"Accept-Encoding": "identity", "Range": f"bytes={start}-{stop - 1}"}
    headers = {**options.pop("headers", {}), **wanted}
    session = await found.set_session()
    async with session.get(found.encode_url(url), headers=headers, **options) as response:
        if response.status == _NOT_SATISFIABLE:  # the file ends before
            return b""
        found._raise_not_found_for_status(response, url)
        if response.status == _PARTIAL:
            return bytes(await response.read())
        if start:
            return None
        try:
            return bytes(await response.content.readexactly(stop))
        except asyncio.IncompleteReadError as error:
            return error.partial


def _copied(found: Any, url: str, copies: dict[str, Staged], *, stop: int) -> Staged:
    """A copy of a web server's file, at most as long as the server states, else up to ``stop``."""
    if url not in copies:
        size, copy = _size_of(found, url), Staged()
        wanted = stop if size is None else size
        with open_remote(found, url, chunk_bytes=_COPY_BYTES) as file:
            while copy.num_bytes < wanted and (
                piece := file.read(min(_COPY_BYTES, wanted - copy.num_bytes))
            ):
                copy.append(piece)
                advance()
        if size is None:
            return copy
        copies[url] = copy
    return copies[url]


def open_remote(found: Any, path: str, *, chunk_bytes: int) -> Any:
    """Opens a file of an fsspec filesystem to read it once, from start to end, in chunks."""
    if "http" in found.protocol:
        # As one stream: the server may not support ranges.
        return found.open(path, "rb", block_size=0)
    return found.open(path, "rb", block_size=chunk_bytes, cache_type="none")


def find_remote(found: Any, path: str) -> dict[str, dict[str, Any]]:
    """All files below a folder of an fsspec filesystem, with what the store says of each, by name.

    Names of a store are keys, as it lists them: ``d//x`` and ``d/x`` are two files.

    Raises:
        OSError: if a page of the listing is not as it says.
    """
    if "s3" not in found.protocol:
        return dict(found.find(path, detail=True))
    bucket = found.split_path(path)[0]
    return {
        f"{bucket}/{key['Key']}": {
            **key,
            "name": f"{bucket}/{key['Key']}",
            "size": key["Size"],
            "type": "file",
        }
        for page in _s3_pages(found, path)
        for key in page.get("Contents", ())
    }


def names_remote(found: Any, path: str) -> set[str]:
    """Names directly in a folder of an fsspec filesystem.

    Raises:
        OSError: if a page of the listing is not as it says.
    """
    if "s3" not in found.protocol:
        inside = path.rstrip("/") + "/"
        listed = (name.rstrip("/") for name in found.ls(path, detail=False))
        return {name.rpartition("/")[2] for name in listed if name.startswith(inside)}
    pages = list(_s3_pages(found, path, Delimiter="/"))
    keys = [key["Key"] for page in pages for key in page.get("Contents", ())]
    keys += [key["Prefix"][:-1] for page in pages for key in page.get("CommonPrefixes", ())]
    return {key.rpartition("/")[2] for key in keys} - {""}


def _s3_pages(found: Any, path: str, **options: Any) -> Iterator[dict[str, Any]]:
    """The pages of S3's listing of a folder.

    Not by the functions of s3fs: to them an answer without content is the last page.

    Raises:
        OSError: if a page has not as many keys as it says, or does not say what follows.
    """
    bucket, key, _ = found.split_path(path)
    options |= {"Bucket": bucket, "Prefix": key and f"{key}/", **found.req_kw}
    while True:
        page = found.call_s3("list_objects_v2", **options)
        advance()
        num_keys = sum(len(page.get(kind, ())) for kind in ("Contents", "CommonPrefixes"))
        more = page.get("IsTruncated")
        if more is None or page.get("KeyCount", num_keys) != num_keys:
            stated = page.get("KeyCount", "no number of")
            raise OSError(f"a page of the listing states {stated} keys and holds {num_keys}")
        yield page
        if not more:
            return
        if "NextContinuationToken" not in page:
            raise OSError("a page of the listing does not say how it continues")
        options["ContinuationToken"] = page["NextContinuationToken"]


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
