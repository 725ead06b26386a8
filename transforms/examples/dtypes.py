"""Maps feature dtypes to NumPy, values to packed bytes, and wire columns to dense arrays.

NumPy itself has no bfloat16; ``ml_dtypes``, a dependency of TensorFlow, adds it.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ...schemas.features import TensorForm, WireColumn
from ...schemas.wire import FLOATS
from ..runs.files import arrow_type

PRECISION = {"float16": 11, "bfloat16": 8, "float32": 24, "float64": 53}
"""Significand bits of each float dtype: it holds every integer of up to that many bits exactly."""

_BFLOAT16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)

Array = npt.NDArray[Any]


def numpy_dtype(dtype: str) -> np.dtype[Any]:
    """The NumPy dtype of a feature's dtype; object for strings, which are bytes."""
    if dtype == "bfloat16":
        return _BFLOAT16
    return np.dtype("object" if dtype == "string" else dtype)


def largest_float(dtype: str) -> float:
    """The largest finite value of a float dtype."""
    # np.finfo does not support bfloat16, whose largest value is float32's cut to 8 bits.
    return 255 * 2.0**120 if dtype == "bfloat16" else float(np.finfo(dtype).max)


def holds_exactly(values: npt.NDArray[Any], dtype: str) -> npt.NDArray[np.bool_]:
    """Which integers a float dtype represents exactly, bool[n].

    Args:
        values: Integers of any dtype, or Python integers as objects, [n].
        dtype: A key of :data:`PRECISION`.

    >>> holds_exactly(np.array([2**24, 2**24 + 1, 2**24 + 2]), "float32").tolist()
    [True, False, True]
    """
    if values.dtype == object:
        return np.array([is_exact(int(value), dtype) for value in values], bool)
    limit = np.uint64(1 << PRECISION[dtype])
    wide = values if values.dtype == np.uint64 else np.abs(values.astype(np.int64)).view(np.uint64)
    exact = np.ones(len(wide), bool)
    large = np.flatnonzero(wide > limit)
    if len(large):
        sizes = wide[large]
        # Without its trailing zero bits, an integer needs as many bits as its significand.
        exact[large] = sizes // (sizes & (~sizes + np.uint64(1))) < limit
        exact[large] &= sizes <= min(int(largest_float(dtype)), 2**64 - 1)
    return exact


def is_exact(value: int, dtype: str) -> bool:
    """Whether a float dtype represents an integer exactly: :func:`holds_exactly` for one.

    >>> is_exact(2**53 + 1, "float64"), is_exact(2**60, "float64"), is_exact(2**60, "float16")
    (False, True, False)
    """
    size, limit = abs(value), 1 << PRECISION[dtype]
    return size <= limit or (size // (size & -size) < limit and size <= largest_float(dtype))


def widened(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Converts values to the types of an Example: float32, int64 (a uint64 keeps its bits)."""
    if values.dtype == np.uint64:
        return values.view(np.int64)
    if values.dtype.name not in FLOATS:
        return values.astype(np.int64)
    if values.dtype == _BFLOAT16:
        # By hand: a cast would change the bits of NaNs.
        return (values.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        return values.astype(np.float32)


def narrowed(values: npt.NDArray[Any], dtype: str) -> npt.NDArray[Any]:
    """The inverse of :func:`widened`, for values in the dtype's range."""
    if dtype == "uint64":
        return values.view(np.uint64)
    if dtype == "bfloat16" and not (values.view(np.uint32) & 0xFFFF).any():
        return (values.view(np.uint32) >> 16).astype(np.uint16).view(_BFLOAT16)
    with np.errstate(over="ignore", invalid="ignore"):
        return values.astype(numpy_dtype(dtype))


def packed_bytes(values: npt.NDArray[Any]) -> bytes:
    """Converts values to little-endian bytes, row-major."""
    return values.astype(values.dtype.newbyteorder("<"), copy=False).tobytes()


def unpacked(content: bytes | pa.Buffer, dtype: str) -> npt.NDArray[Any]:
    """The inverse of :func:`packed_bytes`, as a flat array that shares the bytes.

    Raises:
        ValueError: if they are not a whole number of values.
    """
    return np.frombuffer(content, numpy_dtype(dtype).newbyteorder("<"))


def joined_bytes(array: pa.Array) -> pa.Buffer | bytes:
    """The concatenated bytes of a ``large_binary`` column without nulls; nothing is copied."""
    _, offsets, content = array.buffers()
    if content is None:
        return b""
    ends = np.frombuffer(offsets, np.int64)[array.offset : array.offset + len(array) + 1]
    return content.slice(ends[0], ends[-1] - ends[0])


def dense_values(column: pa.Array, form: TensorForm) -> Array:
    """The values of a wire column without nulls: dtype[n, *shape]; objects of bytes for strings.

    For fixed shapes only.
    """
    (wire,) = form.wire_columns("")
    shape = (len(column), *(int(dim or 0) for dim in form.shape))
    if wire.packed is not None:
        return unpacked(joined_bytes(column), wire.packed).reshape(shape)
    flat = column if wire.length == 1 else column.flatten()
    values = flat.to_numpy(zero_copy_only=False)
    return (
        values.reshape(shape)
        if form.dtype == "string"
        else narrowed(values, form.dtype).reshape(shape)
    )


def dense_column(values: Array, column: WireColumn) -> pa.Array:
    """The wire column of a tensor of fixed shape: the inverse of :func:`dense_values`."""
    num_records = len(values)
    if column.packed is not None:
        content = packed_bytes(values)
        row_bytes = len(content) // num_records if num_records else 0
        offsets = np.arange(num_records + 1, dtype=np.int64) * row_bytes
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(content)]
        return pa.LargeBinaryArray.from_buffers(pa.large_binary(), num_records, buffers)
    kind = arrow_type(column)
    flat = values.reshape(-1)
    if column.length == 1:
        return pa.array(flat if column.kind == "bytes" else widened(flat), kind)
    inner = pa.array(flat if column.kind == "bytes" else widened(flat), kind.value_type)
    return pa.FixedSizeListArray.from_arrays(inner, column.length)
