"""The payload of a reject: the bytes of its record in the source, or its values as JSON.

Up to 64 KiB are kept. For longer bytes the reject has their length, their sha256 and, if known,
their range in the source file. In values, cells that are too long are cut: each is replaced by its
length and the sha256 of its values, end to end.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import math
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from ..schemas.errors import PayloadPlace, Reject

MAX_PAYLOAD_BYTES = 64 << 10
"""Maximum length of a payload that a reject keeps."""

_MAX_CELL_BYTES = 63 << 10
_MAX_BASE64_BYTES = 47 << 10
_MAX_DEPTH = 32
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


def with_bytes(reject: Reject, content: bytes, *, start: int | None = None) -> Reject:
    """The reject with the bytes of its record in the source.

    Args:
        reject: A reject without a payload.
        content: The record's bytes.
        start: Where they begin in the source file; None if unknown, or not in one place.
    """
    if len(content) <= MAX_PAYLOAD_BYTES:
        return dataclasses.replace(reject, payload=content)
    place = PayloadPlace(
        sha256=hashlib.sha256(content).hexdigest(),
        num_bytes=len(content),
        start=start,
        stop=None if start is None else start + len(content),
    )
    return dataclasses.replace(reject, place=place)


def with_values(reject: Reject, values: Mapping[str, Any]) -> Reject:
    """The reject with the values of its record, as JSON."""
    return _with_json(reject, {name: _plain(value, 0) for name, value in values.items()})


def with_row(reject: Reject, columns: pa.RecordBatch, row: int) -> Reject:
    """The reject with the values of one row of Arrow columns, as JSON."""
    cells = {
        name: _cell(column.slice(row, 1))
        for name, column in zip(columns.schema.names, columns.columns, strict=True)
    }
    return _with_json(reject, cells)


def _with_json(reject: Reject, cells: dict[str, Any]) -> Reject:
    texts = {name: json.dumps(value, allow_nan=False) for name, value in cells.items()}
    total = sum(len(json.dumps(name)) + len(text) + 4 for name, text in texts.items())
    for name in sorted(texts, key=lambda one: (-len(texts[one]), one)):
        if total <= MAX_PAYLOAD_BYTES or len(texts[name]) <= 200:
            break
        total -= len(texts[name])
        texts[name] = json.dumps({**_cut(texts[name].encode()), "of": "json"})
        total += len(texts[name])
    inside = ", ".join(f"{json.dumps(name)}: {text}" for name, text in texts.items())
    content = f"{{{inside}}}".encode()
    kind = "values"
    if len(content) <= MAX_PAYLOAD_BYTES:
        return dataclasses.replace(reject, payload=content, payload_kind=kind)
    place = PayloadPlace(sha256=hashlib.sha256(content).hexdigest(), num_bytes=len(content))
    return dataclasses.replace(reject, place=place, payload_kind=kind)


def _cut(content: bytes) -> dict[str, Any]:
    return {"cut": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def _cell(array: pa.Array) -> Any:
    """The single value of an array, or its length and hash if it is long."""
    if array.nbytes <= _MAX_CELL_BYTES:
        return _scalar(array[0])
    digest, num_bytes = hashlib.sha256(), 0
    for piece in _leaves(array):
        digest.update(piece)
        num_bytes += len(piece)
    if num_bytes <= _MAX_CELL_BYTES:
        return _scalar(array[0])
    return {"cut": num_bytes, "sha256": digest.hexdigest()}


def _leaves(array: pa.Array) -> list[bytes]:
    """The values in an array's lists and structs, end to end."""
    if isinstance(array, pa.StructArray):
        return [piece for field in array.flatten() for piece in _leaves(field)]
    if hasattr(array, "flatten") and pa.types.is_nested(array.type):
        return _leaves(array.flatten())
    kind = array.type
    if pa.types.is_primitive(kind) and not pa.types.is_boolean(kind) and not array.null_count:
        return [np.ascontiguousarray(array.to_numpy(zero_copy_only=False)).tobytes()]
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        array = array.cast(pa.large_binary())
    values = array.to_pylist()
    return [one if isinstance(one, bytes) else str(one).encode(errors="replace") for one in values]


def _scalar(scalar: Any) -> Any:
    """An Arrow value as plain JSON, even if Python cannot represent it."""
    if not scalar.is_valid:
        return None
    try:
        return _plain(scalar.as_py(), 0)
    except (ValueError, OverflowError):
        # Text that is not UTF-8, or a time beyond Python's range; perhaps inside a list.
        pass
    if isinstance(scalar, pa.ListScalar | pa.LargeListScalar | pa.FixedSizeListScalar):
        return [_scalar(one) for one in scalar.values]
    if isinstance(scalar, pa.StructScalar):
        return {name: _scalar(one) for name, one in scalar.items()}
    if hasattr(scalar, "as_buffer"):
        return _plain_bytes(scalar.as_buffer().to_pybytes())
    number = getattr(scalar, "value", None)
    return number if isinstance(number, int) else {"arrow": str(scalar.type)}


def _plain(value: Any, depth: int) -> Any:
    """A value as plain JSON: bytes as text if they are UTF-8, else base64."""
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, str):
        return (
            value.encode(errors="replace").decode()
            if len(value) <= _MAX_CELL_BYTES
            else _cut(value.encode(errors="replace"))
        )
    if isinstance(value, bytes | bytearray | memoryview):
        return _plain_bytes(bytes(value))
    if depth >= _MAX_DEPTH:
        return {"python": type(value).__name__}
    if isinstance(value, np.ndarray | np.generic):
        if value.nbytes > _MAX_CELL_BYTES and value.dtype != object:
            return _cut(np.ascontiguousarray(value).tobytes())
        return _plain(value.tolist(), depth + 1)
    if isinstance(value, Mapping):
        return {str(key): _plain(one, depth + 1) for key, one in value.items()}
    if isinstance(value, set | frozenset):
        return sorted((_plain(one, depth + 1) for one in value), key=json.dumps)
    if isinstance(value, list | tuple):
        return [_plain(one, depth + 1) for one in value]
    return {"python": type(value).__name__, "text": _shown(value)}


def _plain_bytes(content: bytes) -> Any:
    if len(content) > _MAX_CELL_BYTES:
        return _cut(content)
    try:
        return content.decode()
    except UnicodeDecodeError:
        if len(content) > _MAX_BASE64_BYTES:
            return _cut(content)
        return {"base64": base64.b64encode(content).decode()}


def _shown(value: object) -> str:
    """The text of a user's object."""
    try:
        # An address in memory differs from run to run.
        return _ADDRESS.sub("", str(value)[:1000]).encode(errors="replace").decode()
    except Exception as error:
        # User code may raise anything.
        return f"its text cannot be shown: {type(error).__name__}"
