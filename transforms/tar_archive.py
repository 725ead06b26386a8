"""Tar archives as filesystems: their members are found once, and then read by position.

Reading by position needs no shared place in a file, so threads and forked processes read side by
side, which ``tarfile`` (and fsspec's own ``tar://``, built on it) does not allow. A compressed
archive knows no positions: it is decompressed once, in pieces, to an unnamed file in the temporary
folder (``TMPDIR``), which vanishes with the process.

Nothing is ever unpacked to a path that an archive names.
"""

from __future__ import annotations

import dataclasses
import io
import os
import posixpath
import tempfile
import weakref
from typing import Any

from fsspec.archive import AbstractArchiveFileSystem

from ..schemas.errors import DataError
from ..schemas.limits import FREE_BYTES
from .ranges import Ranges, Read
from .sources.decompress import (
    MAGIC_BYTES,
    MAX_EXPANSION,
    DamagedError,
    compression_of,
    decompressed,
)
from .tar_headers import BLOCK_BYTES, NoTarError, TarDamagedError, TarHeaders, TarMember

LEADS_OUT = "path that leads out of its archive"
MAX_NAME_BYTES = 4096
"""The longest path of a file system, too. Longer ones take time and memory that grow faster."""

_SUFFIXES = (".tar", ".tgz", ".tbz2", ".txz", ".tar.gz", ".tar.bz2", ".tar.xz", ".tar.zst")
_BUFFER_BYTES = 256 << 10
_PADDING_BYTES = 64 << 10
"""So much behind the end is looked at: tapes' blocks are filled up with zeros."""


def archive_scheme(name: str) -> str | None:
    """The fsspec protocol of archives that are called so: ``zip``, ``tar``, or None.

    >>> archive_scheme("photos.ZIP"), archive_scheme("a.tar.gz"), archive_scheme("a.csv.gz")
    ('zip', 'tar', None)
    """
    lowered = name.lower()
    if lowered.endswith(".zip"):
        return "zip"
    return "tar" if lowered.endswith(_SUFFIXES) else None


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class _Member:
    offset: int
    num_bytes: int
    problem: str = ""


class TarArchive(AbstractArchiveFileSystem):
    """The regular files of a tar archive, compressed or not; links to them count as they do."""

    protocol = "tar"
    cachable = False
    root_marker = ""

    def __init__(
        self,
        read: Read,
        *,
        num_bytes: int,
        stamp: str,
        name: str,
        max_expansion: int = MAX_EXPANSION,
    ) -> None:
        """Finds the members: reads all of their headers.

        Args:
            read: Reads the archive's file.
            num_bytes: Its length.
            stamp: What changes with its content.
            name: What it is called, in messages.
            max_expansion: How many times its length its files may have together: compressed, or
                as links to one another.

        Raises:
            DataError: if it is no tar archive.
        """
        super().__init__()
        self._name, self._stamp = name, stamp
        self._damage = ""
        max_bytes = max(FREE_BYTES, max_expansion * num_bytes)
        compression = compression_of(read(0, MAGIC_BYTES))
        if compression:
            read, num_bytes = self._stage(read, compression, max_expansion)
        self._read, self._num_bytes = read, num_bytes
        self._members = self._find_members(max_bytes)

    def _stage(self, read: Read, compression: str, max_expansion: int) -> tuple[Read, int]:
        staged = Staged()
        try:
            for piece in decompressed(read, compression, max_expansion=max_expansion):
                staged.append(piece)
        except DamagedError as error:
            self._damage = str(error)
        return staged.read, staged.num_bytes

    def _find_members(self, max_bytes: int) -> dict[str, _Member]:
        found: dict[str, _Member] = {}
        links: dict[str, str] = {}
        file = io.BufferedReader(Ranges(self._read, self._num_bytes), _BUFFER_BYTES)
        cut_off = False

        def read(start: int, stop: int) -> bytes:
            if start >= self._num_bytes:
                return b""
            file.seek(start)
            return file.read(stop - start)

        headers = TarHeaders(read)
        try:
            for member in headers:
                path = _normal(member.name)
                if not path or member.kind == "folder":
                    continue
                if (num_bytes := len(path.encode("utf-8", "surrogateescape"))) > MAX_NAME_BYTES:
                    path = f"{path[:100]}… at byte {member.offset}"
                    found[path] = _unfit(too_long_name(num_bytes))
                    continue
                # Of two members of one name, the later one counts, as when it is unpacked.
                links.pop(path, None)
                if member.name.startswith("/") or ".." in path.split("/"):
                    found[path] = _unfit(LEADS_OUT)
                elif member.kind in ("symlink", "hardlink"):
                    folder = posixpath.dirname(path) if member.kind == "symlink" else ""
                    links[path] = posixpath.normpath(posixpath.join(folder, member.link))
                    found.pop(path, None)
                else:
                    found[path] = self._member(member)
                    cut_off = member.start + member.num_bytes > self._num_bytes
        except NoTarError as error:
            raise DataError(
                f"{self._name} is not a tar archive, or is damaged at its beginning "
                f"({self._damage or error}). Copy it again, or correct the source."
            ) from None
        except TarDamagedError as error:
            self._damage = self._damage or f"damaged from byte {headers.offset:,} on ({error})"
        else:
            self._damage = self._damage or self._behind(headers.offset)
        num_bytes = sum(member.num_bytes for member in found.values())
        for path, target in links.items():
            linked = None if target.startswith("/") else found.get(_normal(target))
            num_bytes += linked.num_bytes if linked else 0
            if num_bytes > max_bytes:
                # Links to one member may stand for any number of its bytes.
                found[path] = _unfit("link of an archive whose files repeat its content too often")
            else:
                found[path] = linked or _unfit("link to what its archive does not hold")
        if self._damage and not cut_off:
            found[self._name] = _unfit(f"the rest of the archive cannot be read: {self._damage}")
        return found

    def _member(self, member: TarMember) -> _Member:
        if member.kind == "special":
            return _unfit("special file, expected a file")
        if member.kind == "sparse":
            return _unfit("sparse file, which is not read from an archive")
        if member.start + member.num_bytes > self._num_bytes:
            num_bytes = max(0, self._num_bytes - member.start)
            why = self._damage or f"it ends at byte {self._num_bytes:,}"
            return _unfit(
                f"truncated: its archive holds {num_bytes:,} of {member.num_bytes:,} bytes ({why})"
            )
        return _Member(offset=member.start, num_bytes=member.num_bytes)

    def _behind(self, offset: int) -> str:
        """What is wrong behind the last member: an archive ends with zeros."""
        rest = self._read(offset, min(offset + _PADDING_BYTES, self._num_bytes))
        if len(rest) < BLOCK_BYTES:
            return f"it ends at byte {self._num_bytes:,} without the mark of an end"
        if rest[:BLOCK_BYTES].strip(b"\0"):
            return f"damaged from byte {offset:,} on (no valid header)"
        behind = self._num_bytes - offset
        if rest.strip(b"\0") or len(rest) < behind:
            return f"its end is marked at byte {offset:,}, and more follows"
        if behind % BLOCK_BYTES:
            return f"it ends at byte {self._num_bytes:,}, in the middle of a block of zeros"
        return ""

    def _get_dirs(self) -> None:
        """Nothing to do: members are found when the archive is opened."""

    def find(self, path: str, detail: bool = False, **_: Any) -> Any:
        """All files below a folder, by path."""
        prefix = f"{path.strip('/')}/" if path.strip("/") else ""
        found = {
            name: self._info(name)
            for name in self._members
            if name.startswith(prefix) or name == self._name
        }
        return found if detail else list(found)

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        """What is known of a file or folder.

        Raises:
            FileNotFoundError: if there is none.
        """
        path = path.strip("/")
        if path in self._members:
            return self._info(path)
        if not path or any(name.startswith(f"{path}/") for name in self._members):
            return {"name": path, "size": 0, "type": "directory"}
        raise FileNotFoundError(path)

    def _info(self, path: str) -> dict[str, Any]:
        member = self._members[path]
        return {
            "name": path,
            "size": member.num_bytes,
            "type": "file",
            # Where nothing is known of the archive, nothing is known of a member.
            "ETag": self._stamp and f"{self._stamp} {member.offset}",
            "problem": member.problem,
            "damage": path == self._name and bool(self._damage),
        }

    def cat_file(
        self, path: str, start: int | None = None, end: int | None = None, **_: Any
    ) -> bytes:
        """Bytes [start, end) of a file.

        Raises:
            FileNotFoundError: if there is none.
        """
        member = self._members.get(path)
        if member is None:
            raise FileNotFoundError(path)
        first = min(start or 0, member.num_bytes)
        last = member.num_bytes if end is None else min(end, member.num_bytes)
        return self._read(member.offset + first, member.offset + max(first, last))

    def _open(self, path: str, mode: str = "rb", **_: Any) -> Any:
        member = self._members.get(path)
        if member is None:
            raise FileNotFoundError(path)
        return io.BufferedReader(Ranges(self._read, member.num_bytes, member.offset))


class Staged:
    """An unnamed file: nothing is left behind, however the process ends."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(prefix="snapshard-", buffering=0)  # noqa: SIM115
        self.num_bytes = 0
        weakref.finalize(self, self._file.close)

    def append(self, piece: bytes) -> None:
        """Writes a piece behind the others."""
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


def _normal(name: str) -> str:
    """A member's name as paths are written below a root."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    return "/".join(parts)


def _unfit(problem: str) -> _Member:
    return _Member(offset=0, num_bytes=0, problem=problem)


def too_long_name(num_bytes: int) -> str:
    """The problem of a member whose path has more than :data:`MAX_NAME_BYTES`."""
    return f"path of {num_bytes:,} bytes, of which {MAX_NAME_BYTES:,} are allowed"
