"""Local files: as a source lists them, their hashes and identities."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import threading
import time

from ...schemas.blocks import SourceFile
from ...schemas.errors import RecipeError
from .unchanged import stamp_of_local

_EFFECTIVE_IDS = os.access in os.supports_effective_ids
_ALL_READ = stat.S_IRUSR | stat.S_IRGRP | stat.S_IROTH
NO_PERMISSION = "no permission to read"
LINK_LOOP = "symbolic link loop"
LINK_OUT = (
    "symbolic link that leads out of the source's folder; limits=ss.Limits(follow_links=True) in "
    "the recipe allows it"
)
_KINDS = (
    (stat.S_ISFIFO, "named pipe"),
    (stat.S_ISSOCK, "socket"),
    (stat.S_ISBLK, "block device"),
    (stat.S_ISCHR, "character device"),
    (stat.S_ISDIR, "folder"),
    (stat.S_ISREG, "file"),
    (lambda mode: True, "special file"),
)


def kind_of(mode: int) -> str:
    """The kind of a local path by its ``st_mode``, for messages: ``named pipe``."""
    return next(name for test, name in _KINDS if test(mode))


def unreadable(path: str, problem: str) -> SourceFile:
    """The listing entry of a file that will become a reject."""
    return SourceFile(path=path, num_bytes=0, stamp="", problem=problem)


def leads_out(full: str, real_root: str) -> bool:
    """Whether a local path, with links resolved, is outside a folder."""
    found = os.path.realpath(full)
    return os.path.commonpath([found, real_root]) != real_root


def inspect_file(full: str, path: str) -> tuple[SourceFile, tuple[int, int] | None]:
    """A local file as listed; for a folder also its identity: (device, inode)."""
    # A problem is part of a block's name: it must never contain the location of the source.
    try:
        found = os.stat(full)
    except OSError as error:
        problem = f"cannot be looked at: {error.strerror}"
        if error.errno == errno.ELOOP:
            problem = LINK_LOOP
        elif isinstance(error, FileNotFoundError | NotADirectoryError):
            problem = "dangling symbolic link" if os.path.islink(full) else "vanished while listed"
        return unreadable(path, problem), None
    if stat.S_ISDIR(found.st_mode):
        return unreadable(path, ""), (found.st_dev, found.st_ino)
    if not stat.S_ISREG(found.st_mode):
        return unreadable(path, f"{kind_of(found.st_mode)}, expected a file"), None
    # If everyone may read, only an access list could forbid it, and reading will show that.
    readable = found.st_mode & _ALL_READ == _ALL_READ
    if not readable and not os.access(full, os.R_OK, effective_ids=_EFFECTIVE_IDS):
        return unreadable(path, NO_PERMISSION), None
    return SourceFile(path=path, num_bytes=found.st_size, stamp=stamp_of_local(found)), None


Identity = tuple[int, int, int, int, int]
"""Device, inode, size, times of the last change of content and of inode in ns."""

_SETTLED_NS = 2_000_000_000
"""A file written more recently may change again within one tick of the filesystem's clock."""
_DIGESTS: dict[str, tuple[Identity, str]] = {}
_LOCK = threading.Lock()


def identity_of(path: str) -> Identity | None:
    """Changes when a file is replaced or written; None if there is no file."""
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    if not stat.S_ISREG(found.st_mode):
        return None
    times = (found.st_mtime_ns, found.st_ctime_ns)
    return (found.st_dev, found.st_ino, found.st_size, *times)


def file_digest(path: str) -> str:
    """The sha256 of a local file, in hex; cached while the file's identity is unchanged.

    Raises:
        RecipeError: if it cannot be read.
    """
    identity = identity_of(path)
    with _LOCK:
        known = _DIGESTS.get(path)
    if identity is not None and known is not None and known[0] == identity:
        return known[1]
    try:
        with open(path, "rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise RecipeError(
            f"The recipe depends on {path}, which cannot be read: {error.strerror}. Make it "
            "readable, or correct the path."
        ) from None
    settled = identity is not None and max(identity[3:]) < time.time_ns() - _SETTLED_NS
    if identity is not None and settled and identity_of(path) == identity:
        with _LOCK:
            _DIGESTS[path] = identity, found
    return found
