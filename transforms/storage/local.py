"""Local files: puts that are atomic, and that survive a power failure.

A file is synced, then named, then the folder that holds the name is synced. A file that could not
be synced must not count as finished: when a put fails, the file is not there.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import shutil
import tempfile
import uuid
import weakref
from collections.abc import Callable, Iterator

TEMPORARY = re.compile(r"\.[0-9a-f]{32}\.tmp")
"""Names of files that are being put: a killed process may leave them behind."""

SCRATCH = "snapshard-"
"""Prefix of the names of scratch folders."""
_HELD = ".held"
"""Suffix of the names of folders that are locked while in use."""

_ATTEMPTS = 5


class Staged:
    """An unnamed temporary file: nothing is left behind, however the process ends."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(prefix="snapshard-", buffering=0)  # noqa: SIM115
        self.num_bytes = 0
        weakref.finalize(self, self._file.close)

    def append(self, piece: bytes) -> None:
        """Appends a piece."""
        view = memoryview(piece)
        while view:
            written = self._file.write(view)
            view = view[written:]
        self.num_bytes += len(piece)

    def read(self, start: int, stop: int) -> bytes:
        """Bytes [start, stop); fewer at the end."""
        parts = []
        while start < stop and (part := os.pread(self._file.fileno(), stop - start, start)):
            parts.append(part)
            start += len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)


def temporary_name() -> str:
    """An unused name that matches :data:`TEMPORARY`."""
    return f".{uuid.uuid4().hex}.tmp"


def put_bytes_locally(path: str, content: bytes) -> None:
    """Puts a file in place; makes its folder if needed.

    Raises:
        OSError: if it cannot be written; an existing file is then untouched.
    """

    def fill(temporary: str) -> None:
        with open(temporary, "xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())

    _put(path, fill)


@contextlib.contextmanager
def naming_durably() -> Iterator[NewNames]:
    """Makes the names durable that the body gives to synced files: each folder is synced once."""
    names = NewNames()
    try:
        yield names
        for folder in names.folders:
            fsync_folder(folder)
    except Exception:
        # A second sync would not report it: the kernel reports a failure once. A file that replaced
        # another one stays, because that one is gone; both are complete.
        for path in names.new:
            with contextlib.suppress(OSError):
                os.unlink(path)
        raise


class NewNames:
    """The names that synced files were given, before their folders are synced."""

    def __init__(self) -> None:
        """Nothing is named yet."""
        self.folders: dict[str, None] = {}
        self.new: list[str] = []
        """Paths at which there was no file before."""

    def put(self, local: str, path: str) -> None:
        """Renames a synced file to its place; across filesystems it is copied, then removed.

        Raises:
            OSError: if it cannot be written; an existing file is then untouched.
        """

        def rename() -> None:
            make_folders(os.path.dirname(path))
            self.rename(local, path)

        try:
            _again_where_cleared(rename)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
        else:
            return

        def fill(temporary: str) -> None:
            shutil.copyfile(local, temporary)
            fsync_file(temporary)

        _put(path, fill)
        os.unlink(local)

    def rename(self, synced: str, path: str) -> None:
        """Renames a synced file in its filesystem."""
        is_new = not os.path.lexists(path)
        os.replace(synced, path)
        self.folders[os.path.dirname(path)] = None
        if is_new:
            self.new.append(path)


def remove_unfinished(folder: str) -> None:
    """Removes unfinished files of killed processes; a process still writing one will retry."""
    for parent, _, names in os.walk(folder):
        for name in filter(TEMPORARY.fullmatch, names):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(parent, name))


def _put(path: str, fill: Callable[[str], None]) -> None:
    """Fills a file next to its place and names it."""

    def put() -> None:
        with _temporary_beside(path) as temporary:
            fill(temporary)
            with naming_durably() as names:
                names.rename(temporary, path)

    _again_where_cleared(put)


def _again_where_cleared(act: Callable[[], None]) -> None:
    """Acts; retries if another process removed the temporary file or its folder."""
    for attempt in range(_ATTEMPTS):
        try:
            act()
        except FileNotFoundError:
            if attempt == _ATTEMPTS - 1:
                raise
        else:
            return


def fsync_folder(folder: str) -> None:
    """Makes the names in a local folder durable: without it a rename may not survive a crash."""
    descriptor = os.open(folder or ".", os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network filesystems cannot sync a folder.
        if error.errno != errno.EINVAL:
            raise
    finally:
        os.close(descriptor)


def sync_tree(folder: str) -> None:
    """Makes the names in a folder and its subfolders durable, and its own name and its parent's."""
    for parent, _, _ in os.walk(folder, topdown=False):
        fsync_folder(parent)
    above = os.path.dirname(os.path.abspath(folder))
    for parent in (above, os.path.dirname(above)):
        # The user may be allowed to enter an output root but not to list it.
        with contextlib.suppress(PermissionError):
            fsync_folder(parent)


def sizes_locally(folder: str) -> Iterator[tuple[str, int]]:
    """Name, relative to a folder, and length of each file below it.

    Files that vanish meanwhile, such as temporary ones of a concurrent build, are left out.
    """
    for parent, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(parent, name)
            with contextlib.suppress(FileNotFoundError):
                yield os.path.relpath(path, folder), os.stat(path).st_size


def make_folders(folder: str) -> None:
    """Makes a folder and its parents, durably.

    Raises:
        OSError: if it cannot be made; EOPNOTSUPP if the filesystem, such as /proc, has none.
    """
    if not folder or os.path.isdir(folder):
        return
    parent = os.path.dirname(folder)
    make_folders(parent)
    try:
        try:
            os.mkdir(folder)
        except FileNotFoundError:
            make_folders(parent)  # another process may have removed it meanwhile
            os.mkdir(folder)
    except FileNotFoundError:
        if not os.path.isdir(parent or "."):
            raise
        number = errno.EOPNOTSUPP
        raise OSError(number, os.strerror(number), folder) from None
    except FileExistsError:
        if not os.path.isdir(folder):
            raise
    # A folder that the user may enter but not list cannot be synced either.
    with contextlib.suppress(PermissionError):
        fsync_folder(parent)


@contextlib.contextmanager
def _temporary_beside(path: str) -> Iterator[str]:
    """A free name in the folder of ``path``, which is made if needed; removed on failure."""
    folder = os.path.dirname(path)
    make_folders(folder)
    temporary = os.path.join(folder, temporary_name())
    try:
        yield temporary
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def fsync_file(path: str) -> None:
    """Makes the content of a file durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def held_folder(parent: str | None = None) -> Iterator[str]:
    """A new folder for work in progress, locked while this process lives and uses it.

    The kernel drops the lock when the process dies: that is how :func:`abandoned_folders` finds
    what killed processes left.

    Args:
        parent: The folder to make it in; by default the system's temporary folder.

    Raises:
        OSError: if it cannot be made.
    """
    descriptor = -1
    while descriptor < 0:
        folder = tempfile.mkdtemp(prefix=SCRATCH, suffix=_HELD, dir=parent)
        # Another process may have removed the folder before it was locked.
        with contextlib.suppress(FileNotFoundError):
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            with contextlib.suppress(OSError):  # a filesystem without locks: nothing is removed
                fcntl.flock(descriptor, fcntl.LOCK_SH)
            if not os.path.isdir(folder):
                os.close(descriptor)
                descriptor = -1
    try:
        yield folder
    finally:
        try:
            os.rmdir(folder)  # as its files are elsewhere by now
        except OSError:
            # Not a TemporaryDirectory, which recurses endlessly where permission was lost. What
            # cannot be removed here is removed by the next build or garbage collection.
            shutil.rmtree(folder, ignore_errors=True)
        os.close(descriptor)


@contextlib.contextmanager
def abandoned_folders(parent: str) -> Iterator[list[str]]:
    """The folders of :func:`held_folder` whose processes are gone, locked while the body runs.

    Other users' folders, folders on filesystems without locks, and links are left out.
    """
    with contextlib.ExitStack() as closing:
        folders = []
        with contextlib.suppress(OSError), os.scandir(parent) as entries:
            for entry in entries:
                if not (entry.name.startswith(SCRATCH) and entry.name.endswith(_HELD)):
                    continue
                with contextlib.suppress(OSError):
                    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
                    descriptor = os.open(entry.path, flags)
                    closing.callback(os.close, descriptor)
                    if os.fstat(descriptor).st_uid == os.geteuid():
                        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        folders.append(entry.path)
        yield sorted(folders)


def remove_abandoned_folders(parent: str) -> None:
    """Removes the folders of killed processes from a folder for temporary files."""
    with abandoned_folders(parent) as found:
        for folder in found:
            shutil.rmtree(folder, ignore_errors=True)
