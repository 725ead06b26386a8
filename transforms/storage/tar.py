"""Headers of tar archives, read front to back; time and memory are bounded by the bytes read.

``tarfile`` parses single blocks. What spans several (long names, PAX records, sparse files) is
assembled here: ``tarfile`` follows a negative size backwards, and some of its versions take hours
for 1 MiB of PAX records.

Formats: https://pubs.opengroup.org/onlinepubs/9799919799/utilities/pax.html (ustar, pax) and
https://www.gnu.org/software/tar/manual/html_node/Standard.html (GNU).
"""

from __future__ import annotations

import dataclasses
import io
import posixpath
import tarfile
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from fsspec.archive import AbstractArchiveFileSystem

from ...schemas.errors import DataError
from ...schemas.limits import FREE_BYTES
from .decompress import (
    MAGIC_BYTES,
    MAX_EXPANSION,
    DamagedError,
    Ranges,
    Read,
    compression_of,
    decompressed,
)
from .local import Staged

BLOCK_BYTES = 512
MAX_HEADER_BYTES = 1 << 20
"""Maximum length of a name, link target or set of PAX records."""

Kind = Literal["file", "folder", "symlink", "hardlink", "sparse", "special"]

LINKS: tuple[Kind, ...] = ("symlink", "hardlink")
_KINDS: dict[bytes, Kind] = {
    tarfile.REGTYPE: "file",
    tarfile.AREGTYPE: "file",
    tarfile.CONTTYPE: "file",
    tarfile.DIRTYPE: "folder",
    tarfile.SYMTYPE: "symlink",
    tarfile.LNKTYPE: "hardlink",
    tarfile.GNUTYPE_SPARSE: "sparse",
}
_WITHOUT_CONTENT = frozenset(
    [
        tarfile.DIRTYPE,
        tarfile.SYMTYPE,
        tarfile.LNKTYPE,
        tarfile.CHRTYPE,
        tarfile.BLKTYPE,
        tarfile.FIFOTYPE,
    ]
)
_LONG = {tarfile.GNUTYPE_LONGNAME: "path", tarfile.GNUTYPE_LONGLINK: "linkpath"}
_PAX = frozenset([tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE])
_SPARSE = "GNU.sparse."
_MAX_DIGITS = 19


class TarDamagedError(ValueError):
    """A header that cannot be followed: the position of the next one is unknown."""


class NoTarError(TarDamagedError):
    """The first block is not a header."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class TarMember:
    """One member, as its headers describe it."""

    offset: int
    """Where its first header begins."""
    start: int
    """Where its content begins."""
    num_bytes: int
    """Length of its content in the archive; never negative."""
    name: str
    link: str
    kind: Kind


class TarHeaders:
    """The members of an archive, or of a part of one, in archive order."""

    def __init__(self, read: Read) -> None:
        """Stores what reads the archive, at positions that never go back."""
        self._read = read
        self.offset = 0
        """Where the next member is expected; at the end, where the last one ends."""

    def __iter__(self) -> Iterator[TarMember]:
        """Yields the members up to the first block that is not a header.

        Raises:
            TarDamagedError: if the next header cannot be found, or there is no header.
        """
        while (member := self._next()) is not None:
            yield member

    def _next(self) -> TarMember | None:
        described: dict[str, str] = {}
        position = self.offset
        while True:
            block = self._header(position)
            try:
                info = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
            except tarfile.HeaderError as error:
                if described:
                    raise TarDamagedError("an extended header without its member") from None
                if not self.offset and (len(block) < BLOCK_BYTES or block.strip(b"\0")):
                    raise NoTarError(str(error)) from None
                return None
            position += BLOCK_BYTES
            if info.size < 0:
                raise TarDamagedError(f"the member {info.name[:100]!r} states {info.size:,} bytes")
            if info.type in _LONG:
                text = self._extension(position, info.size).partition(b"\0")[0]
                # Of two values the first one counts, as in `tarfile`.
                described.setdefault(_LONG[info.type], text.decode("utf-8", "surrogateescape"))
            elif info.type in _PAX:
                for key, value in _pax_records(self._extension(position, info.size)).items():
                    described.setdefault(key, value)
            elif info.type == tarfile.XGLTYPE:
                if found := sorted(_pax_records(self._extension(position, info.size))):
                    raise TarDamagedError(f"a global header states {found[0]!r} of all members")
            else:
                return self._member(info, block, position, described)
            position += _padded(info.size)

    def _member(
        self, info: tarfile.TarInfo, block: bytes, start: int, described: dict[str, str]
    ) -> TarMember:
        stated = described.get(f"{_SPARSE}name", described.get("path", info.name))
        name = stated.rstrip("/") or stated  # only slashes: an absolute path
        num_bytes = info.size
        if (size := described.get("size")) is not None:
            if not (size.isascii() and size.isdigit() and len(size) <= _MAX_DIGITS):
                raise TarDamagedError(f"the member {name[:100]!r} states {size[:40]!r} bytes")
            num_bytes = int(size)
        if info.type in _WITHOUT_CONTENT:
            num_bytes = 0
        kind = _KINDS.get(info.type, "special")
        if kind == "sparse" and block[482]:
            more = True
            while more:
                block = self._read(start, start + BLOCK_BYTES)
                if len(block) < BLOCK_BYTES:
                    raise TarDamagedError(f"the headers of {name[:100]!r} are truncated")
                start += BLOCK_BYTES
                more = bool(block[504])
        if kind == "file" and any(key.startswith(_SPARSE) for key in described):
            kind = "sparse"
        member = TarMember(
            offset=self.offset,
            start=start,
            num_bytes=num_bytes,
            name=name,
            link=described.get("linkpath", info.linkname),
            kind=kind,
        )
        self.offset = start + _padded(num_bytes)
        return member

    def _header(self, position: int) -> bytes:
        if not position:
            return self._read(0, BLOCK_BYTES)
        # The byte before it shows whether the preceding content is complete.
        found = self._read(position - 1, position + BLOCK_BYTES)
        if not found:
            raise TarDamagedError("unexpected end of data")
        return found[1:]

    def _extension(self, start: int, num_bytes: int) -> bytes:
        if num_bytes > MAX_HEADER_BYTES:
            raise TarDamagedError(f"a header states {num_bytes:,} bytes")
        content = self._read(start, start + num_bytes)
        if len(content) < num_bytes:
            raise TarDamagedError("an extended header is truncated")
        return content


def _padded(num_bytes: int) -> int:
    return -(-num_bytes // BLOCK_BYTES) * BLOCK_BYTES


def _pax_records(content: bytes) -> dict[str, str]:
    """The records of an extended header that give a member's place and name."""
    records: dict[str, str] = {}
    position = 0
    while position < len(content) and content[position]:
        digits = content[position : position + _MAX_DIGITS + 1].partition(b" ")[0]
        length = int(digits) if digits.isdigit() and len(digits) <= _MAX_DIGITS else 0
        record = content[position : position + length]
        key, equals, value = record[len(digits) + 1 : -1].partition(b"=")
        if not (key and equals and len(record) == length and record.endswith(b"\n")):
            raise TarDamagedError("an extended header holds an invalid record")
        name = key.decode("utf-8", "surrogateescape")
        if name in ("path", "linkpath", "size") or name.startswith(_SPARSE):
            records[name] = value.decode("utf-8", "surrogateescape")
        position += length
    return records


LEADS_OUT = "path that leads out of its archive"
REPLACED = "replaced by a later member of the same name"
"""The problem of an earlier member, whose content does not count, as when unpacking."""
MAX_NAME_BYTES = 4096
"""Also the longest path of a filesystem. The cost of longer ones grows faster than their length."""

_SUFFIXES = (".tar", ".tgz", ".tbz2", ".txz", ".tar.gz", ".tar.bz2", ".tar.xz", ".tar.zst")
_NO_TARGET = "link to what its archive does not hold"
_MAX_LINKS = 40
"""Maximum number of links to follow, as in Linux."""
_BUFFER_BYTES = 256 << 10
_PADDING_BYTES = 64 << 10
"""How much after the end is checked: tapes pad their blocks with zeros."""


def archive_scheme(name: str) -> str | None:
    """The fsspec protocol for archives with such a name: ``zip``, ``tar``, or None.

    >>> archive_scheme("photos.ZIP"), archive_scheme("a.tar.gz"), archive_scheme("a.csv.gz")
    ('zip', 'tar', None)
    """
    lowered = name.lower()
    if lowered.endswith(".zip"):
        return "zip"
    return "tar" if lowered.endswith(_SUFFIXES) else None


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Content:
    """Where the content of a member is, or why it is not read."""

    start: int
    num_bytes: int
    problem: str = ""


def content_of(member: TarMember) -> Content:
    """The content of a member that is no link."""
    if member.kind == "special":
        return _unfit("special file, expected a file")
    if member.kind == "sparse":
        return _unfit("sparse file, which is not read from an archive")
    return Content(start=member.start, num_bytes=member.num_bytes)


class MemberFileSystem(AbstractArchiveFileSystem):
    """The files of an archive: their paths and facts, as fsspec asks for them."""

    cachable = False
    root_marker = ""
    _members: Mapping[str, Any]

    def _get_dirs(self) -> None:
        """Does nothing: members are found when the archive is opened."""

    def _is_file(self, path: str) -> bool:
        return path in self._members

    def _info(self, path: str) -> dict[str, Any]:
        """Name, size, type and problem of a file."""
        raise NotImplementedError

    def find(self, path: str, detail: bool = False, **_: Any) -> Any:
        """All files below a folder, by path."""
        prefix = f"{path.strip('/')}/" if path.strip("/") else ""
        below = [name for name in self._members if name.startswith(prefix) and self._is_file(name)]
        return {name: self._info(name) for name in below} if detail else below

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        """Name, size and type of a file or folder.

        Raises:
            FileNotFoundError: if it does not exist.
        """
        path = path.strip("/")
        if self._is_file(path):
            return self._info(path)
        is_above = any(name == path or name.startswith(f"{path}/") for name in self._members)
        if not path or is_above:
            return {"name": path, "size": 0, "type": "directory"}
        raise FileNotFoundError(path)


class TarArchive(MemberFileSystem):
    """The regular files of a tar archive, compressed or not, and links to them."""

    protocol = "tar"

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
            stamp: Changes whenever the content does.
            name: The archive's name, for messages.
            max_expansion: Maximum ratio of the total length of its files to ``num_bytes``: they
                may be compressed, or link to one another.

        Raises:
            DataError: if it is not a tar archive, or is damaged: it is unknown how many files
                it lacks.
        """
        super().__init__()
        self._name, self._stamp = name, stamp
        self._damage = ""
        max_bytes = max(FREE_BYTES, max_expansion * num_bytes)
        compression = compression_of(read(0, MAGIC_BYTES))
        if compression:
            read, num_bytes = self._stage(read, compression, max_expansion)
        self._read, self._num_bytes = read, num_bytes
        self._linked: dict[int, Content] = {}
        """What links lead to, by where their headers are."""
        self._members = self._find_members(max_bytes)

    def _stage(self, read: Read, compression: str, max_expansion: int) -> tuple[Read, int]:
        staged = Staged()
        try:
            for piece in decompressed(read, compression, max_expansion=max_expansion):
                staged.append(piece)
        except DamagedError as error:
            self._damage = str(error)
        return staged.read, staged.num_bytes

    def _find_members(self, max_bytes: int) -> dict[str, Content]:
        members: dict[str, Content] = {}
        links: dict[str, int] = {}
        """By path: where a link's header is."""
        targets: dict[int, str | Content] = {}
        """By place: the path of a symbolic link's target, or what a hard link is of."""
        file = io.BufferedReader(Ranges(self._read, self._num_bytes), _BUFFER_BYTES)

        def read(start: int, stop: int) -> bytes:
            if start >= self._num_bytes:
                return b""
            file.seek(start)
            return file.read(stop - start)

        headers = TarHeaders(read)
        try:
            for member in headers:
                path = normal_name(member.name)
                if not path or member.kind == "folder":
                    continue
                if (num_bytes := len(path.encode("utf-8", "surrogateescape"))) > MAX_NAME_BYTES:
                    path = f"{path[:100]}… at byte {member.offset}"
                    members[path] = _unfit(too_long_name(num_bytes))
                    continue
                if path in members or path in links:
                    members[f"{path} before byte {member.offset}"] = _unfit(REPLACED)
                    links.pop(path, None)
                if member.name.startswith("/") or ".." in path.split("/"):
                    members[path] = _unfit(LEADS_OUT)
                elif member.kind in LINKS:
                    folder = posixpath.dirname(path) if member.kind == "symlink" else ""
                    target = posixpath.normpath(posixpath.join(folder, member.link))
                    # A hard link is of what its target is now, even if that is replaced later.
                    is_hard = member.kind == "hardlink" and normal_name(target) in members
                    links[path] = member.offset
                    targets[member.offset] = members[normal_name(target)] if is_hard else target
                    members.pop(path, None)
                else:
                    members[path] = content_of(member)
        except NoTarError as error:
            raise DataError(
                f"{self._name} is not a tar archive, or is damaged at its beginning "
                f"({self._damage or error}). Copy it again, or correct the source."
            ) from None
        except TarDamagedError as error:
            self._damage = self._damage or f"damaged from byte {headers.offset:,} on ({error})"
        else:
            self._damage = self._damage or self._behind(headers.offset)
        if self._damage:
            last = f" after {next(reversed(members))!r}" if members else ""
            raise DataError(
                f"{self._name}: the archive cannot be read{last}: {self._damage}. It is unknown "
                "how many files it lacks: copy or create it again."
            )
        num_bytes = sum(member.num_bytes for member in members.values())
        links_to = {path: targets[offset] for path, offset in links.items()}
        for offset, linked_to in targets.items():
            linked = _resolved(linked_to, members, links_to)
            num_bytes += linked.num_bytes if linked else 0
            if num_bytes > max_bytes:
                # Links to one member may multiply its bytes without limit.
                linked = _unfit("link of an archive whose files repeat its content too often")
            self._linked[offset] = linked or _unfit(_NO_TARGET)
        return members | {path: self._linked[offset] for path, offset in links.items()}

    def linked(self, offset: int) -> Content:
        """What the link whose header is at this offset leads to."""
        return self._linked.get(offset, _unfit(_NO_TARGET))

    def read(self, start: int, stop: int) -> bytes:
        """Bytes [start, stop) of the archive, decompressed."""
        return self._read(start, stop)

    def _behind(self, offset: int) -> str:
        """What is wrong after the last member: an archive ends with zeros."""
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

    def _info(self, path: str) -> dict[str, Any]:
        member = self._members[path]
        return {
            "name": path,
            "size": member.num_bytes,
            "type": "file",
            # Members have a stamp only if the archive has one.
            "ETag": self._stamp and f"{self._stamp} {member.start}",
            "problem": member.problem,
        }

    def cat_file(
        self, path: str, start: int | None = None, end: int | None = None, **_: Any
    ) -> bytes:
        """Bytes [start, end) of a file.

        Raises:
            FileNotFoundError: if it does not exist.
        """
        member = self._members.get(path)
        if member is None:
            raise FileNotFoundError(path)
        first = min(start or 0, member.num_bytes)
        last = member.num_bytes if end is None else min(end, member.num_bytes)
        return self._read(member.start + first, member.start + max(first, last))

    def _open(self, path: str, mode: str = "rb", **_: Any) -> Any:
        member = self._members.get(path)
        if member is None:
            raise FileNotFoundError(path)
        return io.BufferedReader(Ranges(self._read, member.num_bytes, member.start))


def normal_name(name: str) -> str:
    """A member's name, normalized to a path relative to the root."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    return "/".join(parts)


def _resolved(
    target: str | Content, members: Mapping[str, Content], links: Mapping[str, str | Content]
) -> Content | None:
    """The member that a link leads to, through other links; None if there is none."""
    for _ in range(_MAX_LINKS):
        if isinstance(target, Content):
            return target
        if target.startswith("/"):
            return None
        path = normal_name(target)
        if path in members:
            return members[path]
        if path not in links:
            return None
        target = links[path]
    return None


def _unfit(problem: str) -> Content:
    return Content(start=0, num_bytes=0, problem=problem)


def too_long_name(num_bytes: int) -> str:
    """The problem of a member whose path is longer than :data:`MAX_NAME_BYTES`."""
    return f"path of {num_bytes:,} bytes, of which {MAX_NAME_BYTES:,} are allowed"
