"""TFRecord files: written with TensorFlow's C++, verified without TensorFlow.

A TFRecord file is a row of frames, each ``uint64 length | uint32 checksum of the length | the
record | uint32 checksum of the record``, little-endian; the checksums are CRC32C, rotated and
shifted ("masked"). With GZIP the whole row is one GZIP member. Offsets and lengths are those of
whole frames in the uncompressed row.

Source: tensorflow/core/lib/io/record_writer.h.
"""

import dataclasses
import hashlib
import itertools
import struct
import zlib
from collections.abc import Iterable, Iterator

import google_crc32c
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ..schemas.errors import DamagedSnapshotError, StorageError
from ..schemas.shards import Compression
from . import storage

FRAME_BYTES = 16
"""What a frame adds to its record."""

_HEAD = struct.Struct("<QI")
_CHECKSUM = struct.Struct("<I")
_WRITE_BYTES = 8 << 20
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
    import tensorflow as tf

    sizes: list[npt.NDArray[np.int64]] = []
    try:
        with tf.io.TFRecordWriter(path, _tensorflow_name(compression)) as writer:
            for chunk in chunks_of_serialized:
                sizes.append(pc.binary_length(chunk).to_numpy())
                rows = 1 + _WRITE_BYTES * len(chunk) // max(1, int(sizes[-1].sum()))
                for start in range(0, len(chunk), rows):
                    for serialized in chunk.slice(start, rows).to_pylist():
                        writer.write(serialized)
        num_bytes = tf.io.gfile.stat(path).length
    except tf.errors.OpError as error:
        raise StorageError(
            f"{path} could not be written: {error.message}. Free the space or choose another "
            "scratch folder (TMPDIR), and start again."
        ) from None
    lengths = np.concatenate([np.empty(0, np.int64), *sizes]) + FRAME_BYTES
    return TFRecordFile(
        num_examples=len(lengths),
        num_bytes=num_bytes,
        offsets=(np.cumsum(lengths) - lengths).astype(np.uint64),
        lengths=lengths.astype(np.uint64),
    )


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
    stored = _chunks(url) if hasher is None else _hashed(_chunks(url), hasher)
    frames = _frames(_inflated(stored) if compression == "gzip" else stored)
    offset = 0
    for number in itertools.count():
        try:
            length = next(frames, None)
        except (_BrokenFrameError, zlib.error) as error:
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


class _BrokenFrameError(Exception):
    """What is wrong with a frame; the scan adds where it is."""


def _frames(chunks: Iterator[bytes]) -> Iterator[int]:
    """Checks frame after frame, and gives their lengths."""
    held, at = b"", 0
    while True:
        if len(held) - at < _HEAD.size:
            held, at = _filled(held[at:], _HEAD.size, chunks), 0
            if not held:
                return
            if len(held) < _HEAD.size:
                raise _BrokenFrameError(f"the file ends {len(held)} bytes into a frame's head")
        length, checksum = _HEAD.unpack_from(held, at)
        _check(held[at : at + 8], checksum, "its length")
        end = at + _HEAD.size + length
        if len(held) < end + _CHECKSUM.size:
            held, at, end = _filled(held[at:], end + _CHECKSUM.size - at, chunks), 0, end - at
            missing = end + _CHECKSUM.size - len(held)
            if missing > 0:
                raise _BrokenFrameError(f"the file ends {missing:,} bytes before the frame does")
        _check(held[at + _HEAD.size : end], _CHECKSUM.unpack_from(held, end)[0], "the record")
        yield length + FRAME_BYTES
        at = end + _CHECKSUM.size


def _check(content: bytes, stored: int, what: str) -> None:
    """Compares a masked CRC32C."""
    crc = google_crc32c.value(content)
    masked = ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
    if masked != stored:
        raise _BrokenFrameError(
            f"the checksum of {what} is {stored:#010x}, expected {masked:#010x} for what is there"
        )


def _filled(held: bytes, num_bytes: int, chunks: Iterator[bytes]) -> bytes:
    """Takes chunks until so many bytes are held; fewer only where the file ends."""
    parts = [held]
    missing = num_bytes - len(held)
    while missing > 0 and (chunk := next(chunks, b"")):
        parts.append(chunk)
        missing -= len(chunk)
    return b"".join(parts)


def _chunks(url: str) -> Iterator[bytes]:
    num_bytes = storage.num_bytes(url)
    for start in range(0, num_bytes, _READ_BYTES):
        yield storage.read_bytes(url, start, min(num_bytes, start + _READ_BYTES))


def _hashed(chunks: Iterator[bytes], hasher: "hashlib._Hash") -> Iterator[bytes]:
    for chunk in chunks:
        hasher.update(chunk)
        yield chunk


def _inflated(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """The content of one GZIP member."""
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
                raise _BrokenFrameError("bytes follow after the end of the GZIP stream")
    if not stream.eof:
        raise _BrokenFrameError("the GZIP stream breaks off")


def _tensorflow_name(compression: Compression) -> str:
    return {"none": "", "gzip": "GZIP"}[compression]
