"""Who is at work in a workspace: builds share it, garbage collection wants it alone.

Locks are advisory and the kernel's: a killed process holds none. Object stores have none.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator

from ..schemas.naming import Workspace, join
from ..transforms import storage

LOCK = "lock"
"""The file in the workspace that locks are held on; it stays empty, and is never removed."""


@contextlib.contextmanager
def building(workspace: Workspace) -> Iterator[None]:
    """Keeps garbage collection out while a build runs; waits where one is at work.

    Builds do not keep each other out. Where no lock can be held, on object stores, on
    filesystems without locks and where nothing may be written, this does nothing.

    Raises:
        StorageError: if the workspace cannot be made.
    """
    if not storage.is_local(workspace.root):
        yield
        return
    with contextlib.ExitStack() as closing:
        descriptor = _open(workspace)
        if descriptor is not None:
            closing.callback(os.close, descriptor)
            with contextlib.suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_SH)
        yield


@contextlib.contextmanager
def alone(workspace: Workspace, *, write: bool = True) -> Iterator[bool | None]:
    """Keeps builds out, without waiting.

    Args:
        workspace: The workspace to have alone.
        write: False makes nothing: where no build ever was, one may begin meanwhile.

    Yields:
        True where no build is at work and none will begin; False where one is; None where that
        cannot be told.

    Raises:
        StorageError: if the workspace cannot be made.
    """
    if not storage.is_local(workspace.root):
        yield None
        return
    if not write and not storage.exists(join(workspace.root, LOCK)):
        yield True
        return
    with contextlib.ExitStack() as closing:
        descriptor = _open(workspace)
        held: bool | None = None
        if descriptor is not None:
            closing.callback(os.close, descriptor)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                held = True
            except OSError as error:
                held = False if error.errno == errno.EWOULDBLOCK else None
        yield held


def _open(workspace: Workspace) -> int | None:
    """Opens the file that locks are held on; None where that is not allowed."""
    root = storage.local_path(workspace.root)
    path = join(root, LOCK)
    with storage.failing_as_storage_error("write", workspace.root):
        try:
            os.makedirs(root, exist_ok=True)
            return os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
                raise
        try:
            return os.open(path, os.O_RDONLY)
        except OSError:
            return None
