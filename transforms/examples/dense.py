"""Wire columns of tensors of fixed shape as NumPy arrays, and back: one value or more a record."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ...schemas.features import TensorForm, WireColumn
from ..runs.files import arrow_type
from .dtypes import joined_bytes, narrowed, packed_bytes, unpacked, widened

Array = npt.NDArray[Any]


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
