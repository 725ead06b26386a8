"""The source of tables in memory: pandas, Arrow, Polars, NumPy and Hugging Face datasets."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import reprlib
import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from ...schemas.config import config_class
from ...schemas.errors import DataError, RecipeError, SchemaError
from ...schemas.features import ClassLabel
from ...schemas.limits import DEFAULT_LIMITS, Limits
from ...schemas.recipe import Source
from ..examples.dtypes import numpy_dtype
from ..examples.row_values import holds_bool
from .arrow.hugging_face import column_types
from .extracted import (
    ExtractedTable,
    extract_batches,
    numbered_rows,
    plain_batch,
    plain_schema,
)
from .numpy import arrow_field, to_batch
from .table_files import check_types

_NAME = "table"
_ROWS = 1 << 16


@config_class
class Table:
    """Rows of a table in the memory of the process that starts the build.

    A build copies the rows to its workspace, and identifies them by content. A record's id is
    ``table#row``.

    Attributes:
        data: A pandas DataFrame (without its index), a pyarrow Table or RecordBatch, a dict of
            NumPy arrays whose first axis is the record (masked values are missing), a
            ``datasets.Dataset``, or any object with an Arrow stream (``__arrow_c_stream__``), such
            as a Polars frame.
        label: The column to predict. Strings and bools become a ClassLabel, a pandas categorical a
            ClassLabel of its categories in their order; numbers are kept.
        types: Overrides inferred types: ``{"age": "float32"}``, or a feature such as
            ``ss.ClassLabel(("no", "yes"))``. The field of a struct is ``"struct.field"``.
    """

    data: Any = dataclasses.field(repr=False, compare=False)
    label: str | None = None
    types: Mapping[str, Any] | None = None

    media = False

    def __post_init__(self) -> None:
        """Checks the types, and that the data is a table."""
        check_types(self.types)
        if not _is_table(self.data):
            raise ValueError(
                f"data: {type(self.data).__name__} is not a table; expected a pandas DataFrame, a "
                "pyarrow Table, a dict of NumPy arrays, a Dataset, or an object with an Arrow "
                "stream"
            )

    def extract(self, folder: str, *, base: str, limits: Limits = DEFAULT_LIMITS) -> Source:
        """Copies the table to files in the folder.

        Raises:
            RecipeError: if arrays differ in length, or one is a single value.
            SchemaError: if it cannot be converted to Arrow, or a column cannot be stored.
            DataError: if it has no rows.
        """
        del base, limits
        types = dict(self.types or {})
        if isinstance(self.data, Mapping):
            for name, values in self.data.items():
                if getattr(values, "dtype", None) == numpy_dtype("bfloat16"):
                    types.setdefault(name, "bfloat16")  # not an Arrow type
        try:
            schema, batches = table_batches(self.data)
            plain = plain_schema(schema, path=f"the {_NAME}")
            rows = numbered_rows(plain_batch(batch, plain) for batch in batches)
            names = extract_batches(rows, plain, folder)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            remedy = (
                "Give the column of large integers the dtype np.uint64."
                if isinstance(error, OverflowError)
                else "Give each column one type and a name of its own."
            )
            raise SchemaError(
                f"Table: {type(self.data).__name__} cannot be converted to an Arrow table: "
                f"{str(error).strip() or type(error).__name__}. {remedy}"
            ) from None
        if not names:
            raise DataError("Table: the table has no rows.")
        if self.label is not None and self.label not in types:
            categories = _categories(self.data, self.label)
            if categories is not None:
                types[self.label] = ClassLabel(categories)
        return ExtractedTable(
            folder,
            files=names,
            name=_NAME,
            of="Table",
            columns=tuple(plain.names),
            label=self.label,
            types=types,
            specs=column_types(schema),
        )


def _is_table(data: Any) -> bool:
    if isinstance(data, Mapping):
        return bool(data) and all(isinstance(name, str) for name in data)
    return is_frame(data)


def is_frame(data: Any) -> bool:
    """Whether an object is a table other than a dict of arrays."""
    return _library(data) in ("pandas", "datasets") or hasattr(data, "__arrow_c_stream__")


def _library(data: Any) -> str:
    """The package of a pandas frame or a Hugging Face dataset; empty for other objects."""
    package = type(data).__module__.partition(".")[0]
    kinds = {"pandas": "DataFrame", "datasets": "Dataset"}
    return package if any(c.__name__ == kinds.get(package) for c in type(data).__mro__) else ""


def table_batches(data: Any) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """The schema of a table, and batches of its rows."""
    if isinstance(data, Mapping):
        return _of_arrays(data)
    library = _library(data)
    if library == "pandas":
        named = [name for name in data.columns if not isinstance(name, str)]
        if named:
            raise RecipeError(
                f"Table: the column {named[0]!r} has a name that is no text. Name the columns by "
                "texts: frame.rename(columns=str), or frame.columns = [...]."
            )
        with _quiet_pandas():
            schema = pa.Schema.from_pandas(data, preserve_index=False)
        for position, field in enumerate(schema):
            column = data.iloc[:, position]
            if column.dtype == object:
                schema = schema.set(position, field.with_type(_exact_type(field, column)))
        return schema, _of_pandas(data, schema)
    if library == "datasets":
        formatted = data.with_format("arrow")
        schema = data.features.arrow_schema
        slices = (formatted[at : at + _ROWS] for at in range(0, len(data), _ROWS))
        return schema, (batch for table in slices for batch in table.cast(schema).to_batches())
    reader = pa.RecordBatchReader.from_stream(data)
    return reader.schema, iter(reader)


def _of_pandas(data: Any, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    for at in range(0, len(data), _ROWS):
        with _quiet_pandas():
            batch = pa.RecordBatch.from_pandas(data[at : at + _ROWS], schema, preserve_index=False)
        yield batch


@contextlib.contextmanager
def _quiet_pandas() -> Iterator[None]:
    """Silences pandas' deprecation warnings about Arrow's use of it, which users cannot fix."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        yield


def _of_arrays(data: Mapping[str, Any]) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    arrays = {name: _array_of(name, values) for name, values in data.items()}
    for name, array in arrays.items():
        if not getattr(array, "ndim", 1):
            raise RecipeError(f"Table: {name!r} is a single value, expected an array of records.")
    lengths = {name: len(array) for name, array in arrays.items()}
    if len(set(lengths.values())) > 1:
        raise RecipeError(
            f"Table: the arrays have {lengths} rows, expected the same number in each."
        )
    fields, columns = [], {}
    for name, array in arrays.items():
        if isinstance(array, pa.Array):
            columns[name] = array
            fields.append(pa.field(name, columns[name].type))
        else:
            fields.append(arrow_field(name, array.dtype, array.shape, "Table"))
    schema = pa.schema(fields)

    def batches() -> Iterator[pa.RecordBatch]:
        num_rows = next(iter(lengths.values()))
        for at in range(0, num_rows, _ROWS):
            stop = min(num_rows, at + _ROWS)
            read = [
                columns[name][at:stop]
                if name in columns
                else to_batch({name: array[at:stop]}, schema).column(0)
                for name, array in arrays.items()
            ]
            yield pa.RecordBatch.from_arrays(read, schema=schema)

    return schema, batches()


def _array_of(name: str, values: Any) -> Any:
    """The values of a column as a NumPy array if it has a suitable dtype, else an Arrow array.

    Raises:
        SchemaError: if they have several types, or a value would change in an array.
    """
    if isinstance(values, pa.Array):
        return values
    if not isinstance(values, np.ma.MaskedArray):
        if type(values).__module__.partition(".")[0] == "pandas":
            converted = _of_objects(name, values)
            return (
                converted.combine_chunks() if isinstance(converted, pa.ChunkedArray) else converted
            )
        if isinstance(values, pa.ChunkedArray) or hasattr(values, "__arrow_c_stream__"):
            return pa.chunked_array(values).combine_chunks()
        array = np.asarray(values)
        if isinstance(values, list | tuple) and not array.dtype.hasobject:
            given = np.array(values, object)
            same = all(map(_same, array.ravel().tolist(), given.ravel().tolist()))
            if not same or (array.dtype.kind != "b" and holds_bool(values)):
                raise SchemaError(
                    f"Table: {name!r} is a list whose values would change as {array.dtype}. Give "
                    "each column one type."
                )
        values = array
    if not values.dtype.hasobject or values.dtype.names is not None:
        return values
    # Strings and bytes of any length. Arrow checks that they have a common type.
    items = values.tolist()
    try:
        converted = pa.array(items)
    except (pa.ArrowException, ValueError, TypeError):
        return _of_objects(name, items)  # NaN, NaT and NA may be missing values
    _check_kept(name, converted.type, items)
    return _of_objects(name, items) if pa.types.is_temporal(converted.type) else converted


def _of_objects(name: str, values: Any) -> pa.Array | pa.ChunkedArray:
    """Values with pandas' semantics: NaN, NaT and NA are missing."""
    array = pa.array(values, from_pandas=True)
    if not isinstance(values, list) and values.dtype != object:
        return array
    type_ = _exact_type(pa.field(name, array.type), values)
    return array if type_ == array.type else pa.array(values, type_, from_pandas=True)


def _exact_type(field: pa.Field, values: Iterable[Any]) -> pa.DataType:
    """The type of a column of objects, with the nanoseconds that Arrow would silently drop.

    Raises:
        SchemaError: if a value is an array with masked items, whose mask Arrow drops, or would
            change in the column.
    """
    type_ = field.type
    _check_kept(field.name, type_, values)
    if isinstance(type_, pa.ListType) and any(map(np.ma.is_masked, values)):
        raise SchemaError(
            f"Table: {field.name!r} has arrays with masked items. Fill them, or leave them out."
        )
    is_time, is_duration = pa.types.is_timestamp(type_), pa.types.is_duration(type_)
    if not (is_time or is_duration) or not any(map(_nanoseconds, values)):
        return type_
    return pa.timestamp("ns", type_.tz) if is_time else pa.duration("ns")


def _check_kept(name: str, type_: pa.DataType, values: Iterable[Any]) -> None:
    """Checks that Arrow keeps all of each value, which it does not where types are mixed.

    Raises:
        SchemaError: naming the first value that would change.
    """
    if not (pa.types.is_nested(type_) or pa.types.is_primitive(type_)):
        return  # texts and bytes, of which there may be many
    for row, value in enumerate(values):
        if lost := _lost(type_, value):
            raise SchemaError(
                f"Table: {name!r} {lost}, the first in row {row}: {reprlib.repr(value)}. Give each "
                "column one type."
            )


def _lost(type_: pa.DataType, value: Any, *, is_inner: bool = False) -> str:
    """What Arrow's type would change in a value; empty if it keeps all."""
    if pa.types.is_struct(type_):
        fields = type_ if isinstance(value, Mapping) else ()
        found = (_lost(field.type, value.get(field.name), is_inner=True) for field in fields)
        return next(filter(None, found), "")
    if pa.types.is_list(type_):
        if isinstance(value, np.ndarray) and not value.dtype.hasobject:
            value = value[:1]
        items = value if isinstance(value, Iterable) else ()
        found = (_lost(type_.value_type, item, is_inner=True) for item in items)
        return next(filter(None, found), "")
    is_number = pa.types.is_integer(type_) or pa.types.is_floating(type_)
    if is_number and isinstance(value, bool | np.bool_):
        return "mixes bools and numbers"
    if pa.types.is_date(type_) and isinstance(value, datetime.datetime) and value == value:
        return "mixes dates and times of day"
    if isinstance(value, datetime.time) and value.tzinfo is not None:
        return "has times of day with a zone, whose offset no feature keeps"
    is_coarse = pa.types.is_temporal(type_) and getattr(type_, "unit", "ns") != "ns"
    if is_inner and is_coarse and value == value and _nanoseconds(value):  # NaT differs from itself
        return "has nanoseconds in lists or dicts, as objects"
    return ""


def _nanoseconds(value: Any) -> int:
    """Of a time or duration of pandas."""
    return getattr(value, "nanosecond", 0) or getattr(value, "nanoseconds", 0)


def _same(made: Any, given: Any) -> bool:
    return bool(made == given) or (made != made and given != given)


def _categories(data: Any, name: str) -> tuple[str, ...] | None:
    """The categories of a pandas column, in their order; None if it has no text categories."""
    if _library(data) != "pandas" or name not in data.columns:
        return None
    categories = getattr(data[name].dtype, "categories", None)
    if categories is None or not all(isinstance(value, str) for value in categories):
        return None
    return tuple(categories) or None
