"""The files in a snapshot's folder: their names and kinds; reads them by range.

Only regular files are opened: reading a pipe in place of a shard would never end.
"""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import os
import stat
from collections.abc import Iterable

from ..schemas.naming import join
from ..transforms import storage

CHUNK_BYTES = 16 << 20
_BYTECODE = "__pycache__"
"""Python creates it when a trainer imports the reader from the snapshot."""
_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFBLK: "a device",
    stat.S_IFCHR: "a device",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class FoundFile:
    """What a name refers to."""

    num_bytes: int = 0
    other: str | None = None
    """Its kind, if it is not a regular file: "a folder", "a link to /x (nothing is there)"."""
    outside: str | None = None
    """Its target, if a link leads out of the snapshot."""
    trouble: str | None = None
    """Why it cannot be examined."""


class SnapshotFiles:
    """The files of one snapshot. Counts the bytes that are read."""

    def __init__(self, folder: str) -> None:
        """``folder`` is a local path or URL; nothing is read yet."""
        self.folder = folder
        self.num_bytes_read = 0

    def look(self, names: Iterable[str]) -> tuple[dict[str, FoundFile], list[str], list[str]]:
        """Looks for files.

        Args:
            names: Those that should be there, relative to the folder.

        Returns:
            The files of these names that exist; the names of other files; and
            the folders that cannot be listed.

        Raises:
            StorageError: if a store cannot be listed.
        """
        if not storage.is_local(self.folder):
            return self._look_remote(list(names))
        root = storage.local_path(self.folder)
        real = os.path.realpath(root)
        wanted = list(names)
        found = {}
        for name in wanted:
            there = look_local(os.path.join(root, name), real)
            if there is not None:
                found[name] = there
        parents = {name[:end] for name in wanted for end in _slashes(name)}
        others: list[str] = []
        refused: list[str] = []
        for name in _walk(root, refused):
            if name not in found and name not in parents and _matters(name):
                others.append(name)
        return found, sorted(others), sorted(refused)

    def _look_remote(self, names: list[str]) -> tuple[dict[str, FoundFile], list[str], list[str]]:
        listed = storage.sizes(self.folder)
        sizes = {name: size for name, size in listed.items() if not name.endswith("/")}
        for name in names:
            # A listing may lag behind what was put.
            if name not in sizes and (size := storage.size_of(join(self.folder, name))) is not None:
                sizes[name] = size
        found = {name: FoundFile(num_bytes=sizes[name]) for name in names if name in sizes}
        folders = {name[:end] for name in sizes for end in _slashes(name)}
        found |= {name: FoundFile(other="a folder") for name in names if name in folders}
        return found, sorted(name for name in sizes if name not in found and _matters(name)), []

    def read(self, name: str, start: int = 0, stop: int | None = None) -> bytes:
        """Reads bytes [start, stop) of a file, to its end without a stop.

        Raises:
            StorageError: if it cannot be read.
        """
        content = storage.read_bytes(join(self.folder, name), start, stop)
        self.num_bytes_read += len(content)
        return content

    def sha256(self, name: str, num_bytes: int) -> str:
        """The hash, in hex, of a file of so many bytes; memory stays flat.

        Raises:
            StorageError: if it cannot be read.
        """
        hasher = hashlib.sha256()
        for start in range(0, num_bytes, CHUNK_BYTES):
            hasher.update(self.read(name, start, min(num_bytes, start + CHUNK_BYTES)))
        return hasher.hexdigest()


def _slashes(name: str) -> list[int]:
    return [at for at, letter in enumerate(name) if letter == "/"]


def _matters(name: str) -> bool:
    parts = name.split("/")
    return _BYTECODE not in parts[:-1] and not storage.TEMPORARY.fullmatch(parts[-1])


def look_local(path: str, root: str) -> FoundFile | None:
    """The file at a local path in a snapshot's folder, links resolved; None if there is none.

    Args:
        path: The path.
        root: The folder, links resolved.
    """
    try:
        there = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        if os.path.islink(path):
            return FoundFile(other=f"a link to {os.readlink(path)} (nothing is there)")
        return None
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:  # nothing can have such a name
            return None
        return FoundFile(trouble=str(error.strerror))
    except ValueError:
        # The filesystem cannot have such a name.
        return None
    real = os.path.realpath(path)
    outside = None if os.path.commonpath([real, root]) == root else real
    other = None
    if not stat.S_ISREG(there.st_mode):
        other = _KINDS.get(stat.S_IFMT(there.st_mode), "no file")
    return FoundFile(num_bytes=there.st_size, other=other, outside=outside)


def _walk(root: str, refused: list[str]) -> Iterable[str]:
    """The names of everything below a folder except folders; links are not followed."""

    def note(error: OSError) -> None:
        refused.append(os.path.relpath(str(error.filename), root))

    for folder, below, names in os.walk(root, onerror=note):
        links = [name for name in below if os.path.islink(os.path.join(folder, name))]
        for name in (*names, *links):
            yield os.path.relpath(os.path.join(folder, name), root)
