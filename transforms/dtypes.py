"""Dtypes as NumPy has them, and the bytes in which values lie packed.

NumPy itself has no bfloat16: ``ml_dtypes``, which TensorFlow brings, adds it.
"""

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..schemas.wire import FLOATS

_BFLOAT16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)


def numpy_dtype(dtype: str) -> np.dtype[Any]:
    """NumPy's dtype of a feature's; object for strings, which are bytes."""
    if dtype == "bfloat16":
        return _BFLOAT16
    return np.dtype("object" if dtype == "string" else dtype)


def largest_float(dtype: str) -> float:
    """The largest finite value of a dtype of floats."""
    # NumPy's own finfo knows no bfloat16, whose largest is float32's cut to 8 bits.
    return 255 * 2.0**120 if dtype == "bfloat16" else float(np.finfo(dtype).max)


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
