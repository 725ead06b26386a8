"""Headers of tar archives, read front to back, in time and memory that their bytes justify.

``tarfile`` parses one block. What several blocks say together (long names, PAX records, sparse
files) is put together here: ``tarfile`` follows a size below zero back to where it came from, and
some of its versions take hours for one MiB of PAX records.

Formats: https://pubs.opengroup.org/onlinepubs/9799919799/utilities/pax.html (ustar, pax) and
https://www.gnu.org/software/tar/manual/html_node/Standard.html (GNU).
"""

from __future__ import annotations

import dataclasses
import tarfile
from collections.abc import Iterator
from typing import Literal

from .ranges import Read

BLOCK_BYTES = 512
MAX_HEADER_BYTES = 1 << 20
"""The longest name, link target or set of PAX records that is read."""

Kind = Literal["file", "folder", "symlink", "hardlink", "sparse", "special"]

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
    """A header that cannot be followed: the place of the next one is unknown."""


class NoTarError(TarDamagedError):
    """The first block is not a header."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class TarMember:
    """What the headers of one member say."""

    offset: int
    """Where the first of its headers begins."""
    start: int
    """Where its content begins."""
    num_bytes: int
    """Length of its content in the archive; never below zero."""
    name: str
    link: str
    kind: Kind


class TarHeaders:
    """The members of an archive, or of a part of one, in its order."""

    def __init__(self, read: Read) -> None:
        """Takes what reads the archive; it is asked for places that never go back."""
        self._read = read
        self.offset = 0
        """Where the next member is expected; behind the last one in the end."""

    def __iter__(self) -> Iterator[TarMember]:
        """Gives the members up to the first block that is not a header.

        Raises:
            TarDamagedError: if the next header cannot be found, or there is none at all.
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
                # Of two statements the first one counts, as in `tarfile`.
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
        name = stated.rstrip("/") or stated  # of slashes alone it is an absolute path
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
        # The byte before shows whether the content before it is there to its end.
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
    """Those records of an extended header that say where a member is, and what it is called."""
    found: dict[str, str] = {}
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
            found[name] = value.decode("utf-8", "surrogateescape")
        position += length
    return found
