"""How much the messages of Arrow IPC grow to when they are decompressed, before they are.

A compressed buffer begins with its length as it will be (``BodyCompression`` of the format's
Message.fbs), and pyarrow makes room for whatever stands there.
"""

from __future__ import annotations

import struct
from typing import Any

HEADER = 2
"""The field of a message that holds what it is about."""

_KIND, _BODY_BYTES = 1, 3
_DICTIONARY, _BATCH = 2, 3
_DICTIONARY_DATA = 1
_BUFFERS, _COMPRESSION = 2, 3
_BUFFER = struct.Struct("<qq")
_CONTINUED = b"\xff\xff\xff\xff"


def root(buffer: bytes) -> int:
    """Where the root table of a flatbuffer lies."""
    return int(struct.unpack_from("<I", buffer, 0)[0])


def field(buffer: bytes, table: int, index: int) -> int | None:
    """Where a field of a flatbuffers table lies; None where it is left out.

    Raises:
        ValueError: if the table is damaged.
        struct.error: likewise.
    """
    vtable = table - struct.unpack_from("<i", buffer, table)[0]
    if vtable < 0:
        raise ValueError("a table is damaged")
    (size,) = struct.unpack_from("<H", buffer, vtable)
    if 4 + 2 * index + 2 > size:
        return None
    (offset,) = struct.unpack_from("<H", buffer, vtable + 4 + 2 * index)
    return table + offset if offset else None


def message_of(metadata: bytes) -> bytes:
    """A message's flatbuffer without the length that stands before it."""
    return metadata[8 if metadata[:4] == _CONTINUED else 4 :]


def decompressed_bytes(source: Any, offset: int, metadata_bytes: int) -> int:
    """Length of a message's buffers once they are decompressed; 0 where it is not compressed.

    Raises:
        ValueError: if the message is damaged.
    """
    message = message_of(source.read_at(metadata_bytes, offset))
    try:
        (kind,) = struct.unpack_from("<B", message, field(message, root(message), _KIND) or 0)
        batch = _followed(message, root(message), HEADER)
        if kind == _DICTIONARY and batch is not None:
            batch = _followed(message, batch, _DICTIONARY_DATA)
        elif kind != _BATCH:
            batch = None
        if batch is None or field(message, batch, _COMPRESSION) is None:
            return 0
        vector = _followed(message, batch, _BUFFERS)
        if vector is None:
            return 0
        (count,) = struct.unpack_from("<I", message, vector)
        total = 0
        for i in range(min(count, len(message) // _BUFFER.size)):
            place, size = _BUFFER.unpack_from(message, vector + 4 + i * _BUFFER.size)
            if size >= 8:
                length = source.read_at(8, max(0, offset + metadata_bytes + place))
                total += max(0, int.from_bytes(length, "little", signed=True))
    except struct.error as error:
        raise ValueError(f"a message is damaged: {error}") from None
    return total


def stream_messages(source: Any) -> list[tuple[int, int]]:
    """Offset and bytes of metadata of a stream's messages, up to its end or to the first damage."""
    found: list[tuple[int, int]] = []
    offset, num_bytes = 0, source.size()
    while offset + 8 <= num_bytes:
        head = source.read_at(8, offset)
        prefix = 8 if head[:4] == _CONTINUED else 4
        size = int.from_bytes(head[prefix - 4 : prefix], "little", signed=True)
        if not 0 < size <= num_bytes - offset - prefix:
            break
        message = source.read_at(size, offset + prefix)
        try:
            place = field(message, root(message), _BODY_BYTES)
            body = 0 if place is None else struct.unpack_from("<q", message, place)[0]
        except (struct.error, ValueError):
            break
        found.append((offset, prefix + size))
        offset += prefix + size + max(0, body)
    return found


def _followed(buffer: bytes, table: int, index: int) -> int | None:
    """Where what a field refers to lies."""
    place = field(buffer, table, index)
    return None if place is None else int(place + struct.unpack_from("<I", buffer, place)[0])
