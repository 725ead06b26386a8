"""Writes and verifies TFRecord files and scans them for damage; TensorFlow writes only GZIP.

A TFRecord file is a sequence of frames, each ``uint64 length | uint32 checksum of the length |
record | uint32 checksum of the record``, little-endian; the checksums are CRC32C, rotated and
shifted ("masked"). With GZIP the complete sequence is one GZIP member. Offsets and lengths refer
to complete frames in the uncompressed sequence.

A frame's length has its own checksum. If the length is damaged, only the index tells where the
next frame begins; without an index, nothing after the damage can be recognised.

TensorFlow's own writer makes the same bytes, one record at a time, in twice the CPU time for
records of 12 kB and two and a half times for those of 200 B. GZIP's bytes depend on the
compression library, so TensorFlow writes them.

Source: tensorflow/core/lib/io/record_writer.h.
"""

from __future__ import annotations

import array
import contextlib
import dataclasses
import hashlib
import itertools
import os
import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import google_crc32c
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ...schemas.errors import DamagedSnapshotError
from ...schemas.shards import Compression
from .. import storage
from ..activity import advance
from ..storage.failures import os_errors_as_storage_errors
from .encode import binary_array

HEAD_BYTES, FOOT_BYTES = 12, 4
"""A frame: the record's length and its checksum, the record, the record's checksum."""
FRAME_BYTES = HEAD_BYTES + FOOT_BYTES
"""What a frame adds to its record."""

HEAD = struct.Struct("<QI")
_HEADS = np.dtype([("length", "<u8"), ("checksum", "<u4")])
_LENGTH = struct.Struct("<Q")
_CHECKSUM = np.dtype("<u4")
_MASK_DELTA = 0xA282EAD8
_GZIP_FOOT_BYTES = 8
"""The end of a GZIP file: the CRC32 of the content, and its length."""
_WRITE_BYTES = 2 << 20
_READ_BYTES = 4 << 20


_FOOT = struct.Struct("<I")
_BATCH_FRAMES = 1024
"""At most this many frames are checked together."""
_PIECE_BYTES = 64 << 10
_RECORD_PIECE_BYTES = 4 << 20

Frames = tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]
"""Offsets and lengths of a shard's frames, as in its index."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TFRecordFile:
    """Describes a written TFRecord file."""

    num_examples: int
    num_bytes: int
    """Length of the file as stored, compressed or not."""
    offsets: npt.NDArray[np.uint64]
    """uint64[num_examples]: the start of each record's frame in the uncompressed bytes."""
    lengths: npt.NDArray[np.uint64]
    """uint64[num_examples]: bytes of each frame, including its 16 bytes of framing."""
    checksum: int | None
    """Cheaply distinguishes the file from others of the same size; None if it has no records.

    The masked CRC32C of the first record, as stored in its frame; with GZIP the CRC32 of the
    complete content, at the end of the file.
    """


def write_tfrecord(
    path: str, chunks_of_serialized: Iterable[pa.LargeBinaryArray], *, compression: Compression
) -> TFRecordFile:
    """Writes serialized examples as one TFRecord file; the same bytes for the same examples.

    Args:
        path: A local path; an existing file is overwritten.
        chunks_of_serialized: Examples in order, as from ``encode_examples``; only one chunk is
            held at a time.
        compression: ``"none"`` or ``"gzip"``.

    Returns:
        A description of the file, with the offset of each record.

    Raises:
        StorageError: if the file cannot be written.
    """
    write = _write_gzip if compression == "gzip" else _write_plain
    sizes: list[npt.NDArray[np.int64]] = []
    write(path, _slices(chunks_of_serialized, sizes))
    num_bytes = os.path.getsize(path)
    lengths = np.concatenate([np.empty(0, np.int64), *sizes]) + FRAME_BYTES
    return TFRecordFile(
        num_examples=len(lengths),
        num_bytes=num_bytes,
        offsets=(np.cumsum(lengths) - lengths).astype(np.uint64),
        lengths=lengths.astype(np.uint64),
        checksum=(
            None
            if not len(lengths)
            else _number_at(path, num_bytes - _GZIP_FOOT_BYTES)
            if compression == "gzip"
            else _number_at(path, int(lengths[0]) - FOOT_BYTES)
        ),
    )


def _number_at(path: str, offset: int) -> int:
    """Reads the little-endian uint32 at an offset of a file."""
    with os_errors_as_storage_errors("read", path), open(path, "rb") as file:
        file.seek(offset)
        return int.from_bytes(file.read(4), "little")


def _slices(
    chunks: Iterable[pa.LargeBinaryArray], sizes: list[npt.NDArray[np.int64]]
) -> Iterator[pa.LargeBinaryArray]:
    """Slices examples to about _WRITE_BYTES; collects the lengths of all."""
    for chunk in chunks:
        sizes.append(pc.binary_length(chunk).to_numpy())
        rows = 1 + _WRITE_BYTES * len(chunk) // max(1, int(sizes[-1].sum()))
        for start in range(0, len(chunk), rows):
            yield chunk.slice(start, rows)
        del chunk  # before the next one is made


def _write_plain(path: str, slices: Iterator[pa.LargeBinaryArray]) -> None:
    with os_errors_as_storage_errors("write", path), open(path, "wb") as file:
        for examples in slices:
            file.write(_framed(examples))


def _write_gzip(path: str, slices: Iterator[pa.LargeBinaryArray]) -> None:
    import tensorflow as tf

    with os_errors_as_storage_errors("write", path), tf.io.TFRecordWriter(path, "GZIP") as writer:
        for examples in slices:
            for serialized in examples.to_pylist():
                writer.write(serialized)


def _framed(examples: pa.LargeBinaryArray) -> pa.Buffer:
    """The concatenated frames of serialized examples."""
    lengths = pc.binary_length(examples).to_numpy()
    heads = np.empty(len(examples), _HEADS)
    heads["length"] = lengths
    heads["checksum"] = _length_checksums(lengths)
    feet = _masked(examples.to_pylist())
    empty = pa.scalar(b"", pa.large_binary())
    frames = pc.binary_join_element_wise(_fixed(heads), examples, _fixed(feet), empty)
    return frames.buffers()[2]


def _length_checksums(lengths: npt.NDArray[np.integer]) -> npt.NDArray[np.uint32]:
    """The masked checksum of each length, as in a frame's head."""
    known, where = np.unique(lengths, return_inverse=True)
    return _masked([_LENGTH.pack(length) for length in known.tolist()])[where]


def _masked(contents: list[bytes]) -> npt.NDArray[np.uint32]:
    """The masked checksums, little-endian uint32[n]."""
    crcs = np.fromiter(map(google_crc32c.value, contents), np.uint32, len(contents))
    return ((crcs >> 15 | crcs << 17) + np.uint32(_MASK_DELTA)).astype("<u4")


def _fixed(values: npt.NDArray[Any]) -> pa.LargeBinaryArray:
    """The bytes of each value, as a binary array."""
    ends = np.arange(len(values) + 1, dtype=np.int64) * values.itemsize
    return binary_array(ends, pa.py_buffer(values.tobytes()))


def uncompressed_chunks(url: str, compression: Compression) -> Iterator[bytes]:
    """The uncompressed bytes of a TFRecord file, in bounded chunks; checks no checksums.

    Raises:
        DamagedSnapshotError: if its compression is broken.
        StorageError: if the file cannot be read.
    """
    stream = _Stream(url, compression)
    yield from stream.chunks
    if stream.trouble is not None:
        raise DamagedSnapshotError(
            f"{storage.redact(url)} is damaged: {stream.trouble}. Restore the file, or run the "
            "build again."
        )


def stored_examples(url: str, compression: Compression) -> Iterator[bytes]:
    """The serialized examples of a file, in order; checks no checksums.

    Raises:
        DamagedSnapshotError: if it ends in the middle of a record, or its compression is broken.
        StorageError: if it cannot be read.
    """
    chunks = uncompressed_chunks(url, compression)
    held = b""
    while held := filled(held, HEAD_BYTES, chunks):
        length = FRAME_BYTES + int.from_bytes(held[:8], "little")
        held = filled(held, length, chunks)
        if len(held) < length:
            raise DamagedSnapshotError(f"{storage.redact(url)} ends in the middle of a record.")
        at = 0
        while at + HEAD_BYTES <= len(held):
            length = FRAME_BYTES + int.from_bytes(held[at : at + 8], "little")
            if at + length > len(held):
                break
            yield held[at + HEAD_BYTES : at + length - FOOT_BYTES]
            at += length
        held = held[at:]


def checksum_trouble(stored: int, expected: int, what: str) -> str | None:
    """Describes the error of a masked checksum; None if it is as expected."""
    if stored == expected:
        return None
    return f"the checksum of {what} is {stored:#010x}, expected {expected:#010x} for its bytes"


def masked(crc: int) -> int:
    """A CRC32C as TFRecord files store it."""
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF


def filled(held: bytes, num_bytes: int, chunks: Iterator[bytes]) -> bytes:
    """Reads chunks until ``num_bytes`` are held; returns fewer only at the end of the file."""
    parts = [held]
    missing = num_bytes - len(held)
    while missing > 0 and (chunk := next(chunks, b"")):
        parts.append(chunk)
        missing -= len(chunk)
    return b"".join(parts)


def stored_chunks(url: str, *, chunk_bytes: int = _READ_BYTES) -> Iterator[bytes]:
    """The bytes of a file as stored, compressed or not, in chunks of bounded size."""
    num_bytes = storage.num_bytes(url)
    for start in range(0, num_bytes, chunk_bytes):
        yield storage.read_bytes(url, start, min(num_bytes, start + chunk_bytes))


def _hashed(chunks: Iterator[bytes], hasher: hashlib._Hash) -> Iterator[bytes]:
    for chunk in chunks:
        advance()
        hasher.update(chunk)
        yield chunk


@dataclasses.dataclass(frozen=True, kw_only=True)
class BrokenRecord:
    """One broken record."""

    number: int
    offset: int
    """The start of its frame, in uncompressed bytes."""
    what: str


@dataclasses.dataclass(kw_only=True)
class Scan:
    """The result of scanning a TFRecord file for damage."""

    num_intact: int = 0
    num_broken: int = 0
    broken: list[BrokenRecord] = dataclasses.field(default_factory=list)
    """The first broken records, in order."""
    max_broken: int = 1000
    """At most this many broken records are listed; the others are counted."""
    complete: bool = True
    """Whether the file was read to its end, frame by frame."""
    num_bytes: int = 0
    """Uncompressed bytes read."""
    ending: str | None = None
    """The error after the last record, if there is one."""
    _offsets: array.array[int] = dataclasses.field(default_factory=lambda: array.array("Q"))
    _lengths: array.array[int] = dataclasses.field(default_factory=lambda: array.array("Q"))

    @property
    def frames(self) -> Frames:
        """Offsets and lengths of the frames found, including broken ones: uint64[n]."""
        return np.array(self._offsets, np.uint64), np.array(self._lengths, np.uint64)

    @property
    def num_records(self) -> int:
        """The number of frames found, including broken ones."""
        return self.num_intact + self.num_broken

    def check(self, url: str) -> None:
        """Does nothing if the file is intact.

        Raises:
            DamagedSnapshotError: naming the first damaged record and its byte.
        """
        what, number, offset = self.ending, self.num_records, self.num_bytes
        if self.broken:
            first = self.broken[0]
            what, number, offset = first.what, first.number, first.offset
        if what is not None:
            raise DamagedSnapshotError(
                f"{storage.redact(url)} is damaged at record {number:,}, byte {offset:,}: {what}. "
                "Restore the file, or run the build again."
            )

    def note_intact(self, lengths: Sequence[int]) -> None:
        """Records intact frames, each after the one before."""
        offsets = list(itertools.accumulate(lengths, initial=self.num_bytes))
        self.num_bytes = offsets.pop()
        self.num_intact += len(lengths)
        self._offsets.extend(offsets)
        self._lengths.extend(lengths)

    def note(self, offset: int, length: int, what: str | None) -> None:
        """Records a frame, and what is wrong with it, if anything."""
        if what is not None:
            if self.num_broken < self.max_broken:
                broken = BrokenRecord(number=self.num_records, offset=offset, what=what)
                self.broken.append(broken)
            self.num_broken += 1
        else:
            self.num_intact += 1
        self._offsets.append(offset)
        self._lengths.append(length)
        self.num_bytes = offset + length


def frame_trouble(frame: bytes, length: int) -> str | None:
    """Describes the error of a frame that should have this length; None if it is intact."""
    if len(frame) < length:
        return f"the file ends {length - len(frame):,} bytes before the record does"
    stated, checksum = HEAD.unpack_from(frame)
    trouble = checksum_trouble(checksum, masked(google_crc32c.value(frame[:8])), "its length")
    if trouble is not None:
        return trouble
    if stated != length - FRAME_BYTES:
        return f"it has {stated:,} bytes, expected {length - FRAME_BYTES:,}"
    (checksum,) = _FOOT.unpack_from(frame, length - FOOT_BYTES)
    crc = google_crc32c.value(frame[HEAD_BYTES : length - FOOT_BYTES])
    return checksum_trouble(checksum, masked(crc), "the record")


def scan_tfrecord(
    url: str,
    compression: Compression,
    *,
    known: Frames | None = None,
    hasher: hashlib._Hash | None = None,
    read_bytes: int = _READ_BYTES,
    max_broken: int = 1000,
    max_beyond_bytes: int = 64 << 20,
) -> Scan:
    """Reads a TFRecord file to its end without TensorFlow, and checks every checksum.

    Skips over damage as far as possible. Memory holds a chunk of the file, whatever its records.

    Args:
        url: A local path or any fsspec URL.
        compression: ``"none"`` or ``"gzip"``.
        known: Offsets and lengths of the frames, from an intact index; None without one.
        hasher: Updated with the bytes of the file as they are read; with all of an intact one.
        read_bytes: Bytes read and decompressed at a time.
        max_broken: At most this many broken records are listed; the others are counted.
        max_beyond_bytes: At most this many uncompressed bytes are read beyond the end that
            ``known`` gives.

    Raises:
        StorageError: if the file cannot be read.
    """
    scan = Scan(max_broken=max_broken)
    stream = _Stream(url, compression, hasher, read_bytes=read_bytes)
    starts, lengths = known if known is not None else (np.empty(0, np.uint64),) * 2
    end = int(starts[-1] + lengths[-1]) if len(starts) else None
    trouble: str | None = None
    while True:
        # Where every length is damaged, looking for the next intact frames each time takes long.
        if trouble is None and (end is None or scan.num_bytes <= end):
            taken, troubles = stream.take_frames()
            if not troubles:
                scan.note_intact(taken)
            else:
                for place, length in enumerate(taken):
                    scan.note(scan.num_bytes, length, troubles.get(place))
        offset, number = scan.num_bytes, scan.num_records
        head = stream.take(HEAD_BYTES)
        if not head:
            scan.ending = stream.trouble
            scan.complete = stream.trouble is None
            return scan
        if end is not None and offset > end + max_beyond_bytes:
            scan.ending = "far more follows than was written"
            scan.complete = False
            return scan
        trouble = None
        if len(head) == HEAD_BYTES:
            stated, checksum = HEAD.unpack(head)
            length = FRAME_BYTES + stated
            trouble = checksum_trouble(
                checksum, masked(google_crc32c.value(head[:8])), "its length"
            )
        if len(head) < HEAD_BYTES or trouble is not None:
            # Only the index can tell where the next frame begins.
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
    """Reads the rest of a frame after its head: the bytes read in total, and what is wrong.

    Reads the record in pieces and checksums them: a record may be of any size.
    """
    crc = 0
    while num_read < length - FOOT_BYTES:
        piece = stream.take(min(length - FOOT_BYTES - num_read, _RECORD_PIECE_BYTES))
        if not piece:
            break
        crc = google_crc32c.extend(crc, piece)
        num_read += len(piece)
    foot = stream.take(length - num_read) if num_read >= length - FOOT_BYTES else b""
    num_read += len(foot)
    if num_read < length:
        return num_read, f"the file ends {length - num_read:,} bytes before the record does"
    return num_read, checksum_trouble(_FOOT.unpack(foot)[0], masked(crc), "the record")


def _with(what: str | None, cause: str | None) -> str | None:
    return what if what is None or cause is None else f"{what} ({cause})"


class _Stream:
    """The uncompressed bytes of a file, as far as they can be read."""

    def __init__(
        self,
        url: str,
        compression: Compression,
        hasher: hashlib._Hash | None = None,
        *,
        read_bytes: int = _READ_BYTES,
    ) -> None:
        self._read_bytes = read_bytes
        chunks = stored_chunks(url, chunk_bytes=read_bytes)
        if hasher is not None:
            chunks = _hashed(chunks, hasher)
        self.chunks = self._inflated(chunks) if compression == "gzip" else chunks
        self._held = b""
        self._at = 0
        self.trouble: str | None = None
        """Why the bytes end before the file does; None while nothing is wrong."""

    def take(self, num_bytes: int) -> bytes:
        """The next bytes; fewer only at the end."""
        if self._at + num_bytes > len(self._held):
            self._held = filled(self._held[self._at :], num_bytes, self.chunks)
            self._at = 0
        taken = self._held[self._at : self._at + num_bytes]
        self._at += len(taken)
        return taken

    def take_frames(self) -> tuple[list[int], dict[int, str]]:
        """Lengths of the next frames, as far as they are in memory; and errors, by place.

        Ends before a frame whose length is damaged. Checks many frames together: one by one takes
        several times as long.
        """
        held, edges = self._held, [self._at]
        while len(edges) <= _BATCH_FRAMES and edges[-1] + HEAD_BYTES <= len(held):
            end = edges[-1] + FRAME_BYTES + _LENGTH.unpack_from(held, edges[-1])[0]
            if end > len(held):
                break
            edges.append(end)
        if len(edges) == 1:
            return [], {}
        content, ends = np.frombuffer(held, np.uint8), np.array(edges)
        heads = content[ends[:-1, None] + np.arange(HEAD_BYTES)].view(_HEADS)[:, 0]
        damaged = np.flatnonzero(heads["checksum"] != _length_checksums(heads["length"]))
        if len(damaged):
            edges, ends = edges[: damaged[0] + 1], ends[: damaged[0] + 1]
        feet = content[ends[1:, None] + np.arange(-FOOT_BYTES, 0)].view(_CHECKSUM)[:, 0]
        bounds = itertools.pairwise(edges)
        checksums = _masked([held[a + HEAD_BYTES : b - FOOT_BYTES] for a, b in bounds])
        troubles = {
            n: trouble
            for n in np.flatnonzero(feet != checksums).tolist()
            if (trouble := checksum_trouble(int(feet[n]), int(checksums[n]), "the record"))
        }
        self._at = edges[-1]
        return np.diff(ends).tolist(), troubles

    def _inflated(self, chunks: Iterator[bytes]) -> Iterator[bytes]:
        """The content of a GZIP member, if damaged up to the last byte that can be recovered."""
        stream = zlib.decompressobj(wbits=31)
        for chunk in chunks:
            for start in range(0, len(chunk), _PIECE_BYTES):
                rest = chunk[start : start + _PIECE_BYTES]
                while not stream.eof:
                    before = stream.copy()
                    try:
                        plain = stream.decompress(rest, self._read_bytes)
                    except zlib.error as error:
                        # The error discards what was decompressed before the damage.
                        self.trouble = f"the GZIP stream is damaged: {error}"
                        yield from _byte_by_byte(before, rest)
                        return
                    rest = stream.unconsumed_tail
                    if plain:
                        yield plain
                    if not rest and len(plain) < self._read_bytes:
                        break
                if stream.unused_data or (stream.eof and rest):
                    self.trouble = "bytes follow the end of the GZIP stream"
                    return
        if not stream.eof:
            self.trouble = "the GZIP stream is truncated"


def _byte_by_byte(stream: zlib._Decompress, piece: bytes) -> Iterator[bytes]:
    with contextlib.suppress(zlib.error):
        for at in range(len(piece)):
            if plain := stream.decompress(piece[at : at + 1]):
                yield plain
