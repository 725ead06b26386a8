"""NumPy arrays in files: their heads, their rows, and the Arrow columns that they become.

The format: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
"""

from __future__ import annotations

import ast
import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ...schemas.errors import SchemaError
from ...schemas.features import Feature, is_encoded, tensor_form
from ...schemas.recipe import OpenSource
from ..examples.dtypes import numpy_dtype, widened

HEAD_BYTES = 1 << 16
"""A head is at most so long."""

_MAGIC = b"\x93NUMPY"
_FORTRAN_BYTES = 256 << 20


@dataclasses.dataclass(frozen=True)
class NpyArray:
    """An array in a file: what its head says, and how to read its rows."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    offset: int
    """Where the values begin."""
    num_bytes: int
    """Of the file."""
    read_bytes: Callable[[int, int], bytes]

    @classmethod
    def open(cls, opened: OpenSource, path: str) -> NpyArray:
        """Reads the head of a ``.npy`` file.

        Raises:
            ValueError: if it is none.
            SchemaError: if its values cannot be read without unpickling.
        """
        head = opened.read(path, 0, HEAD_BYTES)
        dtype, shape, fortran, offset = read_head(head, path)
        num_bytes = max(len(head), _length(opened, path))
        check_length(dtype, shape, num_bytes - offset)

        def read(start: int, stop: int) -> bytes:
            return opened.read(path, start, stop)

        if fortran and len(shape) > 1:
            values = _by_rows(read(offset, num_bytes), dtype, shape, path=path)
            content = values.tobytes()
            return cls(dtype, shape, 0, len(content), lambda a, b: content[a:b])
        return cls(dtype, shape, offset, num_bytes, read)

    def declared(self, name: str, types: Mapping[str, Any] | None, *, path: str) -> NpyArray:
        """The same array as :func:`with_declared` says.

        Raises:
            SchemaError: if it holds raw bytes that are not declared.
        """
        return dataclasses.replace(self, dtype=with_declared(self.dtype, name, types, path=path))

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return max(1, self.dtype.itemsize * math.prod(self.shape[1:]))

    @property
    def num_whole_rows(self) -> int:
        """Rows that the file holds to their end."""
        return min(self.shape[0], max(0, self.num_bytes - self.offset) // self.row_bytes)

    def rows(self, start: int, stop: int) -> npt.NDArray[Any]:
        """Rows [start, stop), fewer where the file ends."""
        content = self.read_bytes(
            self.offset + start * self.row_bytes, self.offset + stop * self.row_bytes
        )
        num_rows = len(content) // self.row_bytes if self.dtype.itemsize else stop - start
        values = np.frombuffer(content[: num_rows * self.row_bytes], self.dtype)
        return values.reshape(num_rows, *self.shape[1:])


def read_head(head: bytes, path: str) -> tuple[np.dtype[Any], tuple[int, ...], bool, int]:
    """Dtype, shape, whether in Fortran order, and where values begin, from a ``.npy`` head.

    Raises:
        ValueError: if it is none.
        SchemaError: if its values are Python objects, or it has no first axis.
    """
    if not head.startswith(_MAGIC):
        raise ValueError("it does not begin as a NumPy file")
    length_bytes = 2 if head[6:7] == b"\x01" else 4
    start = 8 + length_bytes
    length = int.from_bytes(head[8:start], "little")
    try:
        found = ast.literal_eval(head[start : start + length].decode("latin-1"))
        described, fortran, shape = found["descr"], found["fortran_order"], found["shape"]
        dtype = np.dtype(described)
    except (SyntaxError, ValueError, KeyError, TypeError, RecursionError, MemoryError):
        raise ValueError("its head cannot be read") from None
    if dtype.hasobject:
        raise SchemaError(
            f"{path} holds Python objects, which only unpickling could read, and that runs code. "
            "Save an array of numbers or fixed strings (dtype 'U10' or 'S10')."
        )
    sizes = isinstance(shape, tuple) and all(isinstance(n, int) and n >= 0 for n in shape)
    if not sizes or math.prod(shape) * dtype.itemsize >= 1 << 62:
        raise ValueError(f"its head states the shape {shape!r}")
    if not shape:
        raise SchemaError(f"{path} holds one value, expected an array whose first axis is records.")
    return dtype, shape, bool(fortran), start + length


def check_length(dtype: np.dtype[Any], shape: tuple[int, ...], num_bytes: int) -> None:
    """Refuses what follows an array: rows that its head does not tell of, or another array.

    Raises:
        ValueError: if there are more bytes than the shape takes.
    """
    told = math.prod(shape) * dtype.itemsize
    if num_bytes > told:
        raise ValueError(
            f"its head states the shape {shape!r}, which takes {told:,} bytes, and {num_bytes:,} "
            "follow"
        )


def arrow_field(name: str, dtype: np.dtype[Any], shape: tuple[int, ...], path: str) -> pa.Field:
    """An array's column: a list for each axis after the first."""
    kind = _arrow_type(dtype, f"{path}: array {name!r}")
    return pa.field(name, _lists_of(kind, shape[1:]))


def with_declared(
    dtype: np.dtype[Any], name: str, types: Mapping[str, Any] | None, *, path: str
) -> np.dtype[Any]:
    """The dtype of an array in a file, raw bytes (``V2``) as what they are declared to be.

    NumPy writes dtypes that it does not have itself, such as bfloat16, as raw bytes.

    Raises:
        SchemaError: if there are raw bytes that are not declared.
    """
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        return np.dtype((with_declared(base, name, types, path=path), shape))
    if dtype.names is not None:
        fields = [
            (field, with_declared(dtype[field], f"{name}.{field}", types, path=path))
            for field in dtype.names
        ]
        places = [dtype.fields[field][1] for field in dtype.names]  # type: ignore[index]
        return np.dtype(
            {
                "names": [field for field, _ in fields],
                "formats": [kind for _, kind in fields],
                "offsets": places,
                "itemsize": dtype.itemsize,
            }
        )
    if dtype.kind != "V":
        return dtype
    wanted = (types or {}).get(name)
    form = tensor_form(wanted) if isinstance(wanted, Feature) else None
    declared = form.dtype if form is not None else wanted
    if declared == "bfloat16" and dtype.itemsize == 2:
        return numpy_dtype("bfloat16")
    if declared == "string" or (isinstance(wanted, Feature) and is_encoded(wanted)):
        return dtype
    remedy = ', or "bfloat16", which NumPy stores so' if dtype.itemsize == 2 else ""
    raise SchemaError(
        f"{path}: array {name!r} holds raw bytes, {dtype.itemsize} each ({dtype}); the file does "
        f'not say what they are. Declare it: types={{{name!r}: "string"}} for the bytes'
        f'{remedy}. Of other dtypes, save a copy: values.astype("float32").'
    )


def to_batch(arrays: Mapping[str, npt.NDArray[Any]], schema: pa.Schema) -> pa.RecordBatch:
    """Rows of some arrays, as many as all have, as Arrow columns; what is masked is null."""
    num_rows = min(map(len, arrays.values()), default=0)
    columns = [_to_arrow(a[:num_rows], schema.field(n).type) for n, a in arrays.items()]
    fields = [schema.field(name) for name in arrays]
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))


def _to_arrow(values: npt.NDArray[Any], kind: pa.DataType) -> pa.Array:
    mask = np.ma.getmask(values)
    missing = None if mask is np.ma.nomask or mask.dtype.names else np.ascontiguousarray(mask)
    if pa.types.is_fixed_size_list(kind):
        inner = _to_arrow(values.reshape(-1, *values.shape[2:]), kind.value_type)
        none = None
        if missing is not None and missing.size:
            none = pa.array(missing.reshape(len(missing), -1).all(axis=1))
        return pa.FixedSizeListArray.from_arrays(inner, kind.list_size, mask=none)
    if pa.types.is_struct(kind):
        parts = [_to_arrow(values[field.name], field.type) for field in kind]
        return pa.StructArray.from_arrays(parts, fields=list(kind))
    values = np.ma.getdata(values)
    if values.dtype == numpy_dtype("bfloat16"):
        values = widened(np.ascontiguousarray(values))
    if pa.types.is_timestamp(kind) or pa.types.is_duration(kind):
        numbers = np.ascontiguousarray(values).astype(values.dtype.newbyteorder("=")).view(np.int64)
        nat = numbers == np.iinfo(np.int64).min
        return pa.array(numbers, mask=nat if missing is None else nat | missing).cast(kind)
    if pa.types.is_large_string(kind) or pa.types.is_large_binary(kind):
        return pa.array(values.tolist(), kind, mask=missing)
    native = np.ascontiguousarray(values.astype(values.dtype.newbyteorder("="), copy=False))
    return pa.array(native, kind, mask=missing)


def _lists_of(kind: pa.DataType, shape: Sequence[int]) -> pa.DataType:
    for size in reversed(shape):
        kind = pa.list_(kind, size)
    return kind


def _arrow_type(dtype: np.dtype[Any], where: str) -> pa.DataType:
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        return _lists_of(_arrow_type(base, where), shape)
    if dtype.names is not None:
        return pa.struct([(name, _arrow_type(dtype[name], where)) for name in dtype.names])
    base = dtype
    if base.kind == "U":
        return pa.large_string()
    if base.kind == "S" or base.type is np.void:
        return pa.large_binary()
    if base == numpy_dtype("bfloat16"):
        return pa.float32()
    if base.kind in "Mm":
        unit, count = np.datetime_data(base)
        if unit not in ("s", "ms", "us", "ns") or count != 1:
            raise SchemaError(
                f"{where} has times in units of {count} {unit}, expected s, ms, us or ns. Convert "
                'them: values.astype("datetime64[s]").'
            )
        return pa.timestamp(unit) if base.kind == "M" else pa.duration(unit)
    try:
        return pa.from_numpy_dtype(base.newbyteorder("="))
    except pa.ArrowException:
        raise SchemaError(
            f"{where} is of {base}, which cannot be stored. Convert it; of complex numbers make "
            "two arrays of floats."
        ) from None


def _by_rows(
    content: bytes, dtype: np.dtype[Any], shape: tuple[int, ...], *, path: str
) -> npt.NDArray[Any]:
    """An array that lies column by column, in memory, row by row."""
    if math.prod(shape) * dtype.itemsize > _FORTRAN_BYTES:
        raise SchemaError(
            f"{path} lies column by column (Fortran order), so its rows cannot be read one after "
            "the other. Save it with np.ascontiguousarray."
        )
    return np.ascontiguousarray(
        np.frombuffer(content, dtype, math.prod(shape)).reshape(shape, order="F")
    )


def _length(opened: OpenSource, path: str) -> int:
    return int(opened.filesystem.size(opened.full_path(path)) or 0)
