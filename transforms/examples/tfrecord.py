"""TFRecord files: written and verified without TensorFlow, but for the writing of GZIP.

A TFRecord file is a row of frames, each ``uint64 length | uint32 checksum of the length | the
record | uint32 checksum of the record``, little-endian; the checksums are CRC32C, rotated and
shifted ("masked"). With GZIP the whole row is one GZIP member. Offsets and lengths are those of
whole frames in the uncompressed row.

TensorFlow's own writer makes the same bytes, a record at a time: in twice the processor time for
records of 12 kB, in two and a half times for those of 200 B. GZIP's bytes depend on the library
that compresses: they are TensorFlow's, as they were.

Source: tensorflow/core/lib/io/record_writer.h.
"""

import dataclasses
import hashlib
import itertools
import os
import struct
import zlib
from collections.abc import Iterable, Iterator
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
from ..storage.failures import telling_os_errors

HEAD_BYTES, FOOT_BYTES = 12, 4
"""A frame: the record's length and its checksum, the record, the record's checksum."""
FRAME_BYTES = HEAD_BYTES + FOOT_BYTES
"""What a frame adds to its record."""

_HEAD = struct.Struct("<QI")
_HEADS = np.dtype([("length", "<u8"), ("checksum", "<u4")])
_LENGTH = struct.Struct("<Q")
_CHECKSUM = np.dtype("<u4")
_MASK_DELTA = 0xA282EAD8
_GZIP_FOOT_BYTES = 8
"""The CRC32 of the content and its length, with which a GZIP file ends."""
_WRITE_BYTES = 2 << 20
_READ_BYTES = 4 << 20


@dataclasses.dataclass(frozen=True, kw_only=True)
class TFRecordFile:
    """A TFRecord file that was written."""

    num_examples: int
    num_bytes: int
    """Length of the file as it lies there, compressed or not."""
    offsets: npt.NDArray[np.uint64]
    """uint64[num_examples]: where each record's frame begins in the uncompressed bytes."""
    lengths: npt.NDArray[np.uint64]
    """uint64[num_examples]: bytes of each frame, its 16 bytes of framing included."""
    checksum: int | None
    """What cheaply distinguishes the file from others of its size; None if it has no record.

    The masked CRC32C of the first record, as its frame holds it; with GZIP the CRC32 of the whole
    content, with which the file ends.
    """


def write_tfrecord(
    path: str, chunks_of_serialized: Iterable[pa.LargeBinaryArray], *, compression: Compression
) -> TFRecordFile:
    """Writes serialized examples as one TFRecord file; the same bytes for the same examples.

    Args:
        path: A local path; an existing file is overwritten.
        chunks_of_serialized: Examples in order, as from ``encode_examples``; one chunk is held
            at a time.
        compression: ``"none"`` or ``"gzip"``.

    Returns:
        What was written, and where each record lies.

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
    """The little-endian uint32 at a byte of a file."""
    with telling_os_errors("read", path), open(path, "rb") as file:
        file.seek(offset)
        return int.from_bytes(file.read(4), "little")


def _slices(
    chunks: Iterable[pa.LargeBinaryArray], sizes: list[npt.NDArray[np.int64]]
) -> Iterator[pa.LargeBinaryArray]:
    """Examples in slices of about _WRITE_BYTES; collects the lengths of all."""
    for chunk in chunks:
        sizes.append(pc.binary_length(chunk).to_numpy())
        rows = 1 + _WRITE_BYTES * len(chunk) // max(1, int(sizes[-1].sum()))
        for start in range(0, len(chunk), rows):
            yield chunk.slice(start, rows)


def _write_plain(path: str, slices: Iterator[pa.LargeBinaryArray]) -> None:
    with telling_os_errors("write", path), open(path, "wb") as file:
        for examples in slices:
            file.write(_framed(examples))


def _write_gzip(path: str, slices: Iterator[pa.LargeBinaryArray]) -> None:
    import tensorflow as tf

    with telling_os_errors("write", path), tf.io.TFRecordWriter(path, "GZIP") as writer:
        for examples in slices:
            for serialized in examples.to_pylist():
                writer.write(serialized)


def _framed(examples: pa.LargeBinaryArray) -> pa.Buffer:
    """The frames of serialized examples, end to end."""
    lengths = pc.binary_length(examples).to_numpy()
    heads = np.empty(len(examples), _HEADS)
    heads["length"] = lengths
    heads["checksum"] = _length_checksums(lengths)
    feet = _masked(examples.to_pylist())
    empty = pa.scalar(b"", pa.large_binary())
    frames = pc.binary_join_element_wise(_fixed(heads), examples, _fixed(feet), empty)
    return frames.buffers()[2]


def _length_checksums(lengths: npt.NDArray[np.integer]) -> npt.NDArray[np.uint32]:
    """The masked checksum of each length, as it stands in a frame's head."""
    known, where = np.unique(lengths, return_inverse=True)
    return _masked([_LENGTH.pack(length) for length in known.tolist()])[where]


def _masked(contents: list[bytes]) -> npt.NDArray[np.uint32]:
    """The masked checksums, little-endian uint32[n]."""
    crcs = np.fromiter(map(google_crc32c.value, contents), np.uint32, len(contents))
    return ((crcs >> 15 | crcs << 17) + np.uint32(_MASK_DELTA)).astype("<u4")


def _fixed(values: npt.NDArray[Any]) -> pa.LargeBinaryArray:
    """The bytes of each value."""
    ends = np.arange(len(values) + 1, dtype=np.int64) * values.itemsize
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(values.tobytes())]
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(values), buffers)


def scan_tfrecord(
    url: str, compression: Compression, *, hasher: "hashlib._Hash | None" = None
) -> Iterator[tuple[int, int]]:
    """Reads a TFRecord file without TensorFlow and checks every checksum.

    Args:
        url: A local path or any fsspec URL.
        compression: ``"none"`` or ``"gzip"``.
        hasher: Updated with the bytes of the file as they are read; at the end, with all.

    Yields:
        Offset and length of each frame, in uncompressed bytes.

    Raises:
        DamagedSnapshotError: at the first record that is damaged; says which, at which byte.
        StorageError: if the file cannot be read.
    """
    stored = stored_chunks(url) if hasher is None else _hashed(stored_chunks(url), hasher)
    frames = _frames(inflated(stored) if compression == "gzip" else stored)
    offset = 0
    for number in itertools.count():
        try:
            length = next(frames, None)
        except (BrokenFrameError, zlib.error) as error:
            where = f"record {number:,}, byte {offset:,}"
            if compression == "gzip":
                # A broken stream may show before the records that it still gave are taken.
                where = f"or after {where} of the uncompressed bytes"
            raise DamagedSnapshotError(
                f"{storage.redact(url)} is damaged at {where}: {error}. Restore the file, or build "
                "again."
            ) from None
        if length is None:
            return
        yield offset, length
        offset += length


def uncompressed_chunks(url: str, compression: Compression) -> Iterator[bytes]:
    """The bytes of a TFRecord file, uncompressed, in chunks of bounded size; no checksum is held.

    Raises:
        DamagedSnapshotError: if its compression is broken.
        StorageError: if the file cannot be read.
    """
    stored = stored_chunks(url)
    if compression == "none":
        yield from stored
        return
    try:
        yield from inflated(stored)
    except (BrokenFrameError, zlib.error) as error:
        raise DamagedSnapshotError(
            f"{storage.redact(url)} is damaged: {error}. Restore the file, or build again."
        ) from None


class BrokenFrameError(Exception):
    """What is wrong with a frame; the scan adds where it is."""


def _frames(chunks: Iterator[bytes]) -> Iterator[int]:
    """Checks the frames of a chunk together, and gives their lengths."""
    held = b""
    while True:
        edges, at = [], 0
        while at + _HEAD.size <= len(held):
            end = at + FRAME_BYTES + _LENGTH.unpack_from(held, at)[0]
            if end > len(held):
                break
            edges.append(at)
            at = end
        if edges:
            yield from _checked(held, [*edges, at])
            held = held[at:]
        num_bytes = _HEAD.size
        if len(held) >= num_bytes:
            length, checksum = _HEAD.unpack_from(held)
            expected = _length_checksums(np.array([length], np.uint64))
            _compare(checksum, int(expected[0]), "its length")
            num_bytes = FRAME_BYTES + length
        held = filled(held, num_bytes, chunks)
        if not held:
            return
        if len(held) < _HEAD.size:
            raise BrokenFrameError(f"the file ends {len(held)} bytes into a frame's head")
        if len(held) < num_bytes:
            missing = num_bytes - len(held)
            raise BrokenFrameError(f"the file ends {missing:,} bytes before the frame does")


def _checked(held: bytes, edges: list[int]) -> Iterator[int]:
    """The lengths of frames that lie end to end between these edges, up to one that is broken."""
    content, ends = np.frombuffer(held, np.uint8), np.array(edges)
    starts, stops = ends[:-1, None], ends[1:, None]
    heads = content[starts + np.arange(_HEAD.size)].view(_HEADS)[:, 0]
    feet = content[stops + np.arange(-_CHECKSUM.itemsize, 0)].view(_CHECKSUM)[:, 0]
    head_checksums = _length_checksums(heads["length"])
    bounds = itertools.pairwise(edges)
    checksums = _masked([held[a + _HEAD.size : b - _CHECKSUM.itemsize] for a, b in bounds])
    broken = np.flatnonzero((heads["checksum"] != head_checksums) | (feet != checksums))
    yield from np.diff(ends)[: broken[0] if len(broken) else None].tolist()
    for n in broken[:1]:
        _compare(int(heads["checksum"][n]), int(head_checksums[n]), "its length")
        _compare(int(feet[n]), int(checksums[n]), "the record")


def _compare(stored: int, expected: int, what: str) -> None:
    trouble = checksum_trouble(stored, expected, what)
    if trouble is not None:
        raise BrokenFrameError(trouble)


def checksum_trouble(stored: int, expected: int, what: str) -> str | None:
    """What is wrong with a masked checksum; None if it is the one that is expected."""
    if stored == expected:
        return None
    return f"the checksum of {what} is {stored:#010x}, expected {expected:#010x} for what is there"


def masked(crc: int) -> int:
    """A CRC32C as TFRecord files store it."""
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF


def filled(held: bytes, num_bytes: int, chunks: Iterator[bytes]) -> bytes:
    """Takes chunks until so many bytes are held; fewer only where the file ends."""
    parts = [held]
    missing = num_bytes - len(held)
    while missing > 0 and (chunk := next(chunks, b"")):
        parts.append(chunk)
        missing -= len(chunk)
    return b"".join(parts)


def stored_chunks(url: str) -> Iterator[bytes]:
    """The bytes of a file as it lies there, compressed or not, in chunks of bounded size."""
    num_bytes = storage.num_bytes(url)
    for start in range(0, num_bytes, _READ_BYTES):
        yield storage.read_bytes(url, start, min(num_bytes, start + _READ_BYTES))


def _hashed(chunks: Iterator[bytes], hasher: "hashlib._Hash") -> Iterator[bytes]:
    for chunk in chunks:
        advance()
        hasher.update(chunk)
        yield chunk


def inflated(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """The content of one GZIP member, in chunks of bounded size.

    Raises:
        BrokenFrameError: if it breaks off, or more follows it.
        zlib.error: if it is damaged.
    """
    stream = zlib.decompressobj(wbits=31)
    for chunk in chunks:
        rest = chunk
        while not stream.eof:
            plain = stream.decompress(rest, _READ_BYTES)
            rest = stream.unconsumed_tail
            if plain:
                yield plain
            elif not rest:
                break
        else:
            rest = stream.unused_data or rest
            if rest:
                raise BrokenFrameError("bytes follow after the end of the GZIP stream")
    if not stream.eof:
        raise BrokenFrameError("the GZIP stream breaks off")
