"""Reads the text of a CSV, JSON or plain text file: decompressed and as UTF-8.

Any range of a plain UTF-8 file can be read. A file that is compressed or in another encoding is a
stream, whose offsets count bytes of the decompressed text as UTF-8. Bytes that are invalid in the
encoding stay in the text as invalid UTF-8, so cells with such bytes are found like any others.

CSV and JSON Lines find the rows of a text each by their own rules, in windows: :class:`Rows`.
"""

from __future__ import annotations

import codecs
import dataclasses
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ...schemas.limits import Limits
from ...schemas.recipe import OpenSource
from ..storage.decompress import DamagedError, Read, compression_of, decompressed, other_compression

Offsets = npt.NDArray[np.int64]

ENDLESS = 1 << 62
"""The end of a text of unknown length."""

_HEAD_BYTES = 1 << 16
_PIECE_BYTES = 1 << 20
_KIND_BYTES = 16
"""So many first bytes show the encoding of a text, or a compression."""
_MARKS = {
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
_UNDECODABLE = "snapshard-undecodable"
_LONE = re.compile("[\udc00-\udcff]")


class Text(Protocol):
    """A text in which rows are found."""

    @property
    def plain(self) -> bool:
        """Whether it is the file's own bytes, so that the file can be cut."""

    @property
    def stop(self) -> int:
        """Its length in bytes, or an upper bound."""

    @property
    def max_row_bytes(self) -> int | None:
        """Maximum length of a row, line or record; None for the format's default."""

    def read(self, start: int, stop: int) -> bytes:
        """Bytes [start, stop): at least one, except at the end.

        Raises:
            DamagedError: if the rest of a compressed file cannot be decompressed.
        """


ZERO_FILLED = "zero-filled text"
"""Why a text is rejected that is zero bytes alone, as in an incompletely written file."""


def is_zero_filled(text: bytes) -> bool:
    """Whether a text has bytes, all of them zero."""
    return text.startswith(b"\0") and not text.strip(b"\0")


def codec_name(encoding: str) -> str:
    """The canonical name of an encoding; ``utf-8`` if bytes need no conversion.

    Raises:
        ValueError: if Python has no such text encoding.

    >>> codec_name("latin1"), codec_name("UTF8"), codec_name("utf-8-sig")
    ('iso8859-1', 'utf-8', 'utf-8')
    """
    probe = "a,1\n"
    try:
        codec = codecs.lookup(encoding)
        codecs.getincrementaldecoder(encoding)
        known = codecs.decode(codecs.encode(probe, encoding), encoding) == probe
    except (LookupError, TypeError, ValueError):
        known = False
    if not known:
        raise ValueError(
            f"encoding={encoding!r} is unknown to Python; expected for example 'utf-8', 'latin-1', "
            "'cp1252', 'utf-16' or 'shift_jis'"
        )
    return "utf-8" if codec.name == "utf-8-sig" else codec.name


def open_text(opened: OpenSource, path: str, *, num_bytes: int, encoding: str) -> Text:
    """Opens the text of a file, and reads its head.

    Args:
        opened: The source's root.
        path: The path of the file.
        num_bytes: The size of the file.
        encoding: Python's name of the encoding; ``utf-8`` also for text that begins with a byte
            order mark of UTF-16 or UTF-32.

    Raises:
        StorageError: if the file cannot be read.
    """
    head = opened.read(path, 0, min(_HEAD_BYTES, num_bytes))

    def read(start: int, stop: int) -> bytes:
        stop = min(stop, num_bytes)
        return head[start:stop] if stop <= len(head) else opened.read(path, start, stop)

    is_utf8 = encoding == "utf-8" and not mark_of(head)
    compression = compression_of(head) or other_compression(head, path if is_utf8 else "")
    if not compression and is_utf8:
        return _Plain(read, num_bytes, opened.limits.max_row_bytes)
    return _Stream(read, compression, encoding, opened.limits)


def held_text(data: bytes) -> Text:
    """Text that is in memory, as UTF-8."""
    return _Plain(lambda start, stop: data[start:stop], len(data))


def text_start(text: Text) -> int:
    """Where a text begins: after a UTF-8 byte order mark, if there is one."""
    mark = codecs.BOM_UTF8
    return len(mark) if text.read(0, len(mark)) == mark else 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rows:
    """Consecutive rows of a text. Blank lines between them are not rows."""

    data: bytes
    offset: int
    """Where ``data`` begins in the text."""
    starts: Offsets
    """int64[n]: where each row begins in ``data``."""
    stops: Offsets
    """int64[n]: where each row's content ends, before its line break."""
    breaks_in_cells: bool = False
    """Whether a quoted cell, or an object of JSON, contains a line break."""
    problem: str = ""
    """Why a row is bad, such as ``row too long``, if these are the first bytes of one."""
    detail: str = ""
    """What is wrong with a bad row, for the message."""
    max_row_bytes: int = 0
    """The limit within which a bad row has no end."""

    def __len__(self) -> int:
        """The number of rows."""
        return len(self.starts)

    @property
    def positions(self) -> Offsets:
        """int64[n]: where each row begins in the text."""
        return self.starts + self.offset

    def text(self, row: int) -> bytes:
        """One row's bytes without its line break."""
        return self.data[self.starts[row] : self.stops[row]]

    def take(self, rows: Offsets) -> Rows:
        """Only these rows (ascending), in their own ``data``; their ``offset`` is meaningless."""
        ends = np.append(self.starts[1:], len(self.data))
        parts = np.split(rows, np.flatnonzero(np.diff(rows) != 1) + 1) if len(rows) else []
        data = b"".join(self.data[self.starts[part[0]] : ends[part[-1]]] for part in parts)
        sizes = ends[rows] - self.starts[rows]
        starts = np.cumsum(sizes) - sizes
        stops = starts + (self.stops[rows] - self.starts[rows])
        return dataclasses.replace(self, data=data, starts=starts, stops=stops)

    def part(self, first: int, stop: int) -> Rows:
        """Rows [first, stop), at least one, in their own ``data``."""
        begin = int(self.starts[first])
        end = int(self.starts[stop]) if stop < len(self) else len(self.data)
        return dataclasses.replace(
            self,
            data=self.data[begin:end],
            offset=self.offset + begin,
            starts=self.starts[first:stop] - begin,
            stops=self.stops[first:stop] - begin,
        )


def join_rows(windows: Sequence[Rows]) -> Rows:
    """The rows of several windows or files, whose ``offset`` is meaningless."""
    texts = [rows.data if rows.data.endswith(b"\n") else rows.data + b"\n" for rows in windows]
    begins = np.cumsum([0, *map(len, texts)])[:-1].tolist()
    none = np.zeros(0, np.int64)
    placed = list(zip(windows, begins, strict=True))
    return Rows(
        data=b"".join(texts),
        offset=0,
        starts=np.concatenate([none, *(rows.starts + begin for rows, begin in placed)]),
        stops=np.concatenate([none, *(rows.stops + begin for rows, begin in placed)]),
        breaks_in_cells=any(rows.breaks_in_cells for rows in windows),
    )


def undamaged(windows: Iterable[Rows]) -> Iterator[Rows]:
    """The rows before the damage of a compressed file, which the read of its block reports."""
    try:
        yield from windows
    except DamagedError:
        return


def shown_text(cell: bytes) -> str:
    r"""A cell for a message, with undecodable bytes as ``\xNN``.

    >>> shown_text(b"caf\xed\xb3\xa9"), shown_text(b"caf\xe9")
    ('caf\\xe9', 'caf\\xe9')
    """
    try:
        text = cell.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return cell.decode(errors="backslashreplace")
    shown = _LONE.sub(lambda match: f"\\x{ord(match[0]) - 0xDC00:02x}", text)
    return shown.encode(errors="backslashreplace").decode()


@dataclasses.dataclass(frozen=True)
class _Plain:
    read: Read
    stop: int
    max_row_bytes: int | None = None
    plain: bool = True


class _Stream:
    """Reads forward. Reading backwards starts over."""

    plain = False
    stop = ENDLESS

    def __init__(self, read: Read, compression: str, encoding: str, limits: Limits) -> None:
        self._source = (read, compression, encoding)
        self._max_expansion = limits.max_expansion
        self.max_row_bytes = limits.max_row_bytes
        self._start_over()

    def _start_over(self) -> None:
        read, compression, encoding = self._source
        pieces = _pieces(read)
        if compression:
            pieces = decompressed(read, compression, max_expansion=self._max_expansion)
        self._pieces = _as_utf8(pieces, encoding)
        self._held = b""
        self._offset = 0
        self._damage: DamagedError | None = None
        self._ended = False

    def read(self, start: int, stop: int) -> bytes:
        if start < self._offset:
            self._start_over()
        held, num_held = [self._held], len(self._held)
        while not self._ended and self._offset + num_held < stop:
            try:
                piece = next(self._pieces, None)
            except DamagedError as error:
                self._damage, piece = error, None
            if piece is None:
                self._ended = True
            elif self._offset + num_held + len(piece) <= start:
                self._offset += num_held + len(piece)
                held, num_held = [], 0
            else:
                held.append(piece)
                num_held += len(piece)
        whole = b"".join(held)
        first = min(max(start - self._offset, 0), len(whole))
        last = max(stop - self._offset, first)
        # Returned bytes are dropped, so that a window is not in memory twice. Reading backwards
        # reads the first windows again.
        taken, self._held = whole[first:last], whole[last:]
        self._offset += len(whole) - len(self._held)
        if not taken and self._damage is not None and stop > start:
            raise self._damage
        return taken


def _pieces(read: Read) -> Iterator[bytes]:
    offset = 0
    while piece := read(offset, offset + _PIECE_BYTES):
        offset += len(piece)
        yield piece


def mark_of(head: bytes) -> str:
    """The encoding of the byte order mark of a text; empty if it has none, or that of UTF-8."""
    return next((name for mark, name in _MARKS.items() if head.startswith(mark)), "")


def _as_utf8(pieces: Iterator[bytes], encoding: str) -> Iterator[bytes]:
    """Text as UTF-8, in pieces. Raises damage after everything before it has been yielded."""
    head = b""
    damage: DamagedError | None = None
    while len(head) < _KIND_BYTES:
        try:
            head += next(pieces)
        except StopIteration:
            break
        except DamagedError as error:
            damage = error
            break
    if inner := compression_of(head) or other_compression(head):
        twice = "is compressed twice (decompress it once): it begins"
        raise DamagedError(inner, offset=0, detail=twice)
    if encoding == "utf-8":
        encoding = mark_of(head) or encoding
    elif encoding in ("utf-16", "utf-32") and not mark_of(head):
        encoding = f"{encoding}-le"
    if encoding == "utf-8":
        yield head
        if damage is None:
            yield from pieces
    else:
        codecs.register_error(_UNDECODABLE, _keep_undecodable)
        decoder = codecs.getincrementaldecoder(encoding)(_UNDECODABLE)
        yield _encoded(decoder, head)
        while damage is None and (piece := next(pieces, None)) is not None:
            yield _encoded(decoder, piece)
        if damage is None:
            yield _encoded(decoder, b"", final=True)
    if damage is not None:
        raise damage


def _encoded(decoder: Any, piece: bytes, *, final: bool = False) -> bytes:
    text: str = decoder.decode(piece, final)
    return text.encode("utf-8", "surrogatepass")


def _keep_undecodable(error: UnicodeError) -> tuple[str, int]:
    """Maps undecodable bytes to lone surrogates, which are invalid in UTF-8."""
    if not isinstance(error, UnicodeDecodeError):
        raise error
    odd = error.object[error.start : error.end]
    return "".join(chr(0xDC00 + byte) for byte in odd), error.end
