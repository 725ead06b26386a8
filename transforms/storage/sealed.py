"""Sealed files: those of the workspace that a later build relies on, headed by their hash.

A flipped bit, a truncated file or one that belongs elsewhere must not pass for something known:
it is as good as none, and what made it is done again. Runs and their key files are too large to
be read before they are used; theirs are checked batch by batch (``runs``).
"""

from __future__ import annotations

import errno
import hashlib

from ...schemas.errors import StorageError
from .. import storage
from .failures import is_missing, store_answer

_BAD_DISK = {errno.EIO, errno.EBADMSG, getattr(errno, "EUCLEAN", errno.EIO)}


def put_sealed(url: str, body: bytes, *, what: str) -> None:
    """Puts a file in place with a first line that says what it is, and the hash of the rest.

    Args:
        url: Where to.
        body: Its content.
        what: Its kind and version, and whose it is: one line of ASCII.

    Raises:
        StorageError: if it cannot be written.
    """
    storage.put_bytes(url, _head(what, body) + body)


def read_sealed(url: str, *, what: str) -> bytes | None:
    """The content of a sealed file; None where it is missing, or not as it was written.

    Raises:
        StorageError: if it cannot be read for another reason, such as a lack of permission.
    """
    try:
        content = storage.read_bytes(url)
    except StorageError as error:
        if is_lost(error):
            return None
        raise
    head, newline, body = content.partition(b"\n")
    return body if head + newline == _head(what, body) else None


def stored_digest(url: str, *, what: str) -> str | None:
    """The hash that heads a sealed file; its content is not read.

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


def put_named(url: str, content: bytes) -> None:
    """Puts a file that is named by its content in place, unless it lies there, whole.

    Raises:
        StorageError: if it cannot be written, or what is there cannot be read.
    """
    try:
        if storage.read_bytes(url) == content:
            return
    except StorageError as error:
        if not is_lost(error):
            raise
    storage.put_bytes(url, content)


def is_lost(error: StorageError) -> bool:
    """Whether a file could not be read because it is gone, or on a bad place of the disk."""
    cause = error.__context__
    if cause is None or is_missing(cause):
        return cause is not None
    if store_answer(cause) is not None:
        # s3fs tells with a disk's number that a store is busy.
        return False
    return isinstance(cause, OSError) and cause.errno in _BAD_DISK


def _head(what: str, body: bytes) -> bytes:
    return f"snapshard {what} {hashlib.sha256(body).hexdigest()}\n".encode("ascii")
