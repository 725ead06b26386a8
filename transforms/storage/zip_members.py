"""Zip archives as filesystems: members are listed once and read by position, in parts.

A member is compressed as one stream, which does not allow seeking: a part that follows another
continues where that one ended. ``zipfile`` reads only the table of contents. Its streams
decompress 4 KiB of bzip2 to 5 GB at once and trust the sizes in the table; some of its versions do
not detect overlapping members.
"""

from __future__ import annotations

import bz2
import collections
import io
import os
import stat
import struct
import threading
import zipfile
import zlib
from collections.abc import Iterator
from typing import Any

from ...schemas.errors import DataError
from ...schemas.limits import FREE_BYTES
from .decompress import Ranges, Read, made_of
from .tar import MAX_NAME_BYTES, REPLACED, MemberFileSystem, normal_name, too_long_name

FOLDER_WITH_BYTES = "name of a folder, and bytes as a file has them"
"""The problem of a member whose name is most likely damaged."""
LINK = "symbolic link, which is not read from a zip; put the file there instead"
"""Its bytes are the path of its target, not a record."""
OUTSIDE = "states a place that is not in its archive"
OVERLAPS = "shares bytes with another member of its archive"

_MAX_HELD = 4
_HEADER_BYTES = 30
_STORED_BYTES = 1 << 20
_PIECE_BYTES = 4 << 10
_DICTIONARY_BYTES = 256 << 20
_UTF_8, _ENCRYPTED, _SIZE_FOLLOWS = 0x800, 0x61, 0x8
_ZIP64 = 0xFFFFFFFF
_MEMBER, _END = b"PK\3\4", b"PK\5\6"
"""Marks of a member, and of the end record."""
_MAX_LOOKED_AT = 10_000
_END_BYTES = 22 + (1 << 16)
"""Size of an archive's end record with the longest comment."""


def _is_folder(info: zipfile.ZipInfo) -> bool:
    # ``info.is_dir()`` fails where the name is empty.
    return info.filename.endswith("/") or not info.filename


def _is_bare_folder(info: zipfile.ZipInfo) -> bool:
    return _is_folder(info) and not info.file_size


def _bytes_before(file: Any, start: int) -> int:
    """Bytes before an archive whose table of contents is at ``start``: it states another place."""
    num_bytes = file.seek(0, os.SEEK_END)
    file.seek(max(0, num_bytes - _END_BYTES))
    tail = file.read()
    (stated,) = struct.unpack_from("<I", tail, tail.rfind(_END) + 16)
    return 0 if stated == _ZIP64 else start - int(stated)


class ZipArchive(MemberFileSystem):
    """The files of a zip archive."""

    protocol = "zip"

    def __init__(
        self,
        read: Read,
        *,
        num_bytes: int,
        stamp: str,
        name: str,
        max_expansion: int,
        ahead_bytes: int = 256 << 10,
    ) -> None:
        """Reads the table of contents.

        Args:
            read: Reads the archive's file.
            num_bytes: Its length.
            stamp: Changes with its content; empty if nothing is known that does.
            name: The archive's name, for messages.
            max_expansion: Maximum ratio of decompressed to compressed size of each member, and of
                all members' decompressed size to the archive's size.
            ahead_bytes: How much is read at once: members are stored one after the other.

        Raises:
            DataError: if it is not a zip archive.
        """
        super().__init__()
        self._archive_read, self._num_bytes, self._stamp = read, num_bytes, stamp
        self._ahead_bytes = ahead_bytes
        self._held = 0, b""
        file = io.BufferedReader(Ranges(read, num_bytes), ahead_bytes)
        try:
            with zipfile.ZipFile(file) as archive:
                infos, end = archive.infolist(), archive.start_dir
        except (
            zipfile.BadZipFile,
            NotImplementedError,
            ValueError,
            OverflowError,
            struct.error,
        ) as error:
            what = truncation(file) or f"is not a zip archive ({error})"
            raise DataError(f"{name} {what}. Copy it again, or correct the source.") from None
        before = _bytes_before(file, end)
        if before > 0 and read(0, len(_MEMBER)) == _MEMBER:
            raise DataError(
                f"{name} has members in its first {before:,} bytes that its table of contents does "
                "not list, as two archives in one file have. Separate or create it again."
            )
        self._members: dict[str, zipfile.ZipInfo] = {}
        self._replaced: set[str] = set()
        for info in infos:
            self._add(info)
        self._problems = dict(self._find_problems(end, max_expansion))

    def _add(self, info: zipfile.ZipInfo) -> None:
        """Adds a member. Of two files of one name the later one counts, as when unpacking."""
        name = ("/" if info.filename.startswith("/") else "") + normal_name(info.filename)
        earlier = self._members.get(name)
        if earlier is not None and not _is_bare_folder(earlier):
            if _is_bare_folder(info):
                return
            replaced = f"{name} at byte {earlier.header_offset}"
            self._members[replaced] = earlier
            self._replaced.add(replaced)
        self._members[name] = info

    def _find_problems(self, end: int, max_expansion: int) -> Iterator[tuple[str, str]]:
        """Members that are not read, and why; ``end`` is where the table of contents begins."""
        num_bytes = 0
        # From the last to the first: a member must end before the next one begins.
        for name, info in sorted(
            self._members.items(), key=lambda found: found[1].header_offset, reverse=True
        ):
            stop = info.header_offset + _HEADER_BYTES + info.compress_size
            overlaps, end = stop > end, info.header_offset
            length = len(name.encode("utf-8", "surrogateescape"))
            if name in self._replaced:
                yield name, REPLACED
            elif length > MAX_NAME_BYTES:
                yield name, too_long_name(length)
            elif _is_folder(info):
                if info.file_size:
                    yield name, FOLDER_WITH_BYTES
            elif stat.S_ISLNK(info.external_attr >> 16):
                yield name, LINK
            elif info.header_offset < 0:
                yield name, OUTSIDE
            elif overlaps:
                yield name, OVERLAPS
            elif problem := expansion_problem(
                info.file_size, info.compress_size, max_expansion=max_expansion
            ):
                yield name, problem
            elif expansion_problem(
                num_bytes + info.file_size, self._num_bytes, max_expansion=max_expansion
            ):
                yield name, f"its archive would decompress to over {max_expansion} times its size"
            else:
                num_bytes += info.file_size

    def _is_file(self, path: str) -> bool:
        """Whether it is a file, or a folder that claims to have bytes."""
        info = self._members.get(path)
        return info is not None and (path in self._problems or not _is_folder(info))

    def _info(self, path: str) -> dict[str, Any]:
        info = self._members[path]
        facts = {
            "name": path,
            "size": info.file_size,
            "type": "file",
            "problem": self._problems.get(path, ""),
        }
        if self._stamp:
            # Equal length and CRC-32 are easily forged, and occur by chance in large sets.
            facts["ETag"] = f"{self._stamp} {info.header_offset} {info.CRC:08x}"
        return facts

    def cat_file(
        self, path: str, start: int | None = None, end: int | None = None, **_: Any
    ) -> bytes:
        """Bytes [start, end) of a file.

        Raises:
            FileNotFoundError: if it does not exist.
            zipfile.BadZipFile: if it is damaged, encrypted, or differs from the table.
        """
        with self._open(path) as file:
            file.seek(start or 0)
            return bytes(file.read() if end is None else file.read(max(0, end - file.tell())))

    def _open(self, path: str, mode: str = "rb", **_: Any) -> Any:
        info = self._members.get(path.strip("/"))
        if info is None or _is_folder(info):
            raise FileNotFoundError(path)
        return io.BufferedReader(_Member(self._read, info), _STORED_BYTES)

    def _read(self, start: int, stop: int) -> bytes:
        # Replaced as one tuple, so threads can read concurrently.
        first, held = self._held
        if not first <= start <= stop <= first + len(held):
            stop_ahead = min(max(stop, start + self._ahead_bytes), self._num_bytes)
            first, held = (
                start,
                self._archive_read(start, stop_ahead) if start < stop_ahead else b"",
            )
            self._held = first, held
        return held[start - first : stop - first]


class _Member(io.RawIOBase):
    """The content of one member, checked against the size and CRC-32 in the table."""

    def __init__(self, read: Read, info: zipfile.ZipInfo) -> None:
        super().__init__()
        self._read, self._info = read, info
        self._restart()

    def _restart(self) -> None:
        self._pieces, self._piece, self._position = self._content(), b"", 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        size = self._info.file_size
        origin = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: size}[whence]
        target = min(max(origin + offset, 0), size)
        if target < self._position:
            self._restart()
        while self._position < target and self._take(target - self._position):
            pass
        return self._position

    def readinto(self, buffer: Any) -> int:
        part = self._take(len(buffer))
        buffer[: len(part)] = part
        return len(part)

    def _take(self, num_bytes: int) -> bytes:
        if not self._piece:
            self._piece = next(self._pieces, b"")
        part, self._piece = self._piece[:num_bytes], self._piece[num_bytes:]
        self._position += len(part)
        return part

    def _content(self) -> Iterator[bytes]:
        name, missing, crc = self._info.filename, self._info.file_size, 0
        for piece in self._decompressed():
            missing -= len(piece)
            if missing < 0:
                break
            crc = zlib.crc32(piece, crc)
            if missing or crc == self._info.CRC:
                yield piece
        if missing:
            raise zipfile.BadZipFile(f"{name!r} is not as long as the table of contents states")
        if crc != self._info.CRC:
            raise zipfile.BadZipFile(f"bad CRC-32 for {name!r}")

    def _decompressed(self) -> Iterator[bytes]:
        start, stop = self._place()
        make = _DECODERS.get(self._info.compress_type)
        if self._info.compress_type == zipfile.ZIP_LZMA:
            dictionary = int.from_bytes(self._read(start + 5, start + 9), "little")
            if dictionary > _DICTIONARY_BYTES:
                raise zipfile.BadZipFile(f"a dictionary of {dictionary:,} bytes")
        decoder = make() if make else None
        step = _PIECE_BYTES if decoder else _STORED_BYTES
        while start < stop and not (decoder and decoder.eof):
            piece = self._read(start, min(start + step, stop))
            if not piece:
                return
            start += len(piece)
            for made in made_of(decoder, piece) if decoder else (piece,):
                if made:
                    yield made

    def _place(self) -> tuple[int, int]:
        """Where the compressed bytes begin and end: after a header that repeats the table."""
        info = self._info
        start = info.header_offset + _HEADER_BYTES
        header = self._read(info.header_offset, start)
        if len(header) < _HEADER_BYTES or header[:4] != b"PK\3\4":
            raise zipfile.BadZipFile(f"no header of {info.filename!r}")
        flags, method, name_bytes, extra_bytes = struct.unpack("<6xHH16xHH", header)
        name = self._read(start, start + name_bytes)
        stated = name.decode("utf-8" if flags & _UTF_8 else "cp437", "replace")
        if stated != info.orig_filename:
            raise zipfile.BadZipFile(f"the header of {info.filename!r} is of another member")
        if (flags | info.flag_bits) & _ENCRYPTED:
            raise zipfile.BadZipFile(f"{info.filename!r} is encrypted")
        if method != info.compress_type or method not in (zipfile.ZIP_STORED, *_DECODERS):
            raise zipfile.BadZipFile(f"{info.filename!r} is compressed by the method {method}")
        start += name_bytes + extra_bytes
        return start, start + info.compress_size


_DECODERS: dict[int, Any] = {
    zipfile.ZIP_DEFLATED: lambda: zlib.decompressobj(-zlib.MAX_WBITS),
    zipfile.ZIP_BZIP2: bz2.BZ2Decompressor,
    zipfile.ZIP_LZMA: lambda: zipfile.LZMADecompressor(),  # type: ignore[attr-defined]
}


class _Held(threading.local):
    """A thread's open members, each with its archive.

    Keyed by process, archive and path. The key has the archive's ``id``, because archives opened
    from one place compare equal, whatever is there now.
    """

    def __init__(self) -> None:
        self.members: collections.OrderedDict[tuple[int, int, str], tuple[Any, Any]]
        self.members = collections.OrderedDict()


_HELD = _Held()


def expansion_problem(size: int, packed: int, *, max_expansion: int) -> str:
    """Why a member is not decompressed; empty if it may be.

    >>> expansion_problem(10**12, 10**6, max_expansion=250)
    'it would decompress to 1,000,000,000,000 bytes, over 250 times its own size'
    """
    if size <= FREE_BYTES or size <= packed * max_expansion:
        return ""
    return f"it would decompress to {size:,} bytes, over {max_expansion} times its own size"


def truncation(file: Any) -> str:
    """What a truncated zip archive lacks, as a predicate; empty if it does not begin like a zip.

    Args:
        file: The archive, as a seekable file.
    """
    num_bytes, start = file.seek(0, io.SEEK_END), 0
    file.seek(max(0, num_bytes - _END_BYTES))
    if b"PK\5\6" in file.read():
        return ""
    problem = f"is a truncated zip archive: it ends at byte {num_bytes:,}, "
    for _ in range(_MAX_LOOKED_AT):
        file.seek(start)
        header = file.read(_HEADER_BYTES)
        if header[:4] != b"PK\3\4":
            break
        if len(header) < _HEADER_BYTES:
            return f"{problem}in the header of a member"
        flags, packed, name_bytes, extra_bytes = struct.unpack("<6xH10xI4xHH", header)
        name = file.read(min(name_bytes, MAX_NAME_BYTES)).decode("utf-8", "replace")
        begin = start + _HEADER_BYTES + name_bytes + extra_bytes
        start = begin + packed
        if start > num_bytes and packed < _ZIP64:
            held = max(0, num_bytes - begin)
            return f"{problem}and holds {held:,} of the {packed:,} compressed bytes of {name!r}"
        if flags & _SIZE_FOLLOWS or packed >= _ZIP64:
            break
    return f"{problem}before its table of contents does" if start else ""


def read_part(archive: Any, path: str, start: int, stop: int) -> bytes:
    """Reads bytes [start, stop) of a member; fewer at its end.

    Args:
        archive: An fsspec filesystem of a zip.
        path: Of the member.
        start: The first byte. Continuing after the last read of this thread costs nothing extra.
        stop: After the last byte.

    Raises:
        Exception: as fsspec and zipfile do for members that are missing or damaged.
    """
    key = (os.getpid(), id(archive), path)
    held = _HELD.members.pop(key, None)
    member = archive.open(path, "rb") if held is None else held[1]
    try:
        member.seek(start)
        content = bytes(member.read(max(0, stop - start)))
        is_read = stop >= archive.size(path)
    except BaseException:
        member.close()
        raise
    if is_read:
        member.close()
        return content
    _HELD.members[key] = archive, member
    if len(_HELD.members) > _MAX_HELD:
        _, (_, oldest) = _HELD.members.popitem(last=False)
        oldest.close()
    return content
