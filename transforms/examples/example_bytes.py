"""Takes serialized examples apart, without TensorFlow: which features they have, and their bytes.

A ``tf.train.Example`` is a message in whose field 1 lies a map: an entry (field 1) for each
feature, with its name in field 1 and the feature, one of three kinds of list, in field 2.
Source: tensorflow/core/example/example.proto.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...schemas.errors import DamagedSnapshotError
from ...schemas.shards import Compression
from .. import storage
from .tfrecord import FOOT_BYTES, FRAME_BYTES, HEAD_BYTES, filled, uncompressed_chunks

_VARINT, _EIGHT, _LENGTH, _FOUR = 0, 1, 2, 5
_FIXED = {_EIGHT: 8, _FOUR: 4}
_INT64_LIST = 3


def stored_examples(url: str, compression: Compression) -> Iterator[bytes]:
    """The serialized examples of a file, in order; no checksum is held.

    Raises:
        DamagedSnapshotError: if it ends in the middle of one, or its compression is broken.
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


def example_features(serialized: bytes) -> dict[str, bytes]:
    """The features of an example by name, each as it is serialized.

    Raises:
        ValueError: if it is no example.
    """
    found: dict[str, bytes] = {}
    for number, features in _fields(serialized):
        if number != 1:
            continue
        for _, entry in _fields(features):
            name, value = b"", b""
            for inner, content in _fields(entry):
                name, value = (content, value) if inner == 1 else (name, content)
            found[name.decode()] = value
    return found


def int64_values(feature: bytes) -> list[int]:
    """The values of a feature that is a list of integers; none of other lists.

    Raises:
        ValueError: if it is no feature.
    """
    values: list[int] = []
    for number, content in _fields(feature):
        if number != _INT64_LIST:
            continue
        for inner, packed in _fields(content):
            at = 0
            while inner == 1 and at < len(packed):
                value, at = _varint(packed, at)
                values.append(value - (1 << 64) if value >> 63 else value)
    return values


def first_difference(first: bytes, second: bytes) -> str:
    """Says in which features two examples differ.

    Raises:
        ValueError: if one is no example.
    """
    left, right = example_features(first), example_features(second)
    names = [name for name in sorted({*left, *right}) if left.get(name) != right.get(name)]
    if not names:
        return "the order of its features"
    more = f" and {len(names) - 5:,} more" if len(names) > 5 else ""
    return f"feature{'s' if len(names) > 1 else ''} {', '.join(map(repr, names[:5]))}{more}"


def _fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """The fields of a message that have a length: their number and content."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        number, kind = key >> 3, key & 7
        if kind == _VARINT:
            _, at = _varint(message, at)
            continue
        size = _FIXED.get(kind)
        if kind == _LENGTH:
            size, at = _varint(message, at)
        if size is None or at + size > len(message):
            raise ValueError(f"no message of protocol buffers: odd field at byte {at}")
        if kind == _LENGTH:
            yield number, message[at : at + size]
        at += size


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(message) and shift < 64:
        byte = message[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value & ((1 << 64) - 1), at
    raise ValueError(f"no message of protocol buffers: odd number at byte {at}")
