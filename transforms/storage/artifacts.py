"""Artifacts: durable intermediate results, each in a file that begins with its sha256.

They are put atomically and checked when they are read. A damaged or truncated artifact, or one of
another kind, counts as missing, and is made again. Runs and their key files are too large to be
read before they are used: they have a checksum for each batch (``runs``).
"""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Iterable

from ...schemas.errors import StorageError
from .. import storage
from .failures import is_missing, store_answer

_BAD_DISK = {errno.EIO, errno.EBADMSG, getattr(errno, "EUCLEAN", errno.EIO)}


def put_artifact(url: str, body: bytes, *, what: str) -> None:
    """Puts an artifact: a first line with its kind and the sha256 of the rest, and its content.

    Args:
        url: Its file.
        body: Its content.
        what: Its kind, version and owner: one line of ASCII.

    Raises:
        StorageError: if it cannot be written.
    """
    storage.put_bytes(url, _head(what, body) + body)


def put_large_artifact(url: str, parts: Iterable[bytes], *, what: str, near: str) -> None:
    """Puts an artifact whose content is not held in memory.

    Args:
        url: Its file.
        parts: Its content, part by part.
        what: As for :func:`put_artifact`.
        near: The workspace, where an abandoned scratch folder is removed by the next build.

    Raises:
        StorageError: if it cannot be written.
    """
    hasher = hashlib.sha256()
    with storage.scratch_folder(near) as folder:
        path = os.path.join(folder, "artifact")
        with open(path, "xb") as file:
            file.write(_line(what, hasher.hexdigest()))
            for part in parts:
                hasher.update(part)
                file.write(part)
            file.seek(0)
            file.write(_line(what, hasher.hexdigest()))
        storage.put_file(path, url)


def write_artifact(path: str, body: bytes, *, what: str) -> None:
    """Writes an artifact to a new local file, which is then put in place with others."""
    with open(path, "xb") as file:
        file.write(_head(what, body) + body)


def read_artifact(url: str, *, what: str) -> bytes | None:
    """The content of an artifact; None if it is missing, damaged, or of another kind.

    Raises:
        StorageError: if it cannot be read for another reason, such as a lack of permission.
    """
    if _is_absent(url):
        return None
    try:
        content = storage.read_bytes(url)
    except StorageError as error:
        if is_lost(error):
            return None
        raise
    head, newline, body = content.partition(b"\n")
    return body if head + newline == _head(what, body) else None


def _is_absent(url: str) -> bool:
    """Whether a local file does not exist, as most do when they are asked for.

    Reading it would tell, too, but explaining its error takes ten times as long.
    """
    try:
        if storage.is_local(url):
            os.stat(storage.local_path(url))
    except OSError as error:
        return isinstance(error, FileNotFoundError)
    return False


def artifact_digest(url: str, *, what: str) -> str | None:
    """The sha256 in an artifact's first line, in hex; its content is not read.

    None if the file is missing or of another kind.

    Raises:
        StorageError: if it cannot be read for another reason, such as a lack of permission.
    """
    length = len(_head(what, b""))
    try:
        head = storage.read_bytes(url, 0, length)
    except StorageError as error:
        if is_lost(error):
            return None
        raise
    start = f"snapshard {what} ".encode("ascii")
    if len(head) != length or not head.startswith(start):
        return None
    return head.removeprefix(start).decode("ascii", "replace").rstrip("\n")


def put_if_changed(url: str, content: bytes) -> None:
    """Puts a file, unless it exists with this content.

    Raises:
        StorageError: if it cannot be written, or the existing file cannot be read.
    """
    try:
        if storage.read_bytes(url) == content:
            return
    except StorageError as error:
        if not is_lost(error):
            raise
    storage.put_bytes(url, content)


def is_lost(error: StorageError) -> bool:
    """Whether a file could not be read because it is missing, or on a bad sector of the disk."""
    cause = error.__context__
    if cause is None or is_missing(cause):
        return cause is not None
    if store_answer(cause) is not None:
        # s3fs reports a busy store with the error number of a disk.
        return False
    return isinstance(cause, OSError) and cause.errno in _BAD_DISK


def _head(what: str, body: bytes) -> bytes:
    return _line(what, hashlib.sha256(body).hexdigest())


def _line(what: str, sha256: str) -> bytes:
    return f"snapshard {what} {sha256}\n".encode("ascii")
