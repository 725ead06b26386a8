"""Frames of TFRecord files at any place: read and checked, without TensorFlow."""

from __future__ import annotations

import contextlib
import functools
import gzip
import os
import shlex
import struct
import weakref
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt


class LocalFile:
    """A file that is read at any place, from any thread and from forked processes."""

    def __init__(self, path: str) -> None:
        self._number = os.open(path, os.O_RDONLY)
        weakref.finalize(self, os.close, self._number)

    def read(self, offset: int, size: int) -> bytes:
        """Bytes at a place; fewer where the file ends."""
        return os.pread(self._number, size, offset)


class Inflated:
    """A GZIP file that is read forwards; going back inflates it again from its beginning."""

    def __init__(self, path: str, opened: Any = None) -> None:
        self._stream = gzip.GzipFile(path, "rb", fileobj=opened)
        weakref.finalize(self, self._stream.close)

    def read(self, offset: int, size: int) -> bytes:
        """Bytes at a place; fewer where the file ends or is damaged."""
        found = bytearray()
        with contextlib.suppress(EOFError, OSError, zlib.error):
            self._stream.seek(offset)
            while part := self._stream.read(min(size - len(found), 1 << 16)):
                found += part
        return bytes(found)


def fault_of(frame: bytes, length: int, check: bool) -> str:
    """What is wrong with a TFRecord frame, if anything.

    Args:
        frame: What was read of it.
        length: Of the frame, by the shard's index.
        check: Whether to compute its checksums.
    """
    if len(frame) < length:
        return f"ends after {len(frame):,} of {length:,} bytes"
    size, of_size = struct.unpack_from("<QI", frame)
    if size != length - 16:
        return f"has {size:,} bytes by its head, and {length - 16:,} by the index"
    (of_content,) = struct.unpack_from("<I", frame, length - 4)
    if check and (masked_crc32c(frame[:8]) != of_size or masked_crc32c(frame[12:-4]) != of_content):
        return "fails its checksum"
    return ""


def fault_of_shard(
    read: Callable[[int, int], bytes], num_bytes: int, compression: str, checksum: int | None
) -> str:
    """What is wrong with a shard at the first glance, if anything.

    A shard of another snapshot may have the same size, and records of the same sizes. A GZIP file
    ends with the CRC32 of its content; else the checksum of the first record is compared.

    Args:
        read: (offset, size) -> bytes of the file as it is stored.
        num_bytes: Its size.
        compression: "none" or "gzip".
        checksum: What there must be; None where it is not known.
    """
    if checksum is None:
        return ""
    if compression == "gzip":
        found = read(num_bytes - 8, 4)
    else:
        head = read(0, 12)
        if len(head) < 12 or struct.unpack_from("<I", head, 8)[0] != masked_crc32c(head[:8]):
            return "does not begin with a record"
        found = read(12 + struct.unpack_from("<Q", head)[0], 4)
    if found != struct.pack("<I", checksum):
        return "is another shard: it does not have the checksum that it was written with"
    return ""


def how_to_verify(root: str) -> str:
    """The command that checks all files of the snapshot in a folder or at a URL, in a sentence."""
    package = os.path.dirname(os.path.abspath(__file__))
    command = ["python", package, "verify"]
    command += [] if os.path.dirname(package) == os.path.abspath(root) else ["--root", root]
    return f"Verify the snapshot: {shlex.join(command)}"


def masked_crc32c(content: bytes) -> int:
    """The CRC32C of some bytes, as a TFRecord has it."""
    checksum = _crc32c()(content)
    return ((checksum >> 15 | checksum << 17) + 0xA282EAD8) & 0xFFFFFFFF


@functools.cache
def _crc32c() -> Callable[[bytes], int]:
    """The function that gives a CRC32C: google-crc32c's, or one by tables."""
    try:
        import google_crc32c  # type: ignore[import-not-found, import-untyped, unused-ignore]
    except ImportError:
        return _crc32c_by_tables
    compiled: Callable[[bytes], int] = google_crc32c.value
    return compiled if google_crc32c.implementation == "c" else _crc32c_by_tables


@functools.cache
def _crc32c_tables() -> tuple[npt.NDArray[np.uint32], list[list[int]]]:
    """What a byte followed by 0 … 255 others does to the checksum: [following, byte], and lists."""
    row: Any = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        row = row >> 1 ^ (row & 1) * np.uint32(0x82F63B78)
    rows = [row]
    while len(rows) < 256:
        rows.append(rows[-1] >> 8 ^ row[rows[-1] & 255])
    return np.stack(rows[::-1]), [rows[place].tolist() for place in (0, 255, 254, 253, 252)]


def _crc32c_by_tables(content: bytes) -> int:
    """CRC32C: NumPy takes blocks of 256 bytes, plain Python what is short."""
    table, (one, a, b, c, d) = _crc32c_tables()
    if len(content) < 32:
        state = 0xFFFFFFFF
        for byte in content:
            state = one[(state ^ byte) & 255] ^ state >> 8
        return state ^ 0xFFFFFFFF
    # A state of ones is as good as inverting the first four bytes, and zeros before them are then
    # as good as nothing.
    first = int.from_bytes(content[:4], "little") ^ 0xFFFFFFFF
    padded = bytes(-len(content) % 256) + first.to_bytes(4, "little") + content[4:]
    places = np.frombuffer(padded, np.uint8).reshape(-1, 256) + np.arange(256) * 256
    state = 0
    for block in np.bitwise_xor.reduce(table.reshape(-1)[places], axis=1).tolist():
        # Four bytes of state are as four bytes of content, 252 more behind them.
        state = a[state & 255] ^ b[state >> 8 & 255] ^ c[state >> 16 & 255] ^ d[state >> 24] ^ block
    return state ^ 0xFFFFFFFF
