"""Dtypes as NumPy has them, the bytes of packed values, and wire columns as dense arrays.

NumPy itself has no bfloat16: ``ml_dtypes``, which TensorFlow brings, adds it.
"""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ...schemas.features import TensorForm, WireColumn
from ...schemas.wire import FLOATS
from ..runs.files import arrow_type

PRECISION = {"float16": 11, "bfloat16": 8, "float32": 24, "float64": 53}
"""The binary digits of a dtype of floats: it holds every integer of at most so many."""

_BFLOAT16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)

Array = npt.NDArray[Any]


def numpy_dtype(dtype: str) -> np.dtype[Any]:
    """NumPy's dtype of a feature's; object for strings, which are bytes."""
    if dtype == "bfloat16":
        return _BFLOAT16
    return np.dtype("object" if dtype == "string" else dtype)


def largest_float(dtype: str) -> float:
    """The largest finite value of a dtype of floats."""
    # NumPy's own finfo knows no bfloat16, whose largest is float32's cut to 8 bits.
    return 255 * 2.0**120 if dtype == "bfloat16" else float(np.finfo(dtype).max)


def holds_exactly(values: npt.NDArray[Any], dtype: str) -> npt.NDArray[np.bool_]:
    """Which integers are the same numbers in a dtype of floats, bool[n].

    Args:
        values: Of any dtype of integers, or Python's integers as objects, [n].
        dtype: One of :data:`PRECISION`.

    >>> holds_exactly(np.array([2**24, 2**24 + 1, 2**24 + 2]), "float32").tolist()
    [True, False, True]
    """
    if values.dtype == object:
        return np.array([is_exact(int(value), dtype) for value in values], bool)
    limit = np.uint64(1 << PRECISION[dtype])
    wide = values if values.dtype == np.uint64 else np.abs(values.astype(np.int64)).view(np.uint64)
    found = np.ones(len(wide), bool)
    large = np.flatnonzero(wide > limit)
    if len(large):
        sizes = wide[large]
        # Without the zeros at its end, an integer has as many digits as a float needs for it.
        found[large] = sizes // (sizes & (~sizes + np.uint64(1))) < limit
        found[large] &= sizes <= min(int(largest_float(dtype)), 2**64 - 1)
    return found


def is_exact(value: int, dtype: str) -> bool:
    """Whether an integer is the same number in a dtype of floats: :func:`holds_exactly` of one.

    >>> is_exact(2**53 + 1, "float64"), is_exact(2**60, "float64"), is_exact(2**60, "float16")
    (False, True, False)
    """
    size, limit = abs(value), 1 << PRECISION[dtype]
    return size <= limit or (size // (size & -size) < limit and size <= largest_float(dtype))


def widened(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Values as the lists of an Example hold them: float32, int64 (a uint64 keeps its bits)."""
    if values.dtype == np.uint64:
        return values.view(np.int64)
    if values.dtype.name not in FLOATS:
        return values.astype(np.int64)
    if values.dtype == _BFLOAT16:
        # By hand, as a cast changes which NaN it is.
        return (values.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        return values.astype(np.float32)


def narrowed(values: npt.NDArray[Any], dtype: str) -> npt.NDArray[Any]:
    """The dual of :func:`widened`, for values that are in the dtype's range."""
    if dtype == "uint64":
        return values.view(np.uint64)
    if dtype == "bfloat16" and not (values.view(np.uint32) & 0xFFFF).any():
        return (values.view(np.uint32) >> 16).astype(np.uint16).view(_BFLOAT16)
    with np.errstate(over="ignore", invalid="ignore"):
        return values.astype(numpy_dtype(dtype))


def packed_bytes(values: npt.NDArray[Any]) -> bytes:
    """Values as little-endian bytes, row-major."""
    return values.astype(values.dtype.newbyteorder("<"), copy=False).tobytes()


def unpacked(content: bytes | pa.Buffer, dtype: str) -> npt.NDArray[Any]:
    """The dual of :func:`packed_bytes`, flat; shares the bytes.

    Raises:
        ValueError: if they are no whole number of values.
    """
    return np.frombuffer(content, numpy_dtype(dtype).newbyteorder("<"))


def joined_bytes(array: pa.Array) -> pa.Buffer | bytes:
    """The bytes of a ``large_binary`` column without nulls, end to end, as they lie."""
    _, offsets, content = array.buffers()
    if content is None:
        return b""
    ends = np.frombuffer(offsets, np.int64)[array.offset : array.offset + len(array) + 1]
    return content.slice(ends[0], ends[-1] - ends[0])


def dense_values(column: pa.Array, form: TensorForm) -> Array:
    """The values of a wire column without nulls: dtype[n, *shape]; objects of bytes for strings.

    Only for forms of fixed shape.
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
    """The wire column of a tensor of fixed shape: the dual of :func:`dense_values`."""
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


def num_values(form: TensorForm) -> int:
    """Values of one record of a tensor of fixed shape."""
    return math.prod(int(dim or 0) for dim in form.shape)
