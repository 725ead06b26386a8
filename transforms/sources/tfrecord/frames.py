"""Reads the frames of an untrusted TFRecord file: intact records, and the location of damage.

The compression is detected from the content: GZIP, ZLIB or none. Offsets count uncompressed bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import google_crc32c

from ....schemas.limits import Limits
from ....schemas.recipe import OpenSource
from ...examples.tfrecord import FRAME_BYTES, HEAD, HEAD_BYTES, masked
from ...storage.decompress import DamagedError, compression_of, decompressed

_READ_BYTES = 4 << 20


class Frame(NamedTuple):
    """A record, or the problem at its offset."""

    offset: int
    content: bytes
    """The record; if damaged, the available part, or empty if its start is unknown."""
    problem: str = ""
    last: bool = False
    """Whether nothing after it can be read."""


def compression(head: bytes) -> str:
    """The compression of a TFRecord file with this head: ``gzip``, ``zlib`` or ``none``.

    Raises:
        ValueError: if it is not a TFRecord file.
    """
    if compression_of(head) == "gzip":
        return "gzip"
    if len(head) >= HEAD_BYTES and _head_problem(head) == "":
        return "none"
    if len(head) >= 2 and head[0] & 15 == 8 and int.from_bytes(head[:2], "big") % 31 == 0:
        return "zlib"
    raise ValueError("it does not begin with a TFRecord frame header")


def read_frames(opened: OpenSource, path: str, start: int, stop: int) -> Iterator[Frame]:
    """The frames that begin in [start, stop), or all frames of a compressed file.

    After a record with a wrong checksum, reading continues. A record whose length is unreliable, or
    that is cut off by the end of the file, is the last frame.

    Raises:
        ValueError: if it is not a TFRecord file.
    """
    kind = compression(opened.read(path, 0, HEAD_BYTES))
    if kind == "none":
        yield from _frames(_ranged(opened, path, start), start, stop, limits=opened.limits)
        return
    pieces = decompressed(
        lambda a, b: opened.read(path, a, b), kind, max_expansion=opened.limits.max_expansion
    )
    yield from _frames(pieces, 0, None, limits=opened.limits)


def frame_offsets(opened: OpenSource, path: str, *, num_bytes: int, every: int) -> list[int]:
    """Offsets of frames, about ``every`` bytes apart, up to the first damaged one.

    Raises:
        ValueError: if it is not a TFRecord file.
    """
    if compression(opened.read(path, 0, HEAD_BYTES)) != "none":
        return []
    found: list[int] = []
    at, window, window_start = 0, b"", 0
    while at + HEAD_BYTES <= num_bytes:
        if not window_start <= at <= window_start + len(window) - HEAD_BYTES:
            window, window_start = opened.read(path, at, at + _READ_BYTES), at
        head = window[at - window_start : at - window_start + HEAD_BYTES]
        if len(head) < HEAD_BYTES or _head_problem(head):
            break
        if at >= (found[-1] if found else 0) + every:
            found.append(at)
        at += HEAD.unpack(head)[0] + FRAME_BYTES
    return found


def _frames(
    pieces: Iterator[bytes], start: int, stop: int | None, *, limits: Limits
) -> Iterator[Frame]:
    held, at, offset = b"", 0, start

    def fill(num_bytes: int) -> bool:
        """Reads pieces until ``num_bytes`` are held."""
        nonlocal held, at
        parts, size = [held[at:]], len(held) - at
        while size < num_bytes:
            piece = next(pieces, b"")
            if not piece:
                break
            parts.append(piece)
            size += len(piece)
        held, at = b"".join(parts), 0
        return size >= num_bytes

    try:
        while stop is None or offset < stop:
            if len(held) - at < HEAD_BYTES and not fill(HEAD_BYTES):
                if held:
                    problem = f"truncated: the file has {len(held)} of {HEAD_BYTES} header bytes"
                    yield Frame(offset, b"", problem, True)
                return
            problem = _head_problem(held[at : at + HEAD_BYTES], limits.max_record_bytes)
            if problem:
                yield Frame(offset, b"", problem, True)
                return
            length = HEAD.unpack_from(held, at)[0]
            size = length + FRAME_BYTES
            if len(held) - at < size and not fill(size):
                problem = f"truncated: the file has {len(held):,} of its {size:,} bytes"
                yield Frame(offset, held[HEAD_BYTES:], problem, True)
                return
            content = held[at + HEAD_BYTES : at + HEAD_BYTES + length]
            stored = int.from_bytes(held[at + size - 4 : at + size], "little")
            if masked(google_crc32c.value(content)) == stored:
                yield Frame(offset, content)
            else:
                yield Frame(offset, content, "the checksum of the record does not match")
            at += size
            offset += size
    except DamagedError as error:
        yield Frame(offset, b"", str(error), True)


def _head_problem(head: bytes, max_bytes: int | None = None) -> str:
    length, checksum = HEAD.unpack(head[:HEAD_BYTES])
    if masked(google_crc32c.value(head[:8])) != checksum:
        return "the checksum of a record's length does not match"
    if max_bytes is not None and length > max_bytes:
        return f"a record claims {length:,} bytes, more than {max_bytes:,}"
    return ""


def _ranged(opened: OpenSource, path: str, start: int) -> Iterator[bytes]:
    while piece := opened.read(path, start, start + _READ_BYTES):
        start += len(piece)
        yield piece
