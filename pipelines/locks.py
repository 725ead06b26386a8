"""Locks of a workspace: builds share it, garbage collection needs it exclusively.

Locks are advisory and held by the kernel: a killed process holds none. Where there are no locks, on
object stores and some network filesystems, a build leaves a marker and renews it. A marker counts
while it is recent: that of a killed build stops garbage collection for a day, and never a build.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import threading
import time
import uuid
from collections.abc import Iterator

from ..schemas.errors import StorageError
from ..schemas.naming import Workspace, join
from ..transforms import storage
from ..transforms.activity import unnoticed, waiting_to
from ..transforms.storage.unchanged import modified_ns

LOCK = "lock"
"""The file in the workspace that locks are held on; it stays empty and is never removed."""

MARKERS = "building"
"""The folder in the workspace for markers of builds that hold no lock."""

SAFE_AGE_S = 24 * 3600
"""Without locks, files younger than this are kept, and markers count."""

_RENEWAL_S = 3600.0


@contextlib.contextmanager
def building(workspace: Workspace) -> Iterator[None]:
    """Keeps garbage collection out while a build runs; waits while one is running.

    Builds do not keep each other out. Where no lock can be held, on object stores and on
    filesystems without locks, a marker says so; where nothing may be written, nothing does.

    Raises:
        StorageError: if the workspace cannot be made.
    """
    with contextlib.ExitStack() as closing:
        if not storage.is_local(workspace.root):
            closing.enter_context(_marking(workspace))
        elif (descriptor := _open(workspace)) is not None:
            closing.callback(os.close, descriptor)
            lock = join(workspace.root, LOCK)
            try:
                with waiting_to(f"lock {lock}, which `snapshard gc` may hold"):
                    fcntl.flock(descriptor, fcntl.LOCK_SH)
            except OSError:
                closing.enter_context(_marking(workspace))
        yield


@contextlib.contextmanager
def _marking(workspace: Workspace) -> Iterator[None]:
    """Leaves a marker, renews it while the body runs, and removes it at the end."""
    marker = join(workspace.root, MARKERS, uuid.uuid4().hex)
    ended = threading.Event()

    def mark() -> None:
        # Who may not write here builds nothing, and one marker that is late is no harm.
        with contextlib.suppress(StorageError):
            storage.put_bytes(marker, b"")

    @unnoticed()
    def renew() -> None:
        while not ended.wait(_RENEWAL_S):
            mark()

    mark()
    thread = threading.Thread(target=renew, name="mark_building", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        with contextlib.suppress(StorageError):
            storage.remove_tree(marker)


def _is_marked(workspace: Workspace) -> bool:
    """Whether there is a recent marker of a build."""
    folder = join(workspace.root, MARKERS)
    limit = time.time_ns() - SAFE_AGE_S * 10**9
    times = [_modified_ns(join(folder, name)) for name in storage.list_names(folder)]
    return any(modified is None or modified > limit for modified in times)


def _modified_ns(url: str) -> int | None:
    """When a file was last written; 0 if it is missing, None if the store does not say."""
    with storage.failing_as_storage_error("read", url):
        try:
            if storage.is_local(url):
                return os.lstat(storage.local_path(url)).st_mtime_ns
            found, path = storage.filesystem(url)
            return modified_ns(found.info(path))
        except FileNotFoundError as error:
            if not storage.is_missing(error):
                raise
            return 0


@contextlib.contextmanager
def alone(workspace: Workspace, *, write: bool = True) -> Iterator[bool | None]:
    """Keeps builds out, without waiting.

    Args:
        workspace: The workspace to have alone.
        write: False makes nothing: where no build ever was, one may begin meanwhile.

    Yields:
        True where no build is at work and none will begin; False where one is; None where that
        is unknown.

    Raises:
        StorageError: if the workspace cannot be made.
    """
    if not storage.is_local(workspace.root):
        yield False if _is_marked(workspace) else None
        return
    with contextlib.ExitStack() as closing:
        makes = write or storage.exists(join(workspace.root, LOCK))
        # A folder shows as well whether locks work there, so that a dry run tells what a real one
        # would do.
        descriptor = _open(workspace) if makes else _open_folder(workspace)
        held: bool | None = None
        if descriptor is not None:
            closing.callback(os.close, descriptor)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                held = True
            except OSError as error:
                held = False if error.errno == errno.EWOULDBLOCK else None
        yield False if held is None and _is_marked(workspace) else held


def _open_folder(workspace: Workspace) -> int | None:
    root = storage.local_path(workspace.root)
    for folder in (root, os.path.dirname(root)):
        with contextlib.suppress(OSError):
            return os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    return None


def _open(workspace: Workspace) -> int | None:
    """Opens the file that locks are held on; None if that is not permitted."""
    root = storage.local_path(workspace.root)
    path = join(root, LOCK)
    with storage.failing_as_storage_error("write", workspace.root):
        try:
            storage.make_folders(root)
            return os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
                raise
        try:
            return os.open(path, os.O_RDONLY)
        except OSError:
            return None
