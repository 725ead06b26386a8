"""Reads TFRecord frames at any offset and checks them, without TensorFlow."""

from __future__ import annotations

import contextlib
import functools
import gzip
import importlib.machinery
import json
import os
import shlex
import struct
import warnings
import weakref
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from . import facts


class LocalFile:
    """A file read at any offset, from any thread and from forked processes."""

    def __init__(self, path: str) -> None:
        self._number = os.open(path, os.O_RDONLY)
        weakref.finalize(self, os.close, self._number)

    def read(self, offset: int, size: int) -> bytes:
        """Bytes from an offset; fewer at the end of the file."""
        return os.pread(self._number, size, offset)


class Inflated:
    """A GZIP file read forwards; seeking back decompresses it again from the beginning."""

    def __init__(self, path: str, opened: Any = None) -> None:
        self._stream = gzip.GzipFile(path, "rb", fileobj=opened)
        weakref.finalize(self, self._stream.close)

    def read(self, offset: int, size: int) -> bytes:
        """Uncompressed bytes from an offset; fewer where the file ends or is damaged."""
        content = bytearray()
        with contextlib.suppress(EOFError, OSError, zlib.error):
            self._stream.seek(offset)
            while part := self._stream.read(min(size - len(content), 1 << 16)):
                content += part
        return bytes(content)


def fault_of(frame: bytes, length: int, check: bool) -> str:
    """Describes what is wrong with a TFRecord frame; "" if nothing.

    Args:
        frame: The bytes that were read of it.
        length: Length of the frame according to the shard's index.
        check: Whether to verify its checksums.
    """
    if len(frame) < length:
        return f"ends after {len(frame):,} of {length:,} bytes"
    size, of_size = struct.unpack_from("<QI", frame)
    if size != length - 16:
        return f"has {size:,} bytes according to its header, {length - 16:,} according to the index"
    (of_content,) = struct.unpack_from("<I", frame, length - 4)
    if check and (masked_crc32c(frame[:8]) != of_size or masked_crc32c(frame[12:-4]) != of_content):
        return "fails its checksum"
    return ""


def fault_of_shard(
    read: Callable[[int, int], bytes], num_bytes: int, compression: str, checksum: int | None
) -> str:
    """Quick check of a shard: describes what is wrong with it; "" if nothing.

    A shard of another snapshot may have the same size, and records of the same sizes. Compares the
    CRC32 of the content with which a GZIP file ends; otherwise the checksum of the first record.

    Args:
        read: (offset, size) -> bytes of the file as stored.
        num_bytes: Size of the file.
        compression: "none" or "gzip".
        checksum: The expected checksum; None if unknown.
    """
    if checksum is None:
        return ""
    if compression == "gzip":
        stored = read(num_bytes - 8, 4)
    else:
        head = read(0, 12)
        if len(head) < 12 or struct.unpack_from("<I", head, 8)[0] != masked_crc32c(head[:8]):
            return "does not begin with a record"
        stored = read(12 + struct.unpack_from("<Q", head)[0], 4)
    if stored != struct.pack("<I", checksum):
        return "is a different shard: its checksum is not the one that was recorded for it"
    return ""


def read_manifest(content: str, path: str) -> dict[str, Any]:
    """The manifest of the snapshot that this reader belongs to.

    Raises:
        ValueError: if it is not a manifest, or that of another snapshot.
    """
    try:
        manifest: dict[str, Any] = json.loads(content)
        identity = (manifest["fingerprint"], manifest["format_version"])
    except (ValueError, LookupError, TypeError):
        raise ValueError(
            f"{path} is not a manifest ({content[:99]!r}). Pass the folder of {facts.NAME} "
            f"{facts.FINGERPRINT} as root=, or copy the file again."
        ) from None
    if identity != (facts.FINGERPRINT, facts.FORMAT_VERSION):
        raise ValueError(
            f"{path} has fingerprint {identity[0]} (format {identity[1]}), this reader "
            f"{facts.FINGERPRINT} (format {facts.FORMAT_VERSION}). Use the reader of that "
            "snapshot, or pass another root=."
        )
    return manifest


def own_folder() -> str:
    """The folder of the snapshot that contains this package.

    Warns if Python would find another package of this name now: a second ``import reader`` returns
    the first one, whatever ``sys.path`` has become since.
    """
    package = os.path.dirname(os.path.abspath(__file__))
    folder, name = os.path.dirname(package), __name__.rpartition(".")[0]
    spec = None if "." in name else importlib.machinery.PathFinder.find_spec(name)
    if spec is not None and spec.origin:
        first = os.path.dirname(os.path.abspath(spec.origin))  # of a package, or of reader.py
        if os.path.realpath(first) not in map(
            os.path.realpath, (package, folder, os.path.dirname(folder))
        ):
            text = (
                f"`import {name}` was the snapshot in {folder}, and stays it until this process "
                f"ends, though sys.path now finds {first} first. For several snapshots use "
                "ss.load(FOLDER).reader(), or copies of their readers under other names with root=."
            )
            warnings.warn(text, UserWarning, stacklevel=5)
    return folder


def how_to_verify(root: str) -> str:
    """A sentence with the command that verifies all files of the snapshot under ``root``."""
    return f"Verify the snapshot: {shlex.join(['snapshard', 'verify', root])}"


def masked_crc32c(content: bytes) -> int:
    """The masked CRC32C that TFRecord uses."""
    checksum = _crc32c()(content)
    return ((checksum >> 15 | checksum << 17) + 0xA282EAD8) & 0xFFFFFFFF


@functools.cache
def _crc32c() -> Callable[[bytes], int]:
    """The function that computes CRC32C: from google-crc32c, or from tables."""
    try:
        import google_crc32c  # type: ignore[import-not-found, import-untyped, unused-ignore]
    except ImportError:
        return _crc32c_by_tables
    compiled: Callable[[bytes], int] = google_crc32c.value
    return compiled if google_crc32c.implementation == "c" else _crc32c_by_tables


@functools.cache
def _crc32c_tables() -> tuple[npt.NDArray[np.uint32], list[list[int]]]:
    """Effect of a byte followed by 0 … 255 others on the checksum: [following, byte], and lists."""
    row: Any = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        row = row >> 1 ^ (row & 1) * np.uint32(0x82F63B78)
    rows = [row]
    while len(rows) < 256:
        rows.append(rows[-1] >> 8 ^ row[rows[-1] & 255])
    return np.stack(rows[::-1]), [rows[place].tolist() for place in (0, 255, 254, 253, 252)]


def _crc32c_by_tables(content: bytes) -> int:
    """CRC32C: blocks of 256 bytes with NumPy, short content in plain Python."""
    table, (one, a, b, c, d) = _crc32c_tables()
    if len(content) < 32:
        state = 0xFFFFFFFF
        for byte in content:
            state = one[(state ^ byte) & 255] ^ state >> 8
        return state ^ 0xFFFFFFFF
    # Starting from all ones is the same as inverting the first four bytes. Zeros before them then
    # change nothing.
    first = int.from_bytes(content[:4], "little") ^ 0xFFFFFFFF
    padded = bytes(-len(content) % 256) + first.to_bytes(4, "little") + content[4:]
    places = np.frombuffer(padded, np.uint8).reshape(-1, 256) + np.arange(256) * 256
    state = 0
    for block in np.bitwise_xor.reduce(table.reshape(-1)[places], axis=1).tolist():
        # The four bytes of state act like four bytes of content with 252 more after them.
        state = a[state & 255] ^ b[state >> 8 & 255] ^ c[state >> 16 & 255] ^ d[state >> 24] ^ block
    return state ^ 0xFFFFFFFF
