"""Converts Python records to Arrow batches, and finds a type that holds the values of several.

=============================== ==================================================================
values                          Arrow type
=============================== ==================================================================
bool, int, float                bool, int64 (uint64 if too large), double
str, bytes                      string, binary; both: binary
date, time, timedelta, Decimal  date32, time64, duration, decimal
datetime with a zone            timestamp in UTC, in us, or ns if pandas' have nanoseconds
NumPy scalars and arrays        their dtype; a list for each dimension, of fixed size if it is the
                                same in all
a list or tuple                 a list of its items' type
a dict                          a struct of its fields
None, pandas' NA and NaT        null
=============================== ==================================================================

Integers among floats are floats, integers of several sizes have the larger. Bools are not numbers.
Anything with ``__array__`` (a tensor of TensorFlow, PyTorch or JAX, an image of Pillow) is the
NumPy array of its values.
"""

from __future__ import annotations

import datetime
import decimal
import functools
import itertools
import reprlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..examples.dtypes import holds_exactly, numpy_dtype
from .arrow.types import FLOAT_DTYPES, is_list_type, join_types, nulls
from .numpy import arrow_field, to_batch

Values = Sequence[Any]

_UNITS = ("s", "ms", "us", "ns")
_MISSING = ("NAType", "NaTType")
_LOST = -1


class UnfitValueError(ValueError):
    """Values of a column that cannot be converted, or have no common type."""

    def __init__(self, name: object, problem: str) -> None:
        """Stores the name of the column, with dots for fields, and describes the problem."""
        super().__init__(f"{name!r} {problem}")
        self.name = name


def records_to_batch(records: Sequence[Mapping[str, Any]]) -> pa.RecordBatch:
    """The columns of records, in the order in which their names first occur.

    Raises:
        UnfitValueError: naming the value that cannot be converted.
    """
    names = dict.fromkeys(itertools.chain.from_iterable(records))
    for name in names:
        if not isinstance(name, str):
            raise UnfitValueError(name, "is not a string, expected names of values")
    columns = []
    for name in names:
        try:
            columns.append(_converted([one.get(name) for one in records], name))
        except RecursionError:
            raise UnfitValueError(name, "is nested too deeply") from None
    return pa.RecordBatch.from_arrays(columns, names=list(names))


def join_columns(one: pa.Schema, other: pa.Schema) -> pa.Schema:
    """All columns of two schemas, those of ``one`` first, of types that hold the values of both.

    Raises:
        UnfitValueError: naming a column whose types have nothing in common.
    """
    fields = [
        pa.field(
            field.name,
            field.type
            if field.name not in other.names
            else _joined(field.type, other.field(field.name).type, field.name),
        )
        for field in one
    ]
    return pa.schema([*fields, *(field for field in other if field.name not in one.names)])


def to_columns(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """A batch with the columns of a schema from :func:`join_columns`; absent ones are null.

    Raises:
        UnfitValueError: naming a value that its type cannot represent exactly.
    """
    columns = []
    for field in schema:
        if field.name not in batch.schema.names:
            columns.append(pa.nulls(len(batch), field.type))
            continue
        columns.append(_cast(batch.column(field.name), field.type, field.name))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _joined(one: pa.DataType, other: pa.DataType, name: str) -> pa.DataType:
    if one == other or pa.types.is_null(other):
        return one
    if pa.types.is_null(one):
        return other
    if is_list_type(one) and is_list_type(other):
        item = _joined(one.value_type, other.value_type, name)
        sizes = {t.list_size if pa.types.is_fixed_size_list(t) else None for t in (one, other)}
        if len(sizes) == 1 and None not in sizes:
            return pa.list_(item, sizes.pop())
        is_large = any(map(pa.types.is_large_list, (one, other)))
        return pa.large_list(item) if is_large else pa.list_(item)
    if pa.types.is_struct(one) and pa.types.is_struct(other):
        types = {field.name: field.type for field in one}
        for field in other:
            before = types.get(field.name, pa.null())
            types[field.name] = _joined(before, field.type, f"{name}.{field.name}")
        return pa.struct(list(types.items()))
    kinds = {_number_kind(one), _number_kind(other)}
    if kinds == {"int", "float"}:
        whole, real = (one, other) if _number_kind(one) == "int" else (other, one)
        return real if whole.bit_width < real.bit_width else pa.float64()
    if kinds == {"int"} and pa.uint64() in (one, other):
        return pa.uint64()
    if pa.types.is_timestamp(one) and pa.types.is_timestamp(other) and one.tz and other.tz:
        return pa.timestamp(max(one.unit, other.unit, key=_UNITS.index), one.tz)
    is_decimal = [pa.types.is_decimal(t) for t in (one, other)]
    joined = None if any(is_decimal) and not all(is_decimal) else join_types(one, other)
    if joined is None:
        raise UnfitValueError(name, f"is {one} and {other}, which have no common type")
    return joined


def _number_kind(type_: pa.DataType) -> str:
    if pa.types.is_integer(type_):
        return "int"
    return "float" if pa.types.is_floating(type_) else ""


def _cast(array: pa.Array, type_: pa.DataType, name: str) -> pa.Array:
    """The same values in a type that :func:`_joined` has found."""
    if array.type == type_:
        return array
    if pa.types.is_null(array.type):
        return pa.nulls(len(array), type_)
    mask = pa.array(nulls(array)) if array.null_count else None
    if pa.types.is_fixed_size_list(type_):  # of the same size
        size = type_.list_size
        items = array.values.slice(array.offset * size, len(array) * size)
        inner = _cast(items, type_.value_type, name)
        return pa.FixedSizeListArray.from_arrays(inner, type=type_, mask=mask)
    if is_list_type(type_):
        lengths = pa.compute.list_value_length(array).fill_null(0).to_numpy()
        inner = _cast(array.flatten(), type_.value_type, name)
        return _lists(inner, lengths, type_, mask)
    if pa.types.is_struct(type_):
        own = {field.name: array.field(index) for index, field in enumerate(array.type)}
        fields = [
            _cast(own[field.name], field.type, f"{name}.{field.name}")
            if field.name in own
            else pa.nulls(len(array), field.type)
            for field in type_
        ]
        return pa.StructArray.from_arrays(fields, fields=list(type_), mask=mask)
    if pa.types.is_integer(array.type) and pa.types.is_floating(type_):
        dtype = FLOAT_DTYPES[type_.bit_width]
        exact = holds_exactly(array.fill_null(0).to_numpy(), dtype)
        if not exact.all():
            value = array[int(np.flatnonzero(~exact)[0])]
            raise UnfitValueError(name, f"is {value}, which {dtype} cannot represent")
        return array.cast(type_, safe=False)
    try:
        return array.cast(type_)
    except pa.ArrowException as error:
        raise UnfitValueError(name, f"does not fit {type_}: {error}") from None


def _lists(
    items: pa.Array, lengths: npt.NDArray[Any], type_: pa.DataType, mask: pa.Array | None
) -> pa.Array:
    kind, width = (
        (pa.LargeListArray, pa.int64())
        if pa.types.is_large_list(type_)
        else (pa.ListArray, pa.int32())
    )
    offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    return kind.from_arrays(pa.array(offsets, width), items, type=type_, mask=mask)


def _converted(values: Values, name: str) -> pa.Array:
    """Values of any types as an array of a type that holds them all."""
    types = set(map(type, values))
    replaced = {kind: found for kind in types if (found := _replacement(kind, name)) is not None}
    if replaced:
        values = [replaced[type(v)](v) if type(v) in replaced else v for v in values]
        types = set(map(type, values))
    kinds = {kind: _kind_of(kind) for kind in types if kind is not type(None)}
    if len(set(kinds.values())) == 1 and (kind := next(iter(kinds.values()))) != "array":
        return _BUILDERS[kind](values, name)
    groups: dict[Any, list[int]] = {}
    for row, value in enumerate(values):
        if value is not None:
            groups.setdefault(_group_of(value, kinds[type(value)]), []).append(row)
    if not groups:
        return pa.nulls(len(values))
    arrays = []
    for (kind, *_), rows in groups.items():
        arrays.append(_BUILDERS[kind]([values[row] for row in rows], name))
    common = functools.reduce(
        lambda one, other: _joined(one, other, name), (array.type for array in arrays)
    )
    places = np.full(len(values), _LOST, np.int64)
    places[list(itertools.chain.from_iterable(groups.values()))] = np.arange(
        sum(map(len, groups.values()))
    )
    together = pa.concat_arrays([_cast(array, common, name) for array in arrays])
    return together.take(pa.array(places, mask=places == _LOST))


def _replacement(kind: type, name: str) -> Callable[[Any], Any] | None:
    """What converts values of a type to one that is known; None if it is known."""
    if kind.__name__ in _MISSING:
        return lambda value: None
    if issubclass(kind, np.bool_):
        return bool
    if issubclass(kind, np.ndarray):
        return lambda value: _plain_array(value, name)
    if issubclass(kind, pa.Scalar):
        return lambda value: value.as_py()
    if issubclass(kind, datetime.datetime) and hasattr(kind, "nanosecond"):
        return _without_pandas
    if issubclass(kind, datetime.timedelta) and hasattr(kind, "nanoseconds"):
        return lambda value: value.to_numpy() if value.nanoseconds else value.to_pytimedelta()
    known = (np.generic, str, bytes, bool, int, float, list, tuple, Mapping)
    if issubclass(kind, known):
        return None
    if hasattr(kind, "to_list") and not hasattr(kind, "__array__"):
        return lambda value: value.to_list()  # a ragged tensor
    if hasattr(kind, "__array__") or hasattr(kind, "__array_interface__"):
        return lambda value: _plain_array(np.asarray(value), name)
    return None


def _plain_array(array: npt.NDArray[Any], name: str) -> Any:
    """An array of numbers of one or more dimensions, a scalar, or lists of anything else."""
    if np.ma.is_masked(array):
        raise UnfitValueError(name, "is an array with masked items. Fill them")
    if array.ndim == 0:
        return array[()]
    if array.dtype.kind in "OUS":
        return array.tolist()
    return _in_known_unit(np.ma.getdata(array))


def _in_known_unit(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Times in a unit that Arrow has: coarser ones in seconds."""
    if array.dtype.kind not in "mM":
        return array
    unit, count = np.datetime_data(array.dtype)
    return array if unit in _UNITS and count == 1 else array.astype(f"{array.dtype.kind}8[s]")


def _without_pandas(value: Any) -> Any:
    if value.tzinfo is None or not value.nanosecond:
        return value.to_pydatetime(warn=False)
    return pa.scalar(value.value, pa.timestamp("ns", "UTC"))


def _kind_of(kind: type) -> str:
    if issubclass(kind, np.ndarray) or (
        issubclass(kind, np.generic) and not issubclass(kind, str | bytes | float)
    ):
        return "array"
    for known, name in (
        (str, "str"),
        (bytes, "bytes"),
        (bytearray, "bytes"),
        (bool, "bool"),
        (int, "int"),
        (float, "float"),
        (list, "list"),
        (tuple, "list"),
        (Mapping, "dict"),
        (datetime.datetime, "time"),
        (pa.TimestampScalar, "scalar"),
        (datetime.date, "date"),
        (datetime.time, "time of day"),
        (datetime.timedelta, "duration"),
        (decimal.Decimal, "decimal"),
    ):
        if issubclass(kind, known):
            return name
    return "unknown"


def _group_of(value: Any, kind: str) -> tuple[Any, ...]:
    """What values must share to be converted together."""
    if kind != "array":
        return (kind,)
    return (kind, value.dtype, value.ndim)


def _of_ints(values: Values, name: str) -> pa.Array:
    try:
        return pa.array(values, pa.int64())
    except OverflowError:
        numbers = [value for value in values if value is not None]
    if min(numbers) >= 0 and max(numbers) < 1 << 64:
        return pa.array(values, pa.uint64())
    worst = max(numbers, key=abs)
    raise UnfitValueError(name, f"is {worst}, beyond 64 bits")


def _of_lists(values: Values, name: str) -> pa.Array:
    items: list[Any] = []
    for value in values:
        if value is not None:
            items.extend(value)
    inner = _converted(items, name)
    lengths = np.array([0 if value is None else len(value) for value in values], np.int64)
    return _lists(inner, lengths, pa.list_(inner.type), _null_mask(values))


def _of_dicts(values: Values, name: str) -> pa.Array:
    fields = dict.fromkeys(itertools.chain.from_iterable(v for v in values if v is not None))
    if not fields:
        empty: list[Any] = [None if value is None else {} for value in values]
        return pa.array(empty, pa.struct([]))
    for field in fields:
        if not isinstance(field, str):
            raise UnfitValueError(name, f"has the name {field!r}, which is not a string")
    arrays = [
        _converted([None if v is None else v.get(field) for v in values], f"{name}.{field}")
        for field in fields
    ]
    return pa.StructArray.from_arrays(arrays, names=list(fields), mask=_null_mask(values))


def _of_arrays(values: Values, name: str) -> pa.Array:
    """NumPy scalars, or arrays of one dtype and number of dimensions; none is missing."""
    if isinstance(values[0], np.generic):
        return _of_numpy(_in_known_unit(np.array(values)), name)
    shapes = {value.shape for value in values}
    if len(shapes) == 1:
        shape = next(iter(shapes))
        if 0 not in shape:
            return _of_numpy(np.stack(values), name)
    flat = np.concatenate([value.reshape(-1) for value in values])
    array = _of_numpy(flat, name)
    sizes = np.array([value.shape for value in values], np.int64)
    for axis in reversed(range(sizes.shape[1])):
        # Those of this axis have one length in each value.
        lengths = np.repeat(sizes[:, axis], sizes[:, :axis].prod(axis=1, dtype=np.int64))
        if sizes[0, axis] and (sizes[:, axis] == sizes[0, axis]).all():
            array = pa.FixedSizeListArray.from_arrays(array, int(sizes[0, axis]))
        else:
            array = _lists(array, lengths, pa.list_(array.type), None)
    return array


def _of_numpy(values: npt.NDArray[Any], name: str) -> pa.Array:
    if values.dtype.kind not in "biufmM" and values.dtype != numpy_dtype("bfloat16"):
        raise UnfitValueError(name, f"is an array of {values.dtype}, which cannot be stored")
    field = arrow_field(name, values.dtype, values.shape, name)
    return to_batch({name: values}, pa.schema([field])).column(0)


def _of_times(values: Values, name: str) -> pa.Array:
    for value in values:
        if value is not None and value.tzinfo is None:
            raise UnfitValueError(name, f"is {value!r}, expected a time with its zone")
    return pa.array(values, pa.timestamp("us", "UTC"))


def _of_times_of_day(values: Values, name: str) -> pa.Array:
    for value in values:
        if value is not None and value.tzinfo is not None:
            raise UnfitValueError(name, f"is {value!r}, expected a time of day without a zone")
    return pa.array(values, pa.time64("us"))


def _plain(type_: pa.DataType | None) -> Callable[[Values, str], pa.Array]:
    def convert(values: Values, name: str) -> pa.Array:
        try:
            return pa.array(values, type_)
        except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
            raise UnfitValueError(name, f"cannot be converted: {error}") from None

    return convert


def _of_unknown(values: Values, name: str) -> pa.Array:
    value = next(value for value in values if value is not None)
    raise UnfitValueError(
        name,
        f"is {reprlib.repr(value)} ({type(value).__name__}), expected a bool, a number, a string, "
        "bytes, a time, an array, or a list or dict of these",
    )


def _null_mask(values: Values) -> pa.Array | None:
    mask = [value is None for value in values]
    return pa.array(mask) if any(mask) else None


_BUILDERS: dict[str, Callable[[Values, str], pa.Array]] = {
    "array": _of_arrays,
    "bool": _plain(pa.bool_()),
    "bytes": _plain(pa.binary()),
    "date": _plain(pa.date32()),
    "decimal": _plain(None),
    "dict": _of_dicts,
    "duration": _plain(pa.duration("us")),
    "float": _plain(pa.float64()),
    "int": _of_ints,
    "list": _of_lists,
    "scalar": _plain(pa.timestamp("ns", "UTC")),
    "str": _plain(pa.string()),
    "time": _of_times,
    "time of day": _of_times_of_day,
    "unknown": _of_unknown,
}
