"""Finds what is damaged in a TFRecord file: every record that is, not only the first.

Each frame says how long it is, under a checksum of its own. Where that is damaged the index, if it
is known, tells where the next frame begins; else nothing after it can be told apart.
"""

from __future__ import annotations

import array
import contextlib
import dataclasses
import struct
import zlib
from collections.abc import Iterator

import google_crc32c
import numpy as np
import numpy.typing as npt

from ...schemas.shards import Compression
from .tfrecord import FRAME_BYTES, checksum_trouble, filled, masked, stored_chunks

MAX_BROKEN = 1000
"""So many broken records of a file are listed; the others are counted."""
MAX_BEYOND_BYTES = 64 << 20
"""So far is read beyond the end that the index tells, of uncompressed bytes."""

_HEAD = struct.Struct("<QI")
_FOOT = struct.Struct("<I")
_PIECE_BYTES = 16 << 10
_RECORD_PIECE_BYTES = 4 << 20

Frames = tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]
"""Offsets and lengths of a shard's frames, as its index has them."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class BrokenRecord:
    """One record that is not whole."""

    number: int
    offset: int
    """Where its frame begins, in uncompressed bytes."""
    what: str


@dataclasses.dataclass(kw_only=True)
class Scan:
    """What a TFRecord file holds."""

    num_whole: int = 0
    num_broken: int = 0
    broken: list[BrokenRecord] = dataclasses.field(default_factory=list)
    """In their order; the first :data:`MAX_BROKEN`."""
    complete: bool = True
    """Whether the file was read to its end, frame by frame."""
    num_bytes: int = 0
    """Uncompressed, as far as was read."""
    ending: str | None = None
    """What is wrong after the last record, if anything is."""
    _offsets: array.array[int] = dataclasses.field(default_factory=lambda: array.array("Q"))
    _lengths: array.array[int] = dataclasses.field(default_factory=lambda: array.array("Q"))

    @property
    def frames(self) -> Frames:
        """Offsets and lengths of the frames that were found, broken ones included: uint64[n]."""
        return np.array(self._offsets, np.uint64), np.array(self._lengths, np.uint64)

    @property
    def num_records(self) -> int:
        """Frames that were found, broken ones included."""
        return self.num_whole + self.num_broken

    def note(self, offset: int, length: int, what: str | None) -> None:
        """Notes a frame, and what is wrong with it."""
        if what is not None:
            if self.num_broken < MAX_BROKEN:
                broken = BrokenRecord(number=self.num_records, offset=offset, what=what)
                self.broken.append(broken)
            self.num_broken += 1
        else:
            self.num_whole += 1
        self._offsets.append(offset)
        self._lengths.append(length)
        self.num_bytes = offset + length


def frame_trouble(frame: bytes, length: int) -> str | None:
    """What is wrong with the bytes of one frame that should have this length; None if nothing."""
    if len(frame) < length:
        return f"the file ends {length - len(frame):,} bytes before the record does"
    told, checksum = _HEAD.unpack_from(frame)
    trouble = checksum_trouble(checksum, masked(google_crc32c.value(frame[:8])), "its length")
    if trouble is not None:
        return trouble
    if told != length - FRAME_BYTES:
        return f"it has {told:,} bytes, expected {length - FRAME_BYTES:,}"
    (checksum,) = _FOOT.unpack_from(frame, length - _FOOT.size)
    crc = google_crc32c.value(frame[_HEAD.size : length - _FOOT.size])
    return checksum_trouble(checksum, masked(crc), "the record")


def scan_damage(url: str, compression: Compression, *, known: Frames | None) -> Scan:
    """Reads a TFRecord file to its end, past what is damaged.

    Args:
        url: A local path or any fsspec URL.
        compression: ``"none"`` or ``"gzip"``.
        known: Where the frames lie, from an index that is known to be right; None without one.

    Raises:
        StorageError: if the file cannot be read.
    """
    scan = Scan()
    stream = _Stream(url, compression)
    starts, lengths = known if known is not None else (np.empty(0, np.uint64),) * 2
    end = int(starts[-1] + lengths[-1]) if len(starts) else None
    while True:
        offset, number = scan.num_bytes, scan.num_records
        head = stream.take(_HEAD.size)
        if not head:
            scan.ending = stream.trouble
            scan.complete = stream.trouble is None
            return scan
        if end is not None and offset > end + MAX_BEYOND_BYTES:
            scan.ending = "far more follows than was written"
            scan.complete = False
            return scan
        trouble: str | None = None
        if len(head) == _HEAD.size:
            told, checksum = _HEAD.unpack(head)
            length = FRAME_BYTES + told
            trouble = checksum_trouble(
                checksum, masked(google_crc32c.value(head[:8])), "its length"
            )
        if len(head) < _HEAD.size or trouble is not None:
            # Only the index can say where the next one begins.
            if number >= len(starts) or int(starts[number]) != offset:
                trouble = trouble or f"the file ends {len(head)} bytes into the head of a frame"
                scan.note(offset, len(head), _with(trouble, stream.trouble))
                scan.complete = False
                return scan
            length = int(lengths[number])
        num_read, wrong = _rest_of_frame(stream, length, len(head))
        cause = stream.trouble if num_read < length else None
        scan.note(offset, num_read, _with(trouble or wrong, cause))
        if num_read < length:
            scan.complete = False
            return scan


def _rest_of_frame(stream: _Stream, length: int, num_read: int) -> tuple[int, str | None]:
    """Reads what follows a frame's head: the bytes of it that are there, and what is wrong.

    A record is held against its checksum as it is read: it is as long as it says to be.
    """
    crc = 0
    while num_read < length - _FOOT.size:
        piece = stream.take(min(length - _FOOT.size - num_read, _RECORD_PIECE_BYTES))
        if not piece:
            break
        crc = google_crc32c.extend(crc, piece)
        num_read += len(piece)
    foot = stream.take(length - num_read) if num_read >= length - _FOOT.size else b""
    num_read += len(foot)
    if num_read < length:
        return num_read, f"the file ends {length - num_read:,} bytes before the record does"
    return num_read, checksum_trouble(_FOOT.unpack(foot)[0], masked(crc), "the record")


def _with(what: str | None, cause: str | None) -> str | None:
    return what if what is None or cause is None else f"{what} ({cause})"


class _Stream:
    """The uncompressed bytes of a file; ends where they cannot be had."""

    def __init__(self, url: str, compression: Compression) -> None:
        chunks = stored_chunks(url)
        self._chunks = self._inflated(chunks) if compression == "gzip" else chunks
        self._held = b""
        self._at = 0
        self.trouble: str | None = None
        """Why the bytes end before the file does."""

    def take(self, num_bytes: int) -> bytes:
        """The next bytes; fewer only where there are no more."""
        if self._at + num_bytes > len(self._held):
            self._held = filled(self._held[self._at :], num_bytes, self._chunks)
            self._at = 0
        taken = self._held[self._at : self._at + num_bytes]
        self._at += len(taken)
        return taken

    def _inflated(self, chunks: Iterator[bytes]) -> Iterator[bytes]:
        """The content of a GZIP member, up to the last byte that can be had of a damaged one."""
        stream = zlib.decompressobj(wbits=31)
        for chunk in chunks:
            for start in range(0, len(chunk), _PIECE_BYTES):
                piece = chunk[start : start + _PIECE_BYTES]
                if stream.eof:
                    self.trouble = "bytes follow after the end of the GZIP stream"
                    return
                before = stream.copy()
                try:
                    plain = stream.decompress(piece)
                except zlib.error as error:
                    # What it gave before it met the damage is lost with the error.
                    self.trouble = f"the GZIP stream is damaged: {error}"
                    yield from _byte_by_byte(before, piece)
                    return
                if plain:
                    yield plain
                if stream.unused_data:
                    self.trouble = "bytes follow after the end of the GZIP stream"
                    return
        if not stream.eof:
            self.trouble = "the GZIP stream breaks off"


def _byte_by_byte(stream: zlib._Decompress, piece: bytes) -> Iterator[bytes]:
    with contextlib.suppress(zlib.error):
        for at in range(len(piece)):
            if plain := stream.decompress(piece[at : at + 1]):
                yield plain
