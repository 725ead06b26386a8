"""Parses serialized Examples and SequenceExamples without TensorFlow or protobuf.

Like protobuf's own parser, it accepts packed and unpacked numbers, fields in any order, unknown
fields (skipped), repeated names (the last one wins) and messages in several parts (merged).
Meant for single records; TensorFlow parses batches.

Wire format: https://protobuf.dev/programming-guides/encoding/
Messages: tensorflow/core/example/example.proto
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ...schemas.features import ListKind
from .varint import unpack_varints

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_ENTRY = {(1, _BYTES), (2, _BYTES)}
_ITEM = 1 << 3 | _BYTES
_INT64_LIST = 3
_KINDS: dict[int, ListKind] = {1: "bytes", 2: "float32", 3: "int64"}

_FLOATS = {(1, _BYTES), (1, _FIXED32)}


class ExampleList(NamedTuple):
    """One feature of an Example."""

    kind: ListKind
    values: list[bytes] | npt.NDArray[np.float32] | npt.NDArray[np.int64]


class NotAnExampleError(ValueError):
    """The bytes are not a serialized Example."""


def read_lists(serialized: bytes) -> dict[str, ExampleList]:
    """Reads the lists of an Example, by feature name.

    A feature without any list is treated as absent.

    Raises:
        NotAnExampleError: if the bytes are not an Example.
    """
    lists: dict[str, ExampleList | None] = {}
    for entry in _entries(serialized, 1):
        # Protobuf's parser (upb) skips a map entry that has an unknown field.
        if all(field[:2] in _ENTRY for field in _fields(entry)):
            lists[_name(entry)] = _list(b"".join(_parts(entry, 2)))
    return {name: values for name, values in lists.items() if values is not None}


def read_frames(serialized: bytes) -> dict[str, list[bytes]]:
    """Reads the feature lists of a SequenceExample, by name.

    Returns:
        The frames of each list, each a serialized ``tf.train.Feature``.

    Raises:
        NotAnExampleError: if the bytes are not a SequenceExample.
    """
    entries = _entries(serialized, 2)
    return {_name(entry): _items(b"".join(_parts(entry, 2))) for entry in entries}


def top_level_fields(message: bytes) -> set[int]:
    """A message's top-level field numbers: 1 in an Example, 1 and 2 in a SequenceExample.

    Raises:
        NotAnExampleError: if the bytes are not a message.
    """
    return {number for number, _, _ in _fields(message)}


def example_features(serialized: bytes) -> dict[str, bytes]:
    """The serialized features of an Example, by name.

    Raises:
        NotAnExampleError: if the bytes are not an Example.
    """
    return {_name(entry): b"".join(_parts(entry, 2)) for entry in _entries(serialized, 1)}


def int64_values(feature: bytes) -> list[int]:
    """The values of a serialized feature that is a list of packed integers; empty for other lists.

    For single values, such as labels: an array, as :func:`read_lists` makes, takes ten times as
    long.

    Raises:
        NotAnExampleError: if the bytes are not a feature.
    """
    values: list[int] = []
    for content in _parts(feature, _INT64_LIST):
        for packed in _parts(content, 1):
            at = 0
            while at < len(packed):
                value, at = _varint(packed, at)
                values.append(value - (1 << 64) if value >> 63 else value)
    return values


def _entries(message: bytes, field: int) -> list[bytes]:
    """The entries of the map (of features or feature lists) in a field of a message."""
    return _parts(b"".join(_parts(message, field)), 1)


def _name(entry: bytes) -> str:
    try:
        return b"".join(_parts(entry, 1)[-1:]).decode()
    except UnicodeDecodeError:
        raise NotAnExampleError("the name of a feature is not UTF-8") from None


def _list(feature: bytes) -> ExampleList | None:
    """The list that a Feature holds: of the kind that was set last."""
    chosen, parts = 0, [b""]
    for number, wire_type, value in _fields(feature):
        if number in _KINDS and wire_type == _BYTES:
            if number != chosen:
                chosen, parts = number, []
            parts.append(value)
    if not chosen:
        return None
    kind, content = _KINDS[chosen], b"".join(parts)
    if kind == "bytes":
        return ExampleList(kind, _parts(content, 1))
    if kind == "float32":
        numbers = b"".join(
            value for number, wire, value in _fields(content) if (number, wire) in _FLOATS
        )
        if len(numbers) % 4:
            raise NotAnExampleError("the length of a list of floats is not a multiple of 4 bytes")
        return ExampleList(kind, np.frombuffer(numbers, "<f4"))
    integers = [np.empty(0, np.int64)]
    for number, wire_type, value in _fields(content):
        if (number, wire_type) == (1, _BYTES):
            integers.append(_unpacked(value))
        elif (number, wire_type) == (1, _VARINT):
            integers.append(np.array([value], np.uint64).view(np.int64))
    return ExampleList(kind, np.concatenate(integers))


def _unpacked(packed: bytes) -> npt.NDArray[np.int64]:
    try:
        return unpack_varints(packed)
    except ValueError as error:
        raise NotAnExampleError(f"a list of integers: {error}") from None


def _parts(message: bytes, wanted: int) -> list[bytes]:
    """The contents of every occurrence of a field of bytes or messages."""
    return [
        value
        for number, wire_type, value in _fields(message)
        if number == wanted and wire_type == _BYTES
    ]


def _items(message: bytes) -> list[bytes]:
    """The contents of field 1, as :func:`_parts` returns them; faster if it is the only field."""
    items, at, end = [], 0, len(message)
    if end > 2 and message[0] == _ITEM and message[1] < 0x80:
        step = message[1] + 2
        num = -(-end // step)
        heads = message[::step], message[1::step]
        if num * step == end and heads == (message[:1] * num, message[1:2] * num):
            # All items are as long as the first one.
            return [message[start : start + step - 2] for start in range(2, end + 1, step)]
    try:
        while at < end:
            size, start = message[at + 1], at + 2
            if size > 0x7F:
                size, start = _varint(message, at + 1)
            if message[at] != _ITEM or start + size > end:
                return _parts(message, 1)
            at = start + size
            items.append(message[start:at])
    except IndexError:
        return _parts(message, 1)
    return items


def _fields(message: bytes) -> Iterator[tuple[int, int, Any]]:
    """Number, wire type and value of each field: an int for a varint, else bytes."""
    at = 0
    while at < len(message):
        start = at
        key, at = _varint(message, at)
        number, wire_type = key >> 3, key & 7
        if wire_type == _VARINT:
            value: int | bytes
            value, at = _varint(message, at)
            yield number, wire_type, value
            continue
        if wire_type == _BYTES:
            size, at = _varint(message, at)
        else:
            size = {_FIXED64: 8, _FIXED32: 4}.get(wire_type, -1)
        if size < 0 or number == 0:
            raise NotAnExampleError(f"invalid field header {message[start]:#04x}")
        if at + size > len(message):
            raise NotAnExampleError(
                f"truncated: a field has {size:,} bytes, but only {len(message) - at:,} are left"
            )
        yield number, wire_type, message[at : at + size]
        at += size


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """A varint's value and its end."""
    value = 0
    for place, byte in enumerate(message[at : at + 10]):
        value |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, at + place + 1
    raise NotAnExampleError("truncated: a varint without an end")
