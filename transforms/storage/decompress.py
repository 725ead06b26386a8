"""Parts of files as file objects, and compressed files as streams, in constant memory.

What comes before any damage is not lost.

GZIP, Zstandard, bzip2 and xz are recognized by their first bytes, whatever the file's name. Several
concatenated streams, as ``pigz`` and ``pbzip2`` write them, are one text.
"""

from __future__ import annotations

import bz2
import contextlib
import io
import lzma
import re
import struct
import zlib
from collections.abc import Callable, Iterator
from typing import Any

from ...schemas.limits import FREE_BYTES, Limits

Read = Callable[[int, int], bytes]
"""Reads bytes [start, stop) of a file; fewer at its end."""

SUFFIXES = (".gz", ".zst", ".bz2", ".xz")
"""Suffixes of compressed files' names."""
MAGIC_BYTES = 10
"""Number of first bytes that identify the compression."""

MAX_EXPANSION = Limits().max_expansion

_READ_BYTES = 1 << 20
# The output of one piece is held in memory: at Zstandard's worst ratio 4 KiB become 134 MB.
_PIECE_BYTES = 4 << 10
# One piece of bzip2 could make up to 6 GB: its output, like that of xz, is limited per call.
_MADE_BYTES = 4 << 20
# A file may request a dictionary of 4 GiB; xz -9 needs 65 MiB.
_XZ_BYTES = 256 << 20


class Ranges(io.RawIOBase):
    """A file object whose every read is one read of the underlying file."""

    def __init__(self, read: Read, num_bytes: int, offset: int = 0) -> None:
        """Stores the read function, the number of bytes, and the position of the first one."""
        super().__init__()
        self._read, self._num_bytes, self._offset = read, num_bytes, offset
        self._position = 0

    def readable(self) -> bool:
        """True, as for all files open for reading."""
        return True

    def seekable(self) -> bool:
        """True: the length is known."""
        return True

    def tell(self) -> int:
        """Position of the next read."""
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Moves the position of the next read, as for all files."""
        origin = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._num_bytes}
        self._position = max(origin[whence] + offset, 0)
        return self._position

    def read(self, size: int | None = -1) -> bytes:
        """Up to ``size`` bytes, or all that are left."""
        stop = self._num_bytes
        if size is not None and size >= 0:
            stop = min(stop, self._position + size)
        if stop <= self._position:
            return b""
        found = self._read(self._offset + self._position, self._offset + stop)
        self._position += len(found)
        return found

    def readall(self) -> bytes:
        """All that is left, in one read instead of many small ones."""
        return self.read()

    def readinto(self, buffer: Any) -> int:
        """Like :meth:`read`, into existing memory."""
        found = self.read(len(buffer))
        buffer[: len(found)] = found
        return len(found)


_OTHERS = {
    b"\x04\x22\x4d\x18": "lz4",
    b"\x1f\x9d": "compress (.Z)",
    b"\xff\x06\x00\x00sNaPpY": "snappy",
}
"""First bytes of compressions that are recognized only to refuse them by name."""
_REFUSED = {*_OTHERS.values(), "lzma", "brotli"}
_LZMA = struct.Struct("<BIQ")
_LZMA_SETTINGS, _LZMA_UNKNOWN, _LZMA_MAX_BYTES = 0x5D, (1 << 64) - 1, 1 << 38
_IN_NO_TEXT = re.compile(rb"[\x00-\x08\x0e-\x1a]")


class DamagedError(Exception):
    """A compressed file is truncated, or damaged."""

    def __init__(self, compression: str, *, offset: int, detail: str) -> None:
        """Builds the message: what is wrong, and before which byte of the compressed file."""
        self.offset = offset
        super().__init__(f"{compression} data {detail} at byte {offset:,} of the compressed file")


class _FeedError(Exception):
    """A decoder refused a piece, which begins at ``args[0]``."""


def compression_of(head: bytes) -> str:
    """The compression that a file's first bytes show: ``gzip``, ``zstd``, ``bzip2``, ``xz`` or "".

    >>> compression_of(b"name,age"), compression_of(bytes.fromhex("28b52ffd24"))
    ('', 'zstd')
    """
    if head.startswith(b"\x1f\x8b\x08"):
        return "gzip"
    # The second is a skippable frame, with which parallel compressors begin.
    if head.startswith(b"\x28\xb5\x2f\xfd") or (head[1:4] == b"*M\x18" and head[0] >> 4 == 5):
        return "zstd"
    if head.startswith(b"\xfd7zXZ\x00"):
        return "xz"
    if head[:3] == b"BZh" and head[4:10] in (b"1AY&SY", b"\x17rE8P\x90"):
        return "bzip2"
    return ""


def other_compression(head: bytes, name: str = "") -> str:
    """A compression that a file's first bytes show, and that :func:`decompressed` refuses; or "".

    Args:
        head: The first bytes; 13 show lzma.
        name: The file's name, where only it shows brotli, if the bytes are not those of a text.

    >>> other_compression(bytes.fromhex("04224d18")), other_compression(b"]a,b")
    ('lz4', '')
    """
    if name.endswith(".br") and _IN_NO_TEXT.search(head):
        return "brotli"
    if _is_lzma(head):
        return "lzma"
    return next((known for mark, known in _OTHERS.items() if head.startswith(mark)), "")


def _is_lzma(head: bytes) -> bool:
    """Whether a file begins with a header of lzma, which has no mark; xz checks the same fields."""
    if len(head) < _LZMA.size or head[0] != _LZMA_SETTINGS:
        return False
    _, dictionary_bytes, num_bytes = _LZMA.unpack_from(head)
    # 2^n, or 2^n + 2^(n-1).
    is_usual = dictionary_bytes.bit_count() == 1 or (
        dictionary_bytes.bit_count() == 2 and dictionary_bytes & dictionary_bytes >> 1
    )
    return bool(is_usual) and (num_bytes == _LZMA_UNKNOWN or num_bytes < _LZMA_MAX_BYTES)


def compressed_offset(read: Read, compression: str, offset: int) -> int:
    """The approximate position in a compressed file of a byte of its content.

    Args:
        read: Reads the compressed file.
        compression: As :func:`compression_of` returns it.
        offset: Position in the content.
    """
    num_read = 0

    def read_a_little(start: int, stop: int) -> bytes:
        nonlocal num_read
        content = read(start, min(stop, start + _PIECE_BYTES))
        num_read = start + len(content)
        return content

    num_given = 0
    with contextlib.suppress(DamagedError):
        for piece in decompressed(read_a_little, compression):
            num_given += len(piece)
            if num_given > offset:
                break
    return num_read


def decompressed(
    read: Read, compression: str, *, max_expansion: int = MAX_EXPANSION
) -> Iterator[bytes]:
    """The content of a compressed file, piece by piece.

    Args:
        read: Reads the compressed file.
        compression: As :func:`compression_of` returns it, or ``zlib``; one that
            :func:`other_compression` returns is refused.
        max_expansion: Maximum ratio of bytes produced to bytes read, once more than 256 MiB are
            produced: beyond it the file is a decompression bomb and counts as damaged.

    Raises:
        DamagedError: after all content before the damage has been yielded.
    """
    if compression in _REFUSED:
        what = "cannot be read (gzip, zstd, bzip2 and xz can): it begins"
        raise DamagedError(compression, offset=0, detail=what)
    num_read = num_given = 0

    def counted(start: int, stop: int) -> bytes:
        nonlocal num_read
        content = read(start, stop)
        num_read = max(num_read, start + len(content))
        return content

    for piece in _whole_pieces(counted, compression):
        num_given += len(piece)
        if num_given > FREE_BYTES and num_given > num_read * max_expansion:
            raise DamagedError(
                compression,
                offset=num_read,
                detail=grows_beyond(max_expansion),
            )
        yield piece


def grows_beyond(max_expansion: int) -> str:
    """The message for a decompression bomb."""
    return (
        f"grows to over {max_expansion} times its size (limits=ss.Limits(max_expansion=…) in the "
        "recipe allows more)"
    )


def _whole_pieces(read: Read, compression: str) -> Iterator[bytes]:
    """All that can be decompressed; then DamagedError if there is damage."""
    num_given = 0
    try:
        for piece in _pieces(read, compression, single_from=None):
            num_given += len(piece)
            yield piece
    except _FeedError as error:
        # When a decoder fails it discards its output for the piece. Fed byte by byte from there, it
        # yields all of that output.
        for piece in _pieces(read, compression, single_from=error.args[0]):
            if len(piece) > num_given:
                yield piece[num_given:]
            num_given = max(num_given - len(piece), 0)


def _pieces(read: Read, compression: str, *, single_from: int | None) -> Iterator[bytes]:
    """Feeds a decoder; single bytes from ``single_from`` on."""
    new, errors = _decoders(compression)
    decoder, fed_any, offset, ended = new(), False, 0, False
    while data := read(offset, offset + _READ_BYTES):
        position = 0
        while position < len(data):
            start = offset + position
            size = _PIECE_BYTES
            if single_from is not None:
                # Up to there the pieces are the same as the first time.
                size = 1 if start >= single_from else min(size, single_from - start)
            piece = data[position : position + size]
            if ended:
                padding = len(piece) - len(piece.lstrip(b"\0"))
                # Of xz between its streams; of tapes and block devices behind gzip.
                if padding and (
                    compression == "xz" or (compression == "gzip" and padding == len(piece))
                ):
                    position += padding
                    continue
                decoder, fed_any, ended = new(), False, False
            try:
                for made in made_of(decoder, piece):
                    if made:
                        yield made
            except errors:
                if single_from is None:
                    raise _FeedError(start) from None
                raise DamagedError(compression, offset=start, detail="is damaged") from None
            fed_any = True
            position += len(piece)
            if decoder.eof:
                position -= len(decoder.unused_data)
                ended = True
        offset += len(data)
    if fed_any and not ended:
        raise DamagedError(compression, offset=offset, detail="ends too early")


def made_of(decoder: Any, piece: bytes) -> Iterator[bytes]:
    """A decoder's output for a piece, in parts of bounded size; the last one may be empty."""
    if not hasattr(decoder, "needs_input"):
        yield decoder.decompress(piece)
        return
    yield decoder.decompress(piece, _MADE_BYTES)
    while not (decoder.eof or decoder.needs_input):
        yield decoder.decompress(b"", _MADE_BYTES)


def _decoders(compression: str) -> tuple[Callable[[], Any], type[Exception]]:
    """A factory of decoders (with the interface of ``zlib``'s), and the error they raise."""
    if compression == "gzip":
        return lambda: zlib.decompressobj(16 + zlib.MAX_WBITS), zlib.error
    if compression == "zlib":
        return zlib.decompressobj, zlib.error
    if compression == "bzip2":
        return bz2.BZ2Decompressor, OSError
    if compression == "xz":
        return lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ, _XZ_BYTES), lzma.LZMAError
    import zstandard

    # One for all frames: making it takes longer than reading an empty frame.
    return zstandard.ZstdDecompressor().decompressobj, zstandard.ZstdError
