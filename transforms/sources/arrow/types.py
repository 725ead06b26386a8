"""Maps Arrow types to features: the leaf columns of nested types, and the feature of each.

A struct's fields are leaves named ``<struct>.<field>``. Lists around a leaf, or around a struct
that contains it, are its dimensions. A map is a list of structs of ``key`` and ``value``. Extension
types are treated as their storage types; dictionaries and run-end encoding are mere encodings.

============================= ================================================================
Arrow type                    feature
============================= ================================================================
bool, int8 … uint64           Scalar of that dtype
halffloat, float, double      Scalar: float16, float32, float64
decimal32 … decimal256        Scalar("float64"), rounded to the nearest: 15 digits always survive,
                              more may not. A decimal of scale 0 must be exact.
                              ``types={"price": "string"}`` keeps all digits
string, binary, views, null   Scalar("string")
timestamp                     Timestamp in its unit, always UTC: Arrow stores zoned times as UTC,
                              and times without a zone are taken as UTC. Within a source, either
                              all files have a zone or none, unless a feature is declared
date32, date64                Timestamp("s"), Timestamp("ms")
time32, time64, duration      Scalar: int32 or int64, with the column's ``unit``
list of these                 Sequence; Sequence of vectors for lists of fixed-size lists
fixed-size list               Tensor, also for other nested lists: each dimension that varies is
                              None, and in a record all lists of a level have the same length
struct                        Struct
list of structs               Struct of sequences
map                           Struct of two sequences, ``key`` and ``value``
dictionary, run-end encoded   as its values
extension                     as its storage type
============================= ================================================================

A leaf without a value in some row is optional. A fixed-size tensor then becomes a sequence. If more
dimensions vary, such rows are rejected, because an Example cannot distinguish a missing tensor from
an empty one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ....schemas.errors import SchemaError
from ....schemas.features import (
    Feature,
    Scalar,
    Sequence,
    Struct,
    Tensor,
    Timestamp,
    tensor_form,
)
from ....schemas.wire import Dtype
from ..table_files import other_columns

MAX_DEPTH = 32
"""Maximum depth of nested lists and structs."""

_Bools = npt.NDArray[np.bool_]
_Ints = npt.NDArray[np.int64]

FLOAT_DTYPES: Mapping[int, Dtype] = {16: "float16", 32: "float32", 64: "float64"}
"""Bits of a float -> its dtype."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Leaf:
    """One leaf of a column, which becomes a feature."""

    name: str
    """The names of the column and of the struct fields that lead to the leaf, joined by dots."""
    column: int
    """Index of the column in its schema."""
    fields: tuple[int, ...]
    """Index of the field to take of each struct on the way."""
    type: pa.DataType
    """Type of the values, neither nested nor encoded."""
    shape: tuple[int | None, ...] = ()
    """Lengths of the lists around the leaf, outermost first; None where they vary."""


@dataclasses.dataclass(frozen=True)
class Level:
    """The lists of one nesting level."""

    lengths: _Ints
    valid: _Bools
    """False for a missing list, whose length is 0."""


@dataclasses.dataclass(frozen=True)
class Cells:
    """The flattened data of a leaf: its lists, outermost first, and all its values.

    The lengths of a level add up to the number of lists in the next, or of values.
    """

    levels: tuple[Level, ...]
    values: pa.Array

    def missing(self) -> _Bools:
        """Which rows have neither a value nor a list."""
        return ~self.levels[0].valid if self.levels else nulls(self.values)

    def rows_of_values(self) -> _Ints:
        """The row of each value."""
        rows: _Ints | None = None
        for level in self.levels:
            found = np.arange(len(level.lengths)) if rows is None else rows
            rows = np.repeat(found, level.lengths)
        return np.arange(len(self.values)) if rows is None else rows


def nulls(array: pa.Array) -> _Bools:
    """Which values of an array are null, bool[n]."""
    if array.null_count == 0:
        return np.zeros(len(array), bool)
    found: _Bools = array.is_null().to_numpy(zero_copy_only=False)
    return found


def leaves_of(schema: pa.Schema, *, path: str) -> dict[str, Leaf]:
    """The leaves of a schema's columns, by name. An empty struct has none.

    Raises:
        SchemaError: if a column has a duplicate or empty name, or an unsupported type. ``path`` is
            for the message.
    """
    leaves: dict[str, Leaf] = {}
    for index, field in enumerate(schema):
        for leaf in _below(field.name, field.type, column=index, path=path):
            if leaf.name in leaves:
                raise SchemaError(
                    f"{path}: two columns are named {leaf.name!r}. Rename one of them."
                )
            leaves[leaf.name] = leaf
    return leaves


def plain_type(type_: pa.DataType) -> pa.DataType:
    """A type without its encoding or extension."""
    while True:
        if isinstance(type_, pa.BaseExtensionType):
            type_ = type_.storage_type
        elif pa.types.is_dictionary(type_) or pa.types.is_run_end_encoded(type_):
            type_ = type_.value_type
        elif pa.types.is_map(type_):
            return pa.list_(pa.struct([("key", type_.key_type), ("value", type_.item_type)]))
        else:
            return type_


def extract(column: pa.Array, leaf: Leaf) -> Cells:
    """Extracts a leaf from its column, an array of the type in which the leaf was found."""
    levels: list[Level] = []
    fields = iter(leaf.fields)
    array = _plain(column)
    while True:
        if pa.types.is_struct(array.type):
            # Gives null where the struct itself is null.
            array = _plain(pc.struct_field(array, [next(fields)]))
        elif is_list_type(array.type):
            lengths = pc.list_value_length(array).fill_null(0)
            levels.append(Level(lengths.to_numpy().astype(np.int64), ~nulls(array)))
            array = _plain(array.flatten())
        else:
            return Cells(tuple(levels), array)


def _below(
    name: str,
    type_: pa.DataType,
    *,
    column: int,
    path: str,
    fields: tuple[int, ...] = (),
    shape: tuple[int | None, ...] = (),
) -> Iterator[Leaf]:
    last = name.rpartition(".")[2]
    if not last:
        raise SchemaError(
            f"{path}: column {column + 1} has a name that is empty or ends with a dot ({name!r}). "
            "Rename it."
        )
    if len(fields) + len(shape) > MAX_DEPTH:
        raise SchemaError(
            f"{path}: column {name!r} is nested more than {MAX_DEPTH} levels deep. Leave it out, "
            "or flatten it."
        )
    if isinstance(type_, pa.BaseExtensionType) and type_.extension_name == "pandas.period":
        raise SchemaError(
            f"{path}: column {name!r} holds pandas periods, stored as numbers that only pandas can "
            f"read. Convert them to times: data[{name!r}].dt.to_timestamp()."
        )
    type_ = plain_type(type_)
    if pa.types.is_struct(type_):
        for index in range(type_.num_fields):
            field = type_.field(index)
            yield from _below(
                f"{name}.{field.name}",
                field.type,
                column=column,
                path=path,
                fields=(*fields, index),
                shape=shape,
            )
    elif is_list_type(type_):
        length = type_.list_size if pa.types.is_fixed_size_list(type_) else None
        if length is not None and length < 1:
            raise SchemaError(
                f"{path}: column {name!r} is {type_}, whose lists are always empty. Leave it out."
            )
        yield from _below(
            name,
            type_.value_type,
            column=column,
            path=path,
            fields=fields,
            shape=(*shape, length),
        )
    elif pa.types.is_union(type_) or pa.types.is_interval(type_):
        raise SchemaError(
            f"{path}: column {name!r} is {type_}, which no feature supports. Leave it out with "
            "columns=, or store it as numbers or strings."
        )
    else:
        yield Leaf(name=name, column=column, fields=fields, type=type_, shape=shape)


def is_list_type(type_: pa.DataType) -> bool:
    """Whether a type is a list of any kind."""
    tests = (
        pa.types.is_list,
        pa.types.is_large_list,
        pa.types.is_fixed_size_list,
        pa.types.is_list_view,
        pa.types.is_large_list_view,
    )
    return any(test(type_) for test in tests)


def _plain(array: pa.Array) -> pa.Array:
    """An array whose outermost type is the one that :func:`plain_type` gives."""
    while True:
        type_ = array.type
        if isinstance(type_, pa.BaseExtensionType):
            array = array.storage
        elif pa.types.is_dictionary(type_):
            array = array.dictionary_decode()
        elif pa.types.is_run_end_encoded(type_):
            array = pc.run_end_decode(array)
        elif pa.types.is_map(type_):
            array = array.cast(plain_type(type_))
        else:
            return array


def nest(
    schema: pa.Schema, features: Mapping[str, Feature], *, path: str
) -> dict[str, Feature | Struct]:
    """The features of columns: those of the leaves, nested in their structs.

    Raises:
        SchemaError: if there are none.
    """
    nested: dict[str, Feature | Struct] = {}
    for field in schema:
        feature = _nested(field.name, field.type, features)
        if feature is not None:
            nested[field.name] = feature
    if not nested:
        raise SchemaError(f"{path} has no columns. Is it the right file?")
    return nested


def missing_leaves(batch: pa.RecordBatch, *, path: str) -> set[str]:
    """Names of the leaves without a value in some row of a batch."""
    return {
        name
        for name, leaf in leaves_of(batch.schema, path=path).items()
        if extract(batch.column(leaf.column), leaf).missing().any()
    }


def leaf_feature(leaf: Leaf, *, missing: bool) -> Feature:
    """The feature of a leaf; ``missing`` if some row has no value."""
    item: Scalar | Timestamp = _item(leaf.type)
    if not leaf.shape:
        if isinstance(item, Timestamp):
            return Timestamp(item.unit, optional=missing)
        return Scalar(item.dtype, optional=missing, unit=item.unit)
    dtype: Dtype = "int64" if isinstance(item, Timestamp) else item.dtype
    first, *rest = leaf.shape
    if None not in rest and (first is None or missing):
        of = Tensor(dtype, tuple(rest), unit=item.unit) if rest else item
        return Sequence(of, optional=missing)
    return Tensor(dtype, leaf.shape, unit=item.unit)


def _item(type_: pa.DataType) -> Scalar | Timestamp:
    types = pa.types
    if types.is_boolean(type_):
        return Scalar("bool")
    if types.is_integer(type_):
        return Scalar(str(type_))  # type: ignore[arg-type]
    if types.is_floating(type_):
        return Scalar(FLOAT_DTYPES[type_.bit_width])
    if types.is_decimal(type_):
        return Scalar("float64")
    if types.is_timestamp(type_):
        return Timestamp(type_.unit)
    if types.is_date(type_):
        return Timestamp("s" if types.is_date32(type_) else "ms")
    if types.is_time(type_) or types.is_duration(type_):
        return Scalar("int32" if types.is_time32(type_) else "int64", unit=type_.unit)
    return Scalar("string")


def _nested(name: str, type_: pa.DataType, features: Mapping[str, Feature]) -> Any:
    """The feature of a column, with its Structs rebuilt; None for an empty struct."""
    type_ = plain_type(type_)
    inner = type_
    while not pa.types.is_struct(inner) and hasattr(inner, "value_type"):
        inner = plain_type(inner.value_type)
    if not pa.types.is_struct(inner):
        return features[name]
    fields = {
        field.name: found
        for field in inner
        if (found := _nested(f"{name}.{field.name}", field.type, features)) is not None
    }
    return Struct(fields) if fields else None


def join_schemas(
    schemas: Mapping[pa.Schema, str],
    *,
    declared: Mapping[str, Any],
    union: bool = False,
    remedy: str = "Give all the same columns.",
) -> dict[str, Leaf]:
    """The common leaves of several files, as :func:`join_leaves` joins two.

    Args:
        schemas: Schema -> a file that has it; at least one.
        declared: The declared types, by name.
        union: Whether files may lack columns.
        remedy: What to do otherwise, for the error.

    Raises:
        SchemaError: naming a column that a file lacks, or whose types are incompatible.
    """
    (first, path), *others = schemas.items()
    joined = leaves_of(first, path=path)
    for schema, other in others:
        found = leaves_of(schema, path=other)
        if union:
            joined, found = joined | _only(found, joined), found | _only(joined, found)
        elif joined.keys() != found.keys():
            raise SchemaError(f"{other_columns(found, joined, paths=(other, path))}. {remedy}")
        joined = join_leaves(joined, found, paths=(path, other), declared=declared)
    return joined


def _only(one: Mapping[str, Leaf], other: Mapping[str, Leaf]) -> dict[str, Leaf]:
    return {name: leaf for name, leaf in one.items() if name not in other}


def join_structs(schemas: Iterable[pa.Schema]) -> pa.Schema:
    """The columns of all schemas, and the fields of their structs, of the types that come first."""
    types: dict[str, pa.DataType] = {}
    for schema in schemas:
        for field in schema:
            known = types.get(field.name)
            types[field.name] = field.type if known is None else _with_fields(known, field.type)
    return pa.schema(list(types.items()))


def _with_fields(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    one, other = plain_type(one), plain_type(other)
    if is_list_type(one) and is_list_type(other):
        return pa.list_(_with_fields(one.value_type, other.value_type))
    if not (pa.types.is_struct(one) and pa.types.is_struct(other)):
        return one
    joined = join_structs([pa.schema(list(one)), pa.schema(list(other))])
    return pa.struct(list(joined))


def join_leaves(
    one: Mapping[str, Leaf],
    other: Mapping[str, Leaf],
    *,
    paths: tuple[str, str],
    declared: Mapping[str, Any],
) -> dict[str, Leaf]:
    """The common leaves of two files, of types that hold the values of both.

    Args:
        one: The leaves of one file by name, which determine the order.
        other: The leaves of the other file, of the same names.
        paths: The files, for errors.
        declared: The declared types, by name, which need not be inferred.

    Raises:
        SchemaError: naming a column whose types are incompatible.
    """
    joined = {}
    for name, leaf in one.items():
        second = other[name]
        type_ = join_types(leaf.type, second.type)
        if _differ(leaf.type, second.type, declared.get(name)) or (
            name not in declared and (type_ is None or len(leaf.shape) != len(second.shape))
        ):
            fix = f'Store one type, or declare it: types={{{name!r}: "…"}}.'
            if _is_zoned(leaf.type) is not _is_zoned(second.type):
                fix = (
                    "Store one type. If the times without a zone are UTC, declare it as a "
                    f'Timestamp: types={{{name!r}: ss.Timestamp("us")}}.'
                )
            raise SchemaError(
                f"Column {name!r} is {leaf.type}{_dims(leaf)} in {paths[0]} and "
                f"{second.type}{_dims(second)} in {paths[1]}. {fix}"
            )
        shape = leaf.shape
        if len(shape) == len(second.shape):
            pairs = zip(shape, second.shape, strict=True)
            shape = tuple(a if a == b else None for a, b in pairs)
        joined[name] = dataclasses.replace(leaf, type=type_ or leaf.type, shape=shape)
    return joined


def _dims(leaf: Leaf) -> str:
    return "".join(f"[{'' if dim is None else dim}]" for dim in leaf.shape)


def _differ(one: pa.DataType, other: pa.DataType, declared: Any) -> bool:
    """Whether a declared type would lose the different units of two durations.

    A duration stored as text has no unit.
    """
    units = {type_.unit for type_ in (one, other) if pa.types.is_duration(type_)}
    form = tensor_form(declared) if isinstance(declared, Feature) else None
    dtype = form.dtype if form is not None else declared
    return len(units) > 1 and dtype == "string"


def _is_zoned(type_: pa.DataType) -> bool | None:
    """Whether a time has a zone; None if the type is neither a timestamp nor a date."""
    if pa.types.is_date(type_):
        return False
    return type_.tz is not None if pa.types.is_timestamp(type_) else None


def join_types(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """A type that holds the values of both, neither of them nested; None if there is none."""
    if one == other:
        return one
    if _is_zoned(one) is not _is_zoned(other):
        return None
    if pa.types.is_timestamp(one) and pa.types.is_timestamp(other):
        return pa.timestamp(max(one.unit, other.unit, key=("s", "ms", "us", "ns").index))
    if pa.types.is_decimal(one) and pa.types.is_decimal(other):
        return one
    if {pa.types.is_decimal(one), pa.types.is_decimal(other)} == {True, False} and (
        pa.types.is_floating(one) or pa.types.is_floating(other)
    ):
        return pa.float64()
    try:
        return (
            pa.unify_schemas(
                [pa.schema([("x", one)]), pa.schema([("x", other)])], promote_options="permissive"
            )
            .field("x")
            .type
        )
    except (pa.ArrowTypeError, pa.ArrowInvalid):
        return None
